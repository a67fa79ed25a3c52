"""The command line as a person or a script meets it: help, listings, results from records, refusals and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from console.cli import main
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, write_run
from harness.records.writer import RecordWriter
from harness.wire.attempt import SAMPLE_DTYPE

SLOTS = ["node000/gpu0", "node000/gpu1"]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    monkeypatch.setenv("PACELINE_RUNS", str(root))
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    return root


MakeRun = Callable[..., RunFolder]


@pytest.fixture
def make_run(runs: Path) -> MakeRun:
    """A record as a head leaves it: run.json, ten samples of 100 ms TTFT and 10 ms TPOT, a journal with one act."""

    def make(name: str = "mine-1", verdict: str = "VALID", phase: str = "DONE", samples: int = 10) -> RunFolder:
        folder = RunFolder(runs / name)
        folder.path.mkdir(parents=True)
        attempt = AttemptRecord(
            number=1, kind="performance", scenario="Server", target_qps=50.0, epoch=1, started_unix=1e9, ended_unix=1e9 + 60,
            state="ENDED", verdict=verdict, totals={"issued": samples, "completed": samples}, ttft_ms={"p99": 100.0},
        )  # fmt: skip
        reasons = ["TTFT p99 was over its limit"] if verdict == "INVALID" else []
        run = RunFile(
            run=name, spec={}, phase=phase, synthetic=True, started_unix=1e9, attempts=[attempt], verdict=verdict, reasons=reasons
        )
        write_run(folder.path, run)
        rows = np.zeros(samples, SAMPLE_DTYPE)
        rows["seq"] = np.arange(samples)
        rows["slot"] = np.arange(samples) % 2
        rows["tries"] = 1
        rows["n_tokens"] = 11
        rows["scheduled_ns"] = rows["issued_ns"] = rows["dispatched_ns"] = np.arange(samples) * 20_000_000
        rows["first_ns"] = rows["scheduled_ns"] + 100_000_000
        rows["done_ns"] = rows["first_ns"] + 100_000_000
        writer = RecordWriter(folder)
        writer.samples(1, 1, rows, SLOTS)
        writer.flush()
        entry = {"seq": 1, "unix": 1e9, "who": "operator:kim@desk", "what": "act.drain", "subject": SLOTS[0], "why": "hot"}
        folder.journal.write_text(json.dumps(entry | {"type": "JournalEntry"}) + "\n")
        return folder

    return make


def test_without_a_command_it_says_what_there_is_and_what_to_type(capsys: pytest.CaptureFixture[str], make_run: MakeRun) -> None:
    make_run("mine-1")
    assert main([]) == 0
    out = capsys.readouterr().out
    for expected in ("gpt-oss-120b-server", "mine-1", "VALID", "paceline demo", "paceline doctor"):
        assert expected in out


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    commands = "demo run attach restart-head status runs show profiles doctor rate drain recycle evict readmit waive pause resume"
    for command in [*commands.split(), "abort", "stop", "head", "worker", "Exit codes"]:
        assert command in out


@pytest.mark.parametrize("command", ["run", "rate", "drain", "stop", "show", "worker", "restart-head"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"paceline {command}" in capsys.readouterr().out


def test_help_and_acts_start_without_the_heavy_libraries() -> None:
    code = (
        "import sys; from console.cli import main; main({}); print(sorted({{'textual', 'polars', 'numpy'}} & set(sys.modules)))"
    )
    for tokens in (["--help"], ["rate", "120"]):
        done = subprocess.run([sys.executable, "-c", code.format(tokens)], capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.splitlines()[-1] == "[]", tokens


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["fly"], "there is no command 'fly'"),
        (["evct", "node000/gpu0"], "did you mean evict?"),
        (["run"], "run"),
        (["run", "demo", "extra", "--no-console"], "extra was not understood"),
        (["run", "dem", "--no-console"], "did you mean demo?"),
        (["run", "demo", "--no-console", "-s", "fleet.nodez=2"], "fleet.nodez: no such field; did you mean fleet.nodes?"),
        (["run", "demo", "--no-console", "--name", "a/b"], "cannot be a name"),
        (["run", "demo"], "needs a terminal, and this is none: use `--no-console`"),
        (["rate", "fast"], "'fast' is not a number"),
        (["rate", "0"], "must be more than 0"),
        (["drain", "gpu3"], "slots are written node003/gpu1"),
        (["stop"], "no run is going on"),
        (["show", "nothing"], "no runs in"),
        (["head", "--run", "/"], "spec.json is missing"),
        (["worker", "--head", "tcp://x:1", "--keys", "k", "--nodes", "3-1", "--name", "w", "--logs", "l"], "'3-1' is neither"),
    ],
)
def test_bad_input_is_one_paragraph_and_exit_code_2(tokens: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tokens) == 2
    caught = capsys.readouterr()
    assert said in caught.err
    assert caught.err.startswith("paceline: ")
    assert "Traceback" not in caught.err
    assert caught.out == ""


def test_nothing_is_created_by_a_spec_that_is_refused(runs: Path) -> None:
    assert main(["run", "demo", "--no-console", "-s", "load.target_qps=fast"]) == 2
    assert not runs.exists()


def test_too_little_free_disk_is_refused_before_a_folder_is_made(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "demo", "--no-console", "-s", "record.min_free_gb=1e9"]) == 3
    assert "record.min_free_gb asks for 1e+09" in capsys.readouterr().err
    assert list(runs.iterdir()) == []


def test_show_prints_one_object_with_all_figures(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run()
    assert main(["show", "mine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["run"] == "mine-1"
    assert (shown["verdict"], shown["reasons"], shown["synthetic"]) == ("VALID", [], True)
    assert shown["totals"] == {"issued": 10, "completed": 10, "failed": 0, "lost": 0, "redispatched": 0, "tokens": 110}
    assert sum(replica["samples"] for replica in shown["replicas"]) == 10
    assert set(shown["latency_ms"]) == {"min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max"}
    assert (shown["ttft_ms"]["p99"], shown["tpot_ms"]["p50"], shown["latency_ms"]["max"]) == (100.0, 10.0, 200.0)
    assert shown["rates"]["target_qps"] == 50.0
    assert [(act["act"], act["subject"], act["why"]) for act in shown["acts"]] == [("drain", SLOTS[0], "hot")]
    assert shown["record"] == str(folder.path)
    assert shown["attempts"][0]["verdict"] == "VALID"


def test_show_says_verdict_reasons_and_that_it_is_synthetic(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(verdict="INVALID")
    assert main(["show"]) == 0
    out = capsys.readouterr().out
    for expected in ("mine-1: INVALID  ACTS 1  SYNTHETIC", "TTFT p99 was over its limit", "issued 10", "node000/gpu1"):
        assert expected in out


def test_a_run_without_its_head_is_called_crashed_and_can_be_taken_up(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(verdict="", phase="MEASURING")
    main(["show", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["verdict"] == "CRASHED"
    assert "paceline restart-head mine-1" in shown["reasons"][0]
    assert shown["totals"]["completed"] == 10
    main(["runs"])
    assert "MEASURING, head gone" in capsys.readouterr().out


def test_a_record_without_run_json_or_with_a_broken_one_is_still_listed(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("good-1")
    make_run("torn-1").run_json.write_text("{")
    assert main(["runs", "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["good-1"]["verdict"] == "VALID"
    assert rows["torn-1"]["phase"] == "record cannot be read"
    assert main(["show", "torn-1", "--json"]) == 0
    assert "is not a run record" in json.loads(capsys.readouterr().out)["reasons"][0]


def test_part_of_a_name_must_fit_only_one_run(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("demo-1")
    make_run("demo-2")
    assert main(["show", "demo"]) == 2
    assert "fits 2 runs" in capsys.readouterr().err


def test_acting_on_a_run_that_has_ended_says_so_at_once(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    make_run()
    assert main(["evict", "mine", "node000/gpu0"]) == 2
    assert "mine-1 has ended (DONE); `paceline show mine-1`" in capsys.readouterr().err


def test_profiles_and_doctor_print_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "--json"]) == 0
    assert "demo" in {row["name"] for row in json.loads(capsys.readouterr().out)}
    main(["doctor", "--json"])
    assert {"python", "loadgen", "disk"} <= {check["name"] for check in json.loads(capsys.readouterr().out)}


def test_an_unforeseen_error_is_told_without_a_traceback_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(which: object = None) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("console.cli.listing.any_run", fail)
    assert main(["show"]) == 3
    err = capsys.readouterr().err
    assert "RuntimeError: boom" in err
    assert "PACELINE_DEBUG=1" in err
    monkeypatch.setenv("PACELINE_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["show"])


def test_a_reader_that_goes_away_is_no_error(make_run: MakeRun) -> None:
    make_run()
    command = f"{sys.executable} -m console.cli show --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=os.environ.copy(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
