"""`paceline runs`, `tag`, `note`, `pin`, `delete` and `prune`: runs found again, labelled, and no longer there."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console.cli import main, waiting
from harness.cluster.kube.linkfile import LinkFile, write_link
from harness.cluster.procinfo import start_ticks
from harness.records.labels import Labels, read_labels
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, write_run

MakeRun = Callable[..., RunFolder]
Caught = pytest.CaptureFixture[str]
T0 = 1_790_000_000.0


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def make_run(root: Path) -> MakeRun:
    """Newer than those made before it."""
    made: list[str] = []

    def make(name: str, verdict: str = "VALID", phase: str = "DONE", *, ago_s: float = 0.0, ttft_ms: float = 100.0) -> RunFolder:
        folder = RunFolder(root / name)
        folder.path.mkdir()
        attempt = AttemptRecord(
            number=1, kind="performance", scenario="Server", target_qps=50.0, epoch=1, state="ENDED", verdict=verdict,
            totals={"issued": 10, "completed": 10}, ttft_ms={"p99": ttft_ms},
        )  # fmt: skip
        began = (time.time() if ago_s else T0) - ago_s
        run = RunFile(run=name, spec={}, phase=phase, synthetic=True, started_unix=began, attempts=[attempt], verdict=verdict)
        write_run(folder.path, run)
        made.append(name)
        os.utime(folder.run_json, (T0 + len(made), T0 + len(made)))
        return folder

    return make


def listed(capsys: Caught, *tokens: str) -> list[dict[str, Any]]:
    assert main(["runs", *tokens, "--json"]) == 0
    return list(json.loads(capsys.readouterr().out))


def names(capsys: Caught, *tokens: str) -> list[str]:
    return [row["run"] for row in listed(capsys, *tokens)]


# --- labels ------------------------------------------------------------------------------------------------


def test_labels_are_written_shown_and_taken_off(make_run: MakeRun, capsys: Caught) -> None:
    folder = make_run("mine-1")
    assert main(["tag", "mine", "baseline", "h200"]) == 0
    assert main(["note", "mine", "the", "one to beat"]) == 0
    assert main(["pin", "mine"]) == 0
    assert "mine-1: tags baseline h200; note the one to beat; pinned" in capsys.readouterr().out
    assert main(["tag", "mine", "h200", "--remove", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": "mine-1", "tags": ["baseline"], "note": "the one to beat", "pinned": True,
    }  # fmt: skip
    assert (
        main(["note", "mine", "--clear"]) == main(["pin", "mine", "--off"]) == main(["tag", "mine", "BASELINE", "--remove"]) == 0
    )
    assert read_labels(folder) == Labels()
    capsys.readouterr()
    assert main(["note", "mine"]) == 0
    assert capsys.readouterr().out == "mine-1: no tags, no note, not pinned\n"


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["tag", "mine", "a b"], "mine-1: 'a b' is not a tag: 1 to 40 letters"),
        (["tag", "mine", "--remove"], "--remove needs the TAGs"),
        (["tag", "", "x"], "RUN is empty"),
        (["note", "mine", "x", "--clear"], "TEXT or --clear, not both"),
        (["note", "mine", "x" * 2001], "at most 2,000 characters"),
        (["pin", "other"], "no run named 'other'"),
        (["runs", "colour>3"], "runs: colour>3: compare one of qps, target"),
        (["runs", "tag:"], "runs: tag:: a word is missing behind tag:, as in tag:baseline"),
        (["runs", "--tag", "a|b"], "runs: 'a|b' is not a tag"),
        (["runs", "--sort", "speed"], "runs: no order 'speed'; there are when, name"),
        (["runs", "--json", "--csv"], "--json or --csv, not both"),
        (["delete", ""], "RUN is empty"),
        (["delete", "mine-1"], "there is no terminal to ask on; --yes deletes without asking"),
        (["delete", "mine", "--yes"], "--yes takes whole names: 'mine' is part of mine-1"),
        (["delete", "other", "--yes"], "delete: no run named 'other'"),
        (["delete", "..", "--yes"], "delete: no run named '..'"),
        (["prune"], "say what may go: --keep N, --older-than 30d, or both"),
        (["prune", "--older-than", "soon"], "--older-than 'soon' is not an age: 12h, 30d or 8w"),
        (["prune", "--keep=-1"], "--keep -1 must be 0 or more"),
    ],
)
def test_bad_input_is_told_and_changes_nothing(make_run: MakeRun, capsys: Caught, tokens: list[str], said: str) -> None:
    folder = make_run("mine-1")
    assert main(tokens) == 2
    caught = capsys.readouterr()
    assert said in caught.err
    assert folder.run_json.exists()
    assert not folder.labels_json.exists()


def test_damaged_labels_are_told_and_never_lose_the_run(make_run: MakeRun, capsys: Caught) -> None:
    folder = make_run("mine-1")
    folder.labels_json.write_text("{")
    assert main(["runs"]) == 0
    caught = capsys.readouterr()
    assert "mine-1" in caught.out
    assert "mine-1: labels.json damaged" in caught.err
    assert main(["pin", "mine-1"]) == 3
    assert "without that file the run has no labels" in capsys.readouterr().err
    assert main(["delete", "mine-1", "--yes"]) == 1
    assert "whether it is pinned cannot be read" in capsys.readouterr().err
    assert folder.run_json.exists()
    assert main(["show", "mine-1", "--json"]) == 0
    assert any("labels.json: damaged" in problem for problem in json.loads(capsys.readouterr().out)["problems"])


# --- listing -----------------------------------------------------------------------------------------------


@pytest.fixture
def some_runs(make_run: MakeRun) -> None:
    for name, verdict, ttft_ms in (("old-1", "VALID", 100.0), ("slow-2", "INVALID", 900.0), ("new-3", "VALID", 120.0)):
        make_run(name, verdict, ttft_ms=ttft_ms)
    main(["tag", "old-1", "Baseline"])
    main(["note", "slow-2", "not valid: warm-up"])
    main(["pin", "new-3"])


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([], ["new-3", "slow-2", "old-1"]),
        (["valid"], ["new-3", "old-1"]),
        (["tag:baseline"], ["old-1"]),
        (["--tag", "BASELINE"], ["old-1"]),
        (["--tag", "baseline", "--tag", "other"], []),
        (["!tag:baseline"], ["new-3", "slow-2"]),
        (["pinned|base"], ["new-3", "old-1"]),
        (["note:warm"], ["slow-2"]),
        (["size>1"], ["new-3", "slow-2", "old-1"]),
        (["ttft<0.5s", "!pinned"], ["old-1"]),
        (["--sort", "ttft"], ["slow-2", "new-3", "old-1"]),
        (["--sort", "name", "--reverse"], ["slow-2", "old-1", "new-3"]),
    ],
)
def test_runs_are_found_by_the_filter_of_the_console(
    some_runs: None, capsys: Caught, tokens: list[str], found: list[str]
) -> None:
    capsys.readouterr()
    assert names(capsys, *tokens) == found


def test_labels_and_disk_use_stand_in_the_table_and_in_csv(some_runs: None, root: Path, capsys: Caught) -> None:
    capsys.readouterr()
    assert main(["runs", "--size"]) == 0
    out = capsys.readouterr().out
    for expected in ("pinned synthetic", "#Baseline", "not valid: warm-up", " size", "3 runs, ", "are free on that disk"):
        assert expected in out
    (row,) = listed(capsys, "old", "--size")
    assert row["size_bytes"] == sum(path.stat().st_size for path in (root / "old-1").iterdir())
    assert (row["completed"], row["tags"], row["pinned"]) == (10, ["Baseline"], False)
    assert main(["runs", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["run"], row["tags"], row["note"]) for row in rows[1:]] == [
        ("slow-2", "", "not valid: warm-up"), ("old-1", "Baseline", ""),
    ]  # fmt: skip


def test_what_takes_long_is_told(some_runs: None, capsys: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SILENT_S", 0.0)
    capsys.readouterr()
    with waiting.told_if_slow("adding up"):
        time.sleep(0.2)
    assert capsys.readouterr().err == "adding up …\n"


# --- deleting ----------------------------------------------------------------------------------------------


def test_deleted_runs_are_gone_and_the_others_are_not(make_run: MakeRun, root: Path, capsys: Caught) -> None:
    for name in ("a-1", "b 2 [x]", "c-3"):
        make_run(name)
    assert main(["delete", "a-1", "b 2 [x]", "a-1", "--json"]) == 0
    meant = json.loads(capsys.readouterr().out)
    assert ([row["run"] for row in meant["meant"]], meant["deleted"]) == (["a-1", "b 2 [x]"], [])
    assert main(["delete", "a-1", "b 2 [x]", "--yes", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in done["deleted"]] == ["a-1", "b 2 [x]"]
    assert (done["refused"], done["problems"]) == ([], [])
    assert [path.name for path in root.iterdir()] == ["c-3"]


def test_a_folder_without_run_json_can_be_deleted_as_well(root: Path) -> None:
    (root / "never-began").mkdir()
    (root / "never-began" / "spec.json").write_text("{}")
    assert main(["delete", "never-began", "--yes"]) == 0
    assert list(root.iterdir()) == []


def test_when_one_must_stay_all_do_and_force_overrules_only_the_pin(make_run: MakeRun, root: Path, capsys: Caught) -> None:
    make_run("a-1")
    kept, live = make_run("kept-2"), make_run("live-3", "", "MEASURING")
    main(["pin", "kept-2"])
    live.head_json.write_text(json.dumps({"pid": os.getpid(), "ticks": start_ticks(os.getpid())}))
    assert main(["delete", "a-1", "kept-2", "--yes"]) == 1
    said = capsys.readouterr().err
    assert "kept-2 is not deleted: it is pinned" in said
    assert "nothing was deleted" in said
    assert main(["delete", "live-3", "--yes", "--force", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["refused"][0]["why"].startswith("it goes on; `")
    assert len(list(root.iterdir())) == 3
    assert main(["delete", "a-1", "kept-2", "--yes", "--force"]) == 0
    assert not kept.path.exists()
    assert live.run_json.exists()


def test_workers_without_a_head_keep_their_run(make_run: MakeRun, capsys: Caught) -> None:
    folder = make_run("mine-1", "", "MEASURING")
    worker = {"name": "w000", "nodes": [0], "pid": os.getpid(), "ticks": start_ticks(os.getpid())}
    folder.workers_json.write_text(json.dumps([worker]))
    assert main(["delete", "mine-1", "--yes", "--force"]) == 1
    assert "1 of its worker processes live; `" in capsys.readouterr().err
    assert folder.run_json.exists()


def test_a_run_with_objects_on_a_cluster_stays_until_they_are_gone(make_run: MakeRun, capsys: Caught) -> None:
    folder = make_run("mine-1")
    folder.spec_json.write_text('{"cluster": {"kind": "kubernetes"}}')
    write_link(folder, LinkFile("whole"))
    assert main(["delete", "mine-1", "--yes"]) == 1
    assert "clean-up mine-1` shows and removes them" in capsys.readouterr().err
    write_link(folder, LinkFile("whole", cleaned=True))
    assert main(["delete", "mine-1", "--yes"]) == 0
    assert not folder.path.exists()


def test_a_terminal_is_asked_and_told_what_would_go(make_run: MakeRun, root: Path) -> None:
    folder = make_run("mine-1", "INVALID")
    main(["tag", "mine-1", "baseline"])
    code = (
        "import os, pty, sys\n"
        "answers = [sys.argv[1].encode() + b'\\n']\n"
        "sys.exit(pty.spawn([sys.executable, '-m', 'console.cli', 'delete', 'mine'], os_read := lambda fd: os.read(fd, 1024), "
        "lambda fd: answers.pop(0) if answers else os.read(fd, 1024)) >> 8)"
    )
    for answer, gone in (("n", False), ("y", True)):
        done = subprocess.run(
            [sys.executable, "-c", code, answer], stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60, check=False
        )
        for expected in ("mine-1", "INVALID", "#baseline", "is deleted for good"):
            assert expected in done.stdout, done.stdout
        assert folder.path.exists() is not gone
        assert done.returncode == (0 if gone else 1)


def test_what_a_kill_has_left_is_listed_and_removed(make_run: MakeRun, root: Path, capsys: Caught) -> None:
    folder = make_run("mine-1")
    (root / ".deleted").mkdir()
    folder.path.rename(root / ".deleted" / "mine-1.17")
    assert main(["runs"]) == 0
    assert "the deletion of 1 run was cut short" in capsys.readouterr().out
    assert main(["delete"]) == 0
    assert "the rest of 1 run is deleted" in capsys.readouterr().out
    assert list(root.iterdir()) == []
    assert main(["delete"]) == 0
    assert "no deletion was cut short" in capsys.readouterr().out


def test_pruning_keeps_the_newest_and_all_that_somebody_wants(make_run: MakeRun, root: Path, capsys: Caught) -> None:
    day_s = 86_400.0
    for number, days in enumerate((50, 40, 30, 20, 10)):
        make_run(f"run-{number}", ago_s=days * day_s)
    main(["tag", "run-0", "baseline"])
    make_run("going", "", "MEASURING", ago_s=60 * day_s)
    capsys.readouterr()
    assert main(["prune", "--keep", "1", "--older-than", "35d", "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)["meant"]] == ["run-1"]
    assert main(["prune", "--keep", "2", "--yes"]) == 0
    assert sorted(path.name for path in root.iterdir()) == ["going", "run-0", "run-3", "run-4"]
    capsys.readouterr()
    assert main(["prune", "--keep", "2", "--yes"]) == 0
    assert "nothing to delete" in capsys.readouterr().out
