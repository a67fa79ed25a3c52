"""labels.json: what may stand in it, how it is changed, and what happens with one that is damaged or somebody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from harness.cluster.kube.mirror import Mirror
from harness.head.recordserver import files_of, part_of
from harness.records.errors import RecordError
from harness.records.labels import BadLabel, Labels, change_labels, read_labels, with_note, with_pin, with_tags
from harness.records.layout import RunFolder
from harness.wire import inquiry


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_a_run_without_the_file_has_no_labels(folder: RunFolder) -> None:
    assert read_labels(folder) == Labels()
    assert not folder.labels_json.exists()


def test_labels_are_kept_and_each_change_leaves_the_others(folder: RunFolder) -> None:
    change_labels(folder, lambda labels: with_tags(labels, ["baseline", "H200"]))
    change_labels(folder, lambda labels: with_note(labels, "  the one\nto beat "))
    change_labels(folder, lambda labels: with_pin(labels, True))
    change_labels(folder, lambda labels: with_tags(labels, ["h200", "fp8"], ["BASELINE", "never-there"]))
    assert read_labels(folder) == Labels(["H200", "fp8"], "the one to beat", True)
    assert [path.name for path in folder.path.iterdir()] == ["labels.json"]


@pytest.mark.parametrize("tag", ["", "-x", "two words", "a|b", "!x", "a>1", "x" * 41, "\x1b[31m", "#x", "tab\t"])
def test_what_filters_or_terminals_would_misread_is_no_tag(tag: str) -> None:
    with pytest.raises(BadLabel, match="is not a tag: 1 to 40 letters, digits"):
        with_tags(Labels(), [tag])


def test_too_much_is_refused() -> None:
    with pytest.raises(BadLabel, match="at most 32 tags; these would be 33"):
        with_tags(Labels(), [f"t{number}" for number in range(33)])
    with pytest.raises(BadLabel, match="at most 2,000 characters; this one has 2,001"):
        with_note(Labels(), "x" * 2001)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"tags": "x"}', b'{"pinned": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_file_is_told_and_not_written_over(folder: RunFolder, content: bytes) -> None:
    folder.labels_json.write_bytes(content)
    with pytest.raises(RecordError, match=r"labels\.json: damaged: .*; without that file the run has no labels"):
        read_labels(folder)
    with pytest.raises(RecordError):
        change_labels(folder, lambda labels: with_pin(labels, True))
    assert folder.labels_json.read_bytes() == content


def test_what_nobody_could_have_typed_is_left_out(folder: RunFolder) -> None:
    folder.labels_json.write_text('{"tags": ["ok", "\\u001b[2J", "no way"], "note": "red \\u001b[31m alert\\n", "later": 1}')
    assert read_labels(folder) == Labels(["ok"], "red [31m alert")


def test_changes_from_two_processes_at_once_are_both_kept(folder: RunFolder) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from harness.records.labels import change_labels, with_tags\nfrom harness.records.layout import RunFolder\n"
        "for n in range(12): change_labels(RunFolder(Path(sys.argv[1])), lambda labels: with_tags(labels, [f'{sys.argv[2]}{n}']))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(folder.path), name]) for name in ("a", "b")]
    assert [process.wait(60) for process in both] == [0, 0]
    assert set(read_labels(folder).tags) == {f"{name}{number}" for name in "ab" for number in range(12)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told_and_keeps_what_it_has(folder: RunFolder) -> None:
    change_labels(folder, lambda labels: with_tags(labels, ["old"]))
    folder.path.chmod(0o500)
    try:
        with pytest.raises(RecordError, match="cannot write: permission denied"):
            change_labels(folder, lambda labels: with_tags(labels, ["new"]))
        assert read_labels(folder).tags == ["old"]
    finally:
        folder.path.chmod(0o700)


def test_the_copy_of_a_run_on_a_cluster_keeps_its_labels(tmp_path: Path) -> None:
    """Whatever the other side has."""
    there, here = RunFolder(tmp_path / "there"), RunFolder(tmp_path / "here")
    for folder, tag in ((there, "theirs"), (here, "mine")):
        folder.path.mkdir()
        folder.run_json.write_text("{}")
        change_labels(folder, partial(with_tags, add=[tag]))

    def ask(question: inquiry.Question) -> inquiry.Answer:
        if isinstance(question, inquiry.GetPart):
            return part_of(there, question)
        return inquiry.Files(question.request_id, files_of(there), ended=True)

    assert Mirror(here, ask).step(1 << 20).whole
    assert read_labels(here).tags == ["mine"]
