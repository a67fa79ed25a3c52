"""A copy of a record is whole, cheap to keep up, survives being killed anywhere, and never writes where it should not."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cluster.kube.mirror import CannotCopy, Mirror, Progress
from harness.head.recordserver import files_of, part_of
from harness.records.layout import RunFolder
from harness.wire import inquiry

PLENTY = 1 << 30


class Remote:
    """The head's side, as it really serves its folder. `die_after`: so many more answers, then silence."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.ended = False
        self.sent_bytes = 0
        self.die_after: int | None = None
        self.more: list[inquiry.FileInfo] = []
        (path / "samples").mkdir(parents=True)
        (path / "attempts" / "1").mkdir(parents=True)
        (path / "logs").mkdir()
        (path / "keys").mkdir()
        (path / "keys" / "server.key").write_text("secret")
        self.write("spec.json", b"{}")
        self.write("head.json", b"the pod's")
        self.write("run.json", b'{"phase": "MEASURING"}')
        self.write("journal.jsonl", b"first\n")
        self.write("samples/000001.parquet", os.urandom(3 << 20))
        self.write("logs/head.log", b"began\n")

    def write(self, name: str, content: bytes, how: str = "wb") -> None:
        with (self.folder.path / name).open(how) as file:
            file.write(content)

    def replace(self, name: str, content: bytes) -> None:
        aside = self.folder.path / ".aside"
        aside.write_bytes(content)
        os.replace(aside, self.folder.path / name)

    def __call__(self, question: inquiry.Question) -> inquiry.Answer:
        if self.die_after is not None:
            self.die_after -= 1
            if self.die_after < 0:
                raise ConnectionError("the copy is killed here")
        if isinstance(question, inquiry.GetPart):
            answer = part_of(self.folder, question)
            self.sent_bytes += len(answer.data)
            return answer
        return inquiry.Files(question.request_id, [*files_of(self.folder), *self.more], ended=self.ended)


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path / "remote")


@pytest.fixture
def here(tmp_path: Path) -> RunFolder:
    (tmp_path / "here").mkdir()
    return RunFolder(tmp_path / "here")


def same(remote: Remote, here: RunFolder) -> bool:
    """Everything that is copied at all."""
    listed = [about.path for about in files_of(remote.folder) if about.path != "spec.json"]
    return all((here.path / name).read_bytes() == (remote.folder.path / name).read_bytes() for name in listed)


def test_all_of_a_record_is_copied_but_keys_and_what_belongs_to_a_machine(remote: Remote, here: RunFolder) -> None:
    progress = Mirror(here, remote).step(PLENTY)
    assert (progress.left, progress.whole) == (0, False)
    assert same(remote, here)
    assert sorted(path.name for path in here.path.iterdir()) == ["journal.jsonl", "logs", "run.json", "samples"]


def test_a_record_is_whole_only_once_the_run_has_ended(remote: Remote, here: RunFolder) -> None:
    mirror = Mirror(here, remote)
    assert not mirror.step(PLENTY).whole
    remote.ended = True
    assert mirror.step(PLENTY) == Progress(ended=True, copied_bytes=0, left=0, left_bytes=0)


def test_what_has_not_changed_is_not_asked_for_again(remote: Remote, here: RunFolder) -> None:
    Mirror(here, remote).step(PLENTY)
    before = remote.sent_bytes
    assert Mirror(here, remote).step(PLENTY).copied_bytes == 0
    assert remote.sent_bytes == before


def test_of_a_log_only_what_is_new_is_copied(remote: Remote, here: RunFolder) -> None:
    remote.write("logs/head.log", b"x" * 2_000_000)
    mirror = Mirror(here, remote)
    mirror.step(PLENTY)
    before = remote.sent_bytes
    remote.write("logs/head.log", b"more\n", "ab")
    assert mirror.step(PLENTY).copied_bytes == 5
    assert remote.sent_bytes - before < 10_000
    assert same(remote, here)


