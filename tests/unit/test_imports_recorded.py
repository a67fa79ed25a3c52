"""Paceline runs from elsewhere: folders and archives, taken over without what is secret, alive or pointing outside."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from made_run import Made, make_run

from harness.imports.errors import ImportProblem
from harness.imports.importing import import_run
from harness.records.layout import list_runs
from harness.records.reader import Record, summarise
from harness.records.runfile import read_run, write_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_run(tmp_path_factory.mktemp("from"), Made(name="made-1", seconds=4, qps=50))
    (path / "keys").mkdir()
    (path / "keys" / "server.key").write_text("secret")
    (path / "lock").write_text("1\n")
    (path / "head.json").write_text("{}")
    (path / "workers.json").write_text("[]")
    (path / "outside").symlink_to("/etc/passwd")
    (path / "logs").mkdir(exist_ok=True)
    (path / "logs" / "folder").symlink_to("/etc")
    return path


def _taken_over(folder: Path) -> None:
    there = {path.name for path in folder.iterdir()}
    assert there & {"keys", "lock", "head.json", "workers.json", "outside"} == set()
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    assert summarise(Record(folder), 1).totals["completed"] == 200


def test_a_folder_is_copied_without_keys_and_links_and_never_over_another(recorded: Path, tmp_path: Path) -> None:
    first = import_run(recorded, tmp_path / "runs")
    second = import_run(recorded / "run.json", tmp_path / "runs")
    assert (first.folder.name, second.folder.name) == ("made-1", "made-1-2")
    _taken_over(first.folder.path)
    assert read_run(second.folder.path).run == "made-1-2"
    assert any("keys" in line for line in first.told.left_out)
    assert any("a link" in line for line in first.told.left_out)
    assert [run.name for run in list_runs(tmp_path / "runs")] == ["made-1-2", "made-1"]
    assert import_run(recorded, tmp_path / "runs", name="mine").run.run == "mine"


@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
def test_an_archive_is_unpacked_inside_its_folder_only(recorded: Path, tmp_path: Path, ending: str) -> None:
    archive = tmp_path / f"some.{ending}"
    names = [(path, path.relative_to(recorded.parent).as_posix()) for path in recorded.rglob("*")]
    if ending == "zip":
        with zipfile.ZipFile(archive, "w") as opened:
            for path, name in names:
                if path.is_file() and not path.is_symlink():
                    opened.write(path, name)
            opened.writestr("../escaped", "x")
            opened.writestr("/tmp/paceline-escaped", "x")
    else:
        with tarfile.open(archive, "w:gz") as packed:
            for path, name in names:
                packed.add(path, name, recursive=False)
            for name in ("../escaped", "/tmp/paceline-escaped", "made-1/../../escaped"):
                packed.addfile(tarfile.TarInfo(name), io.BytesIO())
    made = import_run(archive, tmp_path / "runs")
    assert made.folder.name == "made-1"
    _taken_over(made.folder.path)
    assert sum("leads out of the folder" in line for line in made.told.left_out) >= 2
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "runs" / "escaped").exists()
    assert not os.path.exists("/tmp/paceline-escaped")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["made-1"]


def test_an_archive_that_ends_early_gives_what_it_has_or_says_that_it_has_nothing(recorded: Path, tmp_path: Path) -> None:
    archive = tmp_path / "some.tar"
    with tarfile.open(archive, "w") as packed:
        packed.add(recorded / "run.json", "r/run.json")
        packed.add(recorded / "samples", "r/samples")
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    made = import_run(archive, tmp_path / "runs")
    assert any("is damaged" in line for line in made.told.missing)
    archive.write_bytes(whole[:700])
    with pytest.raises(ImportProblem):
        import_run(archive, tmp_path / "runs")


def test_a_run_that_went_on_is_ended_as_it_stood(recorded: Path, tmp_path: Path) -> None:
    going = shutil.copytree(recorded, tmp_path / "going", symlinks=True)
    run = read_run(going)
    run.phase, run.verdict, run.ended_unix = "RUNNING", "", 0.0
    run.attempts[0].state, run.attempts[0].verdict, run.attempts[0].totals = "issuing", "", {"issued": 210}
    write_run(going, run)
    made = import_run(going, tmp_path / "runs")
    kept = read_run(made.folder.path)
    assert (kept.phase, kept.verdict, kept.attempts[0].verdict) == ("ABORTED", "ABORTED", "ABORTED")
    assert kept.attempts[0].totals["lost"] == 10
    assert "was going on (phase RUNNING)" in kept.reasons[0]


def test_damage_is_told_at_once(recorded: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(recorded, tmp_path / "broken", symlinks=True)
    chunk = sorted((broken / "samples").iterdir())[0]
    chunk.write_bytes(chunk.read_bytes()[:100])
    assert "damaged" in import_run(broken, tmp_path / "runs").problems[0]
    (broken / "run.json").write_bytes(b'{"run": 1}')
    with pytest.raises(ImportProblem, match=r"not a run record.*a run is not imported without it"):
        import_run(broken, tmp_path / "runs")


def test_a_killed_import_leaves_no_run_and_the_next_one_clears_up(recorded: Path, tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from harness.imports.importing import import_run\n"
        "def killed(what, done, total):\n"
        "    os.kill(os.getpid(), 9)\n"
        "import_run(Path(sys.argv[1]), Path(sys.argv[2]), progress=killed)"
    )
    child = subprocess.run([sys.executable, "-c", program, str(recorded), str(tmp_path / "runs")], timeout=60, check=False)
    assert child.returncode == -9
    assert list_runs(tmp_path / "runs") == []
    assert len(list((tmp_path / "runs").iterdir())) == 1
    import_run(recorded, tmp_path / "runs")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["made-1"]


def test_what_is_no_run_is_told_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"x")
    with pytest.raises(ImportProblem, match=r"neither a Paceline run .*it has cat.jpg"):
        import_run(tmp_path / "photos", tmp_path / "runs")
    with pytest.raises(ImportProblem, match="No such file"):
        import_run(tmp_path / "nothing", tmp_path / "runs")
    with pytest.raises(ImportProblem, match=r"has no run.json"):
        import_run(tmp_path / "photos", tmp_path / "runs", kind="run")
    for name in ("", "../up", ".hidden", "a/b", "x" * 101):
        with pytest.raises(ImportProblem, match="is no name for a run"):
            import_run(tmp_path / "photos", tmp_path / "runs", name=name)
