"""`paceline attach` without a screen, on records; what is refused; and `paceline keys`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from console.cli import main
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, write_run
from harness.records.writer import RecordWriter
from harness.spec import RunSpec
from harness.wire.attempt import SAMPLE_DTYPE

SPEC = RunSpec.model_validate({"name": "mine", "limits": {"ttft_p99_ms": 80.0}, "fleet": {"nodes": 1, "replicas_per_node": 2}})

MakeRun = Callable[..., RunFolder]
Caught = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    root.mkdir()
    monkeypatch.setenv("PACELINE_RUNS", str(root))
    monkeypatch.setenv("PACELINE_CONFIG", str(tmp_path / "console.toml"))
    (tmp_path / "console.toml").write_text("")
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    return root


@pytest.fixture
def make_run(runs: Path) -> MakeRun:
    """A record as a head leaves it: two replicas, ten samples of 100 ms TTFT and 10 ms TPOT, an act in the journal."""

    def make(name: str = "mine-1", phase: str = "DONE", verdict: str = "INVALID", *, samples: bool = True) -> RunFolder:
        folder = RunFolder(runs / name)
        folder.path.mkdir()
        attempt = AttemptRecord(
            number=1, kind="performance", scenario="Server", target_qps=50.0, epoch=1, started_unix=1e9, ended_unix=1e9 + 60,
            state="ENDED", verdict=verdict, reasons=["TTFT p99 100 ms is over the limit of 80 ms"], acts=1,
            totals={"issued": 10, "completed": 10}, ttft_ms={"p50": 100.0, "p99": 100.0}, tpot_ms={"p99": 10.0},
            results={"completed_qps": 26.3, "ttft_p99_ms": 100.0, "tpot_p99_ms": 10.0},
        )  # fmt: skip
        spec = json.loads(SPEC.model_dump_json())
        run = RunFile(run=name, spec=spec, phase=phase, synthetic=True, started_unix=1e9, attempts=[attempt], verdict=verdict)
        write_run(folder.path, run)
        entry = {"seq": 1, "unix": 1e9, "who": "operator:kim@desk", "what": "act.drain", "subject": "node000/gpu0", "why": "hot"}
        folder.journal.write_text(json.dumps(entry | {"type": "JournalEntry", "level": "warn"}) + "\n")
        if samples:
            _write_samples(folder)
        return folder

    return make


def _write_samples(folder: RunFolder) -> None:
    rows = np.zeros(10, SAMPLE_DTYPE)
    rows["seq"], rows["slot"], rows["tries"], rows["n_tokens"] = np.arange(10), np.arange(10) % 2, 1, 11
    rows["scheduled_ns"] = rows["issued_ns"] = rows["dispatched_ns"] = np.arange(10) * 20_000_000
    rows["first_ns"] = rows["scheduled_ns"] + 100_000_000
    rows["done_ns"] = rows["first_ns"] + 100_000_000
    writer = RecordWriter(folder)
    writer.samples(1, 1, rows, ["node000/gpu0", "node000/gpu1"])
    writer.flush()


# --- ended runs --------------------------------------------------------------------------------------------


def test_once_prints_the_live_screen_of_an_ended_run_as_text(make_run: MakeRun, capsys: Caught) -> None:
    make_run()
    assert main(["attach", "mine", "--once"]) == 0
    out = capsys.readouterr().out
    for expected in ("mine-1  SYNTHETIC  DONE", "INVALID  ACTS 1", "over the limit of 80 ms", "100 ms  over", "2 STOPPED"):
        assert expected in out
    assert "\x1b" not in out


@pytest.mark.parametrize("how", [["--once"], ["--json"], ["--plain"]])
def test_a_record_that_cannot_be_read_is_told_once_and_not_as_a_head_to_come(
    make_run: MakeRun, capsys: Caught, how: list[str]
) -> None:
    folder = make_run()
    run = json.loads(folder.run_json.read_text())
    run["spec"]["limits"]["ttft_p99_ms"] = "low"
    folder.run_json.write_text(json.dumps(run))
    assert main(["attach", "mine", *how]) == 3
    said = capsys.readouterr().err
    assert said.count("spec.limits.ttft_p99_ms") == 1
    assert "no head has started" not in said


@pytest.mark.parametrize("screen", ["live", "fleet", "nodes", "sla", "events"])
def test_every_screen_has_a_page_and_an_object(make_run: MakeRun, capsys: Caught, screen: str) -> None:
    make_run()
    assert main(["attach", "--once", "--screen", screen]) == 0
    page = capsys.readouterr().out
    assert page.startswith("mine-1")
    assert main(["attach", "--json", "--screen", screen]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["screen"], found["run"], found["link"], found["heard_s_ago"]) == (screen, "mine-1", "ended", None)
    assert any(found["tables"].values())


def test_a_page_is_as_wide_as_columns_say(make_run: MakeRun, capsys: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run()
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["attach", "--once", "--screen", "fleet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 60 and "record /" not in line] == []


def test_the_fleet_of_an_ended_run_has_the_figures_of_its_record(make_run: MakeRun, capsys: Caught) -> None:
    make_run()
    assert main(["attach", "--json", "--screen", "fleet", "--filter", "g1", "--sort", "ttft"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["tables"]["replicas"]
    assert (row["slot"], row["samples"], row["ttft_p99_ms"], row["tpot_p99_ms"]) == ("node000/gpu1", 5, 100.0, 10.0)


def test_a_record_without_samples_still_has_its_fleet(make_run: MakeRun, capsys: Caught) -> None:
    make_run(samples=False)
    assert main(["attach", "--json", "--screen", "fleet"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["replicas"]
    assert [(row["slot"], row["ttft_p99_ms"]) for row in rows] == [("node000/gpu0", None), ("node000/gpu1", None)]


@pytest.mark.parametrize(("phase", "verdict", "code"), [("DONE", "VALID", 0), ("DONE", "INVALID", 1), ("FAILED", "CRASHED", 3)])
def test_following_an_ended_run_ends_with_its_exit_code(
    make_run: MakeRun, capsys: Caught, phase: str, verdict: str, code: int
) -> None:
    make_run(phase=phase, verdict=verdict)
    assert main(["attach", "--plain"]) == code
    assert f"The run has ended, phase {phase}: attempt 1 {verdict}" in capsys.readouterr().out
    assert main(["attach", "--json", "--follow"]) == code
    assert json.loads(capsys.readouterr().out)["phase"] == phase


def test_a_run_without_a_head_is_shown_and_said_to_be_without_one(make_run: MakeRun, capsys: Caught) -> None:
    folder = make_run(phase="MEASURING", verdict="")
    folder.head_json.write_text(
        json.dumps({"control": "tcp://127.0.0.1:1", "telemetry": "tcp://127.0.0.1:2", "pid": 2**22 + 1, "epoch": 1})
    )
    for how in (["--once"], ["--plain"], ["--json"], ["--json", "--follow"]):
        assert main(["attach", "mine", *how]) == 1, how
        caught = capsys.readouterr()
        assert "mine-1" in caught.out
        assert "head gone; `" in caught.err
        assert "restart-head mine-1" in caught.err


def test_without_a_name_the_newest_run_is_meant(make_run: MakeRun, capsys: Caught) -> None:
    make_run("mine-1")
    make_run("mine-2")
    os.utime(os.environ["PACELINE_RUNS"] + "/mine-2", (2e9, 2e9))
    assert main(["attach", "--once"]) == 0
    assert capsys.readouterr().out.startswith("mine-2")


def test_twins_start_without_the_screen_library(make_run: MakeRun) -> None:
    make_run()
    code = "import sys; from console.cli import main; main(['attach', '--once']); print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "False"


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["--plain", "--once"], "use one or the other"),
        (["--plain", "--json"], "use one or the other"),
        (["--follow"], "--follow goes with --json"),
        (["--once", "--json", "--follow"], "use one or the other"),
        (["--screen", "sla"], "--screen goes with --once or --json"),
        (["--plain", "--screen", "sla"], "--screen goes with --once or --json"),
        (["--once", "--every", "3"], "--every is the time between the status sentences of --plain"),
        (["--plain", "--every", "0"], "--every 0 must be more than 0"),
        (["--once", "--filter", "slow"], "--filter and --sort go with --screen fleet"),
        (["--once", "--screen", "fleet", "--filter", "z>>3"], "--filter: "),
        (["--once", "--screen", "fleet", "--sort", "speed"], "--sort: no column 'speed' to sort by; there are worst, slot"),
        (["--once", "--screen", "replica"], "--screen replica and --slot NODE/GPU go together"),
        (["--once", "--slot", "node000/gpu0"], "--screen replica and --slot NODE/GPU go together"),
        (
            ["--once", "--screen", "replica", "--slot", "node9/gpu9"],
            "has no replica 'node9/gpu9'; it has node000/gpu0 to node000/gpu1",
        ),
        (["--once", "--screen", "sky"], "sky"),
        (["--fps", "3"], "3"),
        ([], "needs a terminal"),
    ],
)
def test_what_does_not_go_together_is_refused_in_words(make_run: MakeRun, capsys: Caught, tokens: list[str], said: str) -> None:
    make_run()
    assert main(["attach", "mine", *tokens]) == 2
    caught = capsys.readouterr()
    assert said in caught.err
    assert caught.out == ""


def test_no_run_at_all_is_told(capsys: Caught) -> None:
    assert main(["attach", "--once"]) == 2
    assert "no runs in" in capsys.readouterr().err


def _on_a_terminal(tokens: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """In a pseudo terminal, as a person has it."""
    code = f"import pty, sys; sys.exit(pty.spawn([sys.executable, '-m', 'console.cli', *{tokens!r}]) >> 8)"
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60, "stdin": subprocess.DEVNULL}
    return subprocess.run([sys.executable, "-c", code], env=os.environ | environ, check=False, **how)


def test_bold_is_for_terminals_that_have_it(make_run: MakeRun) -> None:
    make_run()
    assert "\x1b[1m" in _on_a_terminal(["attach", "--once"], TERM="xterm", NO_COLOR="").stdout
    assert "\x1b" not in _on_a_terminal(["attach", "--once"], TERM="dumb").stdout
    assert "\x1b" not in _on_a_terminal(["attach", "--once"], TERM="xterm", NO_COLOR="1").stdout


def test_a_console_is_refused_on_a_terminal_that_cannot_draw(runs: Path) -> None:
    done = _on_a_terminal(["run", "demo"], TERM="dumb")
    assert done.returncode == 2
    assert "TERM=dumb cannot: use `--no-console`" in done.stdout
    assert list(runs.iterdir()) == []


def test_an_unknown_theme_is_refused_before_a_run_is_made(runs: Path) -> None:
    done = _on_a_terminal(["run", "demo", "--theme", "paceline-drak"], TERM="xterm")
    assert done.returncode == 2
    assert "did you mean paceline-dark?" in done.stdout
    assert list(runs.iterdir()) == []


# --- keys --------------------------------------------------------------------------------------------------


def test_keys_lists_every_action_with_the_users_own_keys(capsys: Caught, tmp_path: Path) -> None:
    (tmp_path / "console.toml").write_text('[keys]\nevict = "ctrl+k"\n')
    assert main(["keys"]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "Evict replica" in line)
    assert line.split()[0] == "^k"
    assert "(yours)" in line
    assert str(tmp_path / "console.toml") in out


def test_keys_as_json_and_as_a_key_map(capsys: Caught) -> None:
    assert main(["keys", "--json"]) == 0
    found = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert (found["evict"]["keys"], found["evict"]["acts"], found["evict"]["command"]) == (["e"], True, "evict")
    assert main(["keys", "--toml"]) == 0
    assert tomllib.loads(capsys.readouterr().out) == {"keys": {}}
    assert main(["keys", "--toml", "--json"]) == 2


def test_a_key_map_with_a_fault_is_told_and_fails(capsys: Caught, tmp_path: Path) -> None:
    (tmp_path / "console.toml").write_text('[keys]\nevict = "d"\n')
    assert main(["keys"]) == 1
    assert "keys.evict = 'd' is the key of drain already" in capsys.readouterr().err