@pytest.mark.parametrize("content", [b"a new one, shorter\n", b"another one, and it is longer than the first was\n" * 9])
def test_a_log_whose_name_was_taken_over_is_copied_anew(remote: Remote, here: RunFolder, content: bytes) -> None:
    remote.write("logs/head.log", b"the first one of this name\n" * 3)
    mirror = Mirror(here, remote)
    mirror.step(PLENTY)
    remote.replace("logs/head.log", content)
    mirror.step(PLENTY)
    assert (here.path / "logs" / "head.log").read_bytes() == content


def test_a_file_that_is_replaced_by_one_of_the_same_size_is_copied_again(remote: Remote, here: RunFolder) -> None:
    mirror = Mirror(here, remote)
    mirror.step(PLENTY)
    remote.replace("run.json", b'{"phase": "measuring"}')
    mirror.step(PLENTY)
    assert here.run_json.read_bytes() == b'{"phase": "measuring"}'


def test_a_step_keeps_to_its_budget_and_the_next_goes_on(remote: Remote, here: RunFolder) -> None:
    for number in range(2, 6):
        remote.write(f"samples/{number:06d}.parquet", os.urandom(1 << 20))
    mirror = Mirror(here, remote)
    first = mirror.step(3 << 20)
    assert (3 << 20) <= first.copied_bytes < (5 << 20)
    assert here.run_json.exists()  # what the run is doing comes before what was measured
    assert first.left > 0
    assert first.left_bytes > 0
    steps = 1
    while mirror.step(3 << 20).left:
        steps += 1
        assert steps < 10
    assert same(remote, here)


@pytest.mark.parametrize("after", range(1, 14))
def test_a_copy_that_was_killed_anywhere_goes_on_where_it_was(remote: Remote, here: RunFolder, after: int) -> None:
    remote.write("logs/head.log", os.urandom(2 << 20))
    remote.die_after = after

    def until_killed() -> None:
        for _ in range(14):
            Mirror(here, remote).step(PLENTY)
            remote.write("logs/head.log", b"grown\n", "ab")

    with pytest.raises(ConnectionError):
        until_killed()
    remote.die_after = None
    came = remote.sent_bytes
    Mirror(here, remote).step(PLENTY)
    assert same(remote, here)
    assert remote.sent_bytes - came <= (6 << 20)
    assert not list(here.path.rglob("*.tmp"))


def test_a_file_that_goes_while_it_is_copied_is_left_for_the_next_step(remote: Remote, here: RunFolder) -> None:
    remote.more.append(inquiry.FileInfo("attempts/1/gone.json", 9, 1))
    assert Mirror(here, remote).step(PLENTY).left == 1
    remote.more.clear()
    assert Mirror(here, remote).step(PLENTY).left == 0


def test_a_head_that_cannot_tell_its_files_is_a_problem_in_words(here: RunFolder) -> None:
    def ask(question: inquiry.Question) -> inquiry.Answer:
        return inquiry.Files(question.request_id, [], problem="the head could not answer: OSError: disk")

    with pytest.raises(CannotCopy, match="disk"):
        Mirror(here, ask).step(PLENTY)


HOSTILE = [
    "../out",
    "/etc/out",
    "keys/operator.key",
    "a/../../out",
    ".hidden",
    "logs/.x",
    "",
    "spec.json",
    "logs/link.log",
    "a\\b",
]


@given(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20).map(lambda text: f"../{text}"), st.text(max_size=12)))
def test_no_path_that_a_head_may_name_leads_out_of_the_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    place = tmp_path_factory.mktemp("hostile")
    folder = RunFolder(place / "run")
    folder.path.mkdir()
    folder.keys.mkdir()
    (folder.keys / "operator.key").write_text("mine")
    folder.spec_json.write_text("mine")

    def ask(question: inquiry.Question) -> inquiry.Answer:
        if isinstance(question, inquiry.GetPart):
            return inquiry.Part(question.request_id, question.path, question.offset, b"theirs", 6, 1)
        return inquiry.Files(question.request_id, [inquiry.FileInfo(name, 6, 1)])

    with contextlib.suppress(OSError):  # a name that this system cannot have
        Mirror(folder, ask).step(PLENTY)
    assert (folder.keys / "operator.key").read_text() == "mine"
    assert folder.spec_json.read_text() == "mine"
    assert [path.name for path in place.iterdir()] == ["run"]
