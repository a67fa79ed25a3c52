"""How a run that is followed to its end becomes an exit code, and what leaving the console says while it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from console.cli import follow, main, start
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, write_run


def ended(root: Path, phase: str, verdict: str, *acts: str) -> RunFolder:
    """A run whose head is gone."""
    folder = RunFolder(root / "mine-1")
    folder.path.mkdir(parents=True)
    attempt = AttemptRecord(1, "performance", "Server", 50.0, 1, state="ENDED", verdict=verdict)
    write_run(folder.path, RunFile(run="mine-1", spec={}, phase=phase, synthetic=True, verdict=verdict, attempts=[attempt]))
    lines = [
        {"type": "JournalEntry", "seq": n, "unix": 1e9, "who": "operator:kim", "what": what} for n, what in enumerate(acts, 1)
    ]
    folder.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("phase", "verdict", "code"),
    [
        ("DONE", "VALID", 0), ("DONE", "EXPLORATION", 0), ("DONE", "INVALID", 1), ("DONE", "SUPERSEDED", 1),
        ("ABORTED", "ABORTED", 1), ("FAILED", "CRASHED", 3), ("MEASURING", "", 3),
    ],
)  # fmt: skip
def test_following_a_run_ends_with_the_exit_code_of_its_verdict(
    phase: str, verdict: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ended(tmp_path, phase, verdict)
    assert start._watch(folder, no_console=True, as_json=True) == code
    assert json.loads(capsys.readouterr().out)["verdict"] == (verdict or "CRASHED")


def test_bad_input_is_2_and_a_run_that_cannot_start_is_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    assert main(["run", "demo", "--no-console", "-s", "load.target_qps=fast"]) == 2
    assert main(["run", "demo", "--no-console", "-s", "record.min_free_gb=1e9"]) == 3


def test_a_stop_that_the_console_has_asked_for_is_not_asked_for_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ended(tmp_path, "ABORTED", "ABORTED", "act.stop")
    assert follow.stop_and_follow(folder, "stopped on leaving the console")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("mine-1 is stopping")


def test_a_second_ctrl_c_leaves_a_record_that_says_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ended(tmp_path, "MEASURING", "")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(follow, "_until_ended", interrupted)
    assert start._watch(folder, no_console=True, as_json=True) == 1
    caught = capsys.readouterr()
    assert json.loads(caught.out)["verdict"] == "ABORTED"
    assert "second Ctrl-C: all processes of the run were ended at once" in caught.err
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    assert main(["status"]) == 0
    assert "mine-1: ABORTED" in capsys.readouterr().out


def test_an_address_nobody_can_listen_on_is_bad_input_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    assert main(["run", "demo", "--no-console", "-s", "cluster.bind=nowhere77"]) == 2
    assert "cluster.bind: 'nowhere77' cannot be listened on" in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("*"))


def test_a_file_where_runs_should_be_kept_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "taken"))
    assert main(["run", "demo", "--no-console"]) == 2
    assert "PACELINE_RUNS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["fleet.python=/nowhere/python"], "fleet.python = /nowhere/python: no such program"),
        (["fleet.python=/bin/false"], "fleet.python = /bin/false: exit status 1"),
    ],
)
def test_an_engine_that_cannot_start_here_is_bad_input_before_there_is_a_run(
    overrides: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "runs"))
    given = [word for override in overrides for word in ("-s", override)]
    assert main(["run", "demo", "--no-console", *given]) == 2
    assert told in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("*"))
