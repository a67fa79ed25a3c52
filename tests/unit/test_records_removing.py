"""Deleting runs: out of sight at once or not at all, whatever ends the process, and never under a head."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.errors import RecordError
from harness.records.layout import RunFolder, list_runs
from harness.records.lock import folder_lock
from harness.records.removing import GoesOn, remove_rest, rests, set_aside


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return a_run(tmp_path, "mine-1")


def a_run(root: Path, name: str) -> RunFolder:
    folder = RunFolder(root / name)
    folder.samples.mkdir(parents=True)
    folder.run_json.write_text("{}")
    for number in range(5):
        (folder.samples / f"{number:06d}.parquet").write_bytes(b"PAR1")
    return folder


def test_a_deleted_run_is_gone_with_all_its_files_and_nothing_else_is(folder: RunFolder, tmp_path: Path) -> None:
    other = a_run(tmp_path, "other")
    aside = set_aside(folder)
    assert [run.name for run in list_runs(tmp_path)] == ["other"]
    assert rests(tmp_path) == [aside]
    assert remove_rest(tmp_path) == []
    assert list(tmp_path.iterdir()) == [other.path]


@pytest.mark.parametrize("name", ["with blanks [x]*", "ümläut-日本", "-rf", ".hidden", "x" * 250, "日" * 84, b"\xff\xfe".decode("utf-8", "surrogateescape")])  # fmt: skip # noqa: E501
def test_names_with_odd_characters_are_deleted_like_others(tmp_path: Path, name: str) -> None:
    set_aside(a_run(tmp_path, name))
    assert remove_rest(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_kill_in_the_middle_leaves_no_half_run_and_the_next_deletion_finishes_it(folder: RunFolder, tmp_path: Path) -> None:
    code = (
        "import os, shutil, signal, sys\nfrom pathlib import Path\n"
        "def half(path):\n    next((path / 'samples').iterdir()).unlink()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "shutil.rmtree = half\nfrom console.cli import main\nmain(['delete', 'mine-1', '--yes'])"
    )
    environ = os.environ | {"PACELINE_RUNS": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list_runs(tmp_path) == []
    (rest,) = rests(tmp_path)
    assert len(list((rest / "samples").iterdir())) == 4
    set_aside(a_run(tmp_path, "mine-1"))  # of the same name
    assert remove_rest(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_held_stays_whole(folder: RunFolder, tmp_path: Path) -> None:
    with folder_lock(folder), pytest.raises(GoesOn, match=f"held by the head with process {os.getpid()}"):
        set_aside(folder)
    assert len(list(folder.samples.iterdir())) == 5
    assert not (tmp_path / ".deleted").exists()


def test_a_link_to_a_run_is_not_followed(folder: RunFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "linked").symlink_to(folder.path)
    with pytest.raises(RecordError, match=r"is a link to .*mine-1: delete the run there"):
        set_aside(RunFolder(elsewhere / "linked"))
    assert folder.run_json.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_not_be_written_is_told_and_stays(folder: RunFolder, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RecordError, match="cannot delete: permission denied"):
            set_aside(folder)
        assert folder.run_json.exists()
    finally:
        tmp_path.chmod(0o700)
    folder.samples.chmod(0o500)
    set_aside(folder)
    try:
        (problem,) = remove_rest(tmp_path)
        assert "cannot delete: permission denied" in problem
        assert list_runs(tmp_path) == []
    finally:
        (rests(tmp_path)[0] / "samples").chmod(0o700)
