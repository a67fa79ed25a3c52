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

import console.cli
from console.cli import launch, main
from console.cli.output import plural, typed
from harness.cluster.procinfo import start_ticks
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile, read_run, write_run
from harness.records.writer import RecordWriter
from harness.specfile import load_spec
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

    def make(name: str = "mine-1", verdict: str = "VALID", phase: str = "DONE", samples: int = 10, acts: int = 1) -> RunFolder:
        folder = RunFolder(runs / name)
        folder.path.mkdir(parents=True)
        attempt = AttemptRecord(
            number=1, kind="performance", scenario="Server", target_qps=50.0, epoch=1, started_unix=1e9, ended_unix=1e9 + 60,
            state="ENDED", verdict=verdict, totals={"issued": samples, "completed": samples}, ttft_ms={"p99": 100.0},
            acts=acts, loadgen={"validity": "VALID", "samples_per_s": 22.5, "tokens_per_s": 247.0}, rates={"completed_qps": 26.3},
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
        (["rate", "5", "--ramp", "4000"], "0 (at once) to 3,600 seconds"),
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


def test_show_says_over_which_time_a_rate_holds_and_what_loadgen_says(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run()
    assert main(["show"]) == 0
    out = capsys.readouterr().out
    assert "completed 26.3 q/s  289 output tokens/s over 0:00, to the last completion" in out
    assert "LoadGen   completed 22.5 samples/s  247 output tokens/s by its own log" in out
    assert "ACTS 1: 1 act touched attempts" in out
    assert f"drain {SLOTS[0]} by kim@desk: hot" in out


@pytest.fixture
def two_attempts(make_run: MakeRun) -> RunFolder:
    """Attempt 1 was superseded with 7 samples completed, attempt 2 has 10."""
    folder = make_run(acts=0)
    run = read_run(folder.path)
    (last,) = run.attempts
    first = AttemptRecord(
        number=1, kind="performance", scenario="Server", target_qps=40.0, epoch=1, state="ENDED", verdict="SUPERSEDED", acts=1,
        reasons=["superseded by an attempt at 50 QPS"], totals={"issued": 9, "completed": 7}, ttft_ms={"p99": 99.0},
        rates={"completed_qps": 35.1, "tokens_per_s": 700.0},
    )  # fmt: skip
    last.number, run.attempts = 2, [first, last]
    write_run(folder.path, run)
    writer = RecordWriter(folder)
    rows = np.zeros(10, SAMPLE_DTYPE)
    rows["n_tokens"], rows["tries"], rows["first_ns"], rows["done_ns"] = 11, 1, 100_000_000, 300_000_000
    writer.samples(2, 2, rows, SLOTS)
    writer.flush()
    return folder


def test_every_attempt_has_a_line_with_its_figures_and_shows_all_of_them_when_asked(
    two_attempts: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show"]) == 0
    out = capsys.readouterr().out
    assert (
        "attempt 1 performance Server 40 QPS  SUPERSEDED ACTS 1  (completed 35.1 q/s, output 700 tokens/s, TTFT p99 99.0 ms)"
        in out
    )
    assert "attempt 2 performance Server 50 QPS  VALID" in out
    assert main(["show", "--attempt", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["attempt"], shown["totals"]["completed"], shown["tpot_ms"]["p50"]) == (1, 10, 10.0)
    assert main(["show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["attempt"], shown["totals"]["completed"], shown["tpot_ms"]["p50"]) == (2, 10, 20.0)
    assert main(["show", "--attempt", "7"]) == 2
    assert "has no attempt 7; it has 1, 2" in capsys.readouterr().err


@pytest.fixture
def live_run(make_run: MakeRun) -> RunFolder:
    """A run whose head lives (this very process stands for it) in the middle of its first attempt."""
    folder = make_run(verdict="", phase="MEASURING", acts=3)
    run = read_run(folder.path)
    run.attempts[0].state = "issuing"
    run.attempts[0].totals = {"issued": 25, "completed": 18, "failed": 0}
    write_run(folder.path, run)
    folder.head_json.write_text(json.dumps({"pid": os.getpid(), "ticks": start_ticks(os.getpid())}))
    return folder


def test_show_of_a_run_that_is_going_on_counts_what_the_head_knows_and_calls_nothing_lost(
    live_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "--json"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert (totals["issued"], totals["completed"], totals["in_flight"], totals["lost"]) == (25, 18, 7, 0)


def test_runs_shows_acts_of_a_run_that_is_going_on(live_run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    main(["runs"])
    assert "ACTS 3" in capsys.readouterr().out


def test_status_of_a_run_whose_head_is_gone_says_what_to_type_and_exits_with_1(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(verdict="", phase="MEASURING")
    assert main(["status"]) == 1
    assert "head gone; `paceline restart-head mine-1` starts a new one on the warm fleet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("phase", "verdict", "said"),
    [("ABORTED", "ABORTED", "mine-1: ABORTED\n"), ("DONE", "INVALID", "mine-1: DONE INVALID\n")],
)
def test_status_of_a_run_that_has_ended_says_how_once(
    phase: str, verdict: str, said: str, make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(verdict=verdict, phase=phase)
    assert main(["status"]) == 0
    assert capsys.readouterr().out.startswith(said)


def test_a_dataset_that_cannot_be_used_is_refused_before_there_is_a_run(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text('{"input_tokens": [1, 2]}\n{"input_tokens": [1, -2]}\n')
    of_file = ["run", "demo", "--no-console", "-s", "dataset.kind=jsonl", "-s", f"dataset.path={data}"]
    assert main([*of_file, "-s", "dataset.samples=none"]) == 2
    assert f"{data}, line 2: input_tokens[1] is -2" in capsys.readouterr().err
    assert main([*of_file, "-s", "dataset.samples=1", "-s", "load.performance_samples=3"]) == 2
    assert "load.performance_samples: 3 is more than the dataset has (1 sample)" in capsys.readouterr().err
    assert not runs.exists()


def test_reading_a_dataset_never_loads_the_console(tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text("{}\n")
    code = "import sys; from console.cli import main; print(main(sys.argv[1:]), 'textual' in sys.modules)"
    tokens = ["run", "demo", "--no-console", "-s", "dataset.kind=jsonl", "-s", f"dataset.path={data}"]
    done = subprocess.run([sys.executable, "-c", code, *tokens], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "2 False", done.stderr


def test_a_long_reading_says_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "mine.jsonl"
    data.write_text('{"input_tokens": [1]}\n')
    monkeypatch.setattr(launch, "SILENT_READING_S", 0.0)
    spec = load_spec("demo", ["dataset.kind=jsonl", f"dataset.path={data}", "dataset.samples=none"])
    launch.check_dataset(spec)
    assert capsys.readouterr().err == f"reading {data}\n"


def test_hints_are_typed_as_this_command_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "venv" / "bin" / "paceline", tmp_path / "bin" / "paceline"
    for file in (here, elsewhere):
        file.parent.mkdir(parents=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", str(elsewhere.parent))
    monkeypatch.setattr(sys, "argv", [str(here)])
    assert typed("attach") == f"{here} attach", "another paceline is on the PATH"
    monkeypatch.setenv("PATH", str(here.parent))
    assert typed("attach") == "paceline attach"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setattr(sys, "argv", ["venv/bin/paceline"])
    assert typed("attach") == "venv/bin/paceline attach"
    monkeypatch.setattr(sys, "argv", [str(Path(console.cli.__file__).with_name("__main__.py"))])
    assert typed("attach") == f"{sys.executable} -m console.cli attach"


def test_one_of_a_thing_is_not_many() -> None:
    assert [plural(1, "node"), plural(0, "sample"), plural(2048, "replica")] == ["1 node", "0 samples", "2,048 replicas"]


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


def test_attaching_to_a_run_that_has_ended_opens_its_record(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run()
    assert main(["attach", "mine"]) == 2
    assert "needs a terminal, and this is none: use `paceline show mine-1`" in capsys.readouterr().err
    opened: list[RunFolder] = []

    def open_it(ended: RunFolder, **_: object) -> int:
        opened.append(ended)
        return 0

    monkeypatch.setattr("console.cli.start._need_terminal", lambda *_: None)
    monkeypatch.setattr("console.cli.start.open_launch", open_it)
    assert main(["attach", "mine"]) == 0
    assert opened == [folder]


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

    monkeypatch.setattr("console.cli.showing.any_run", fail)
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
