"""The commands after a run against what is no file, no folder, no text or no reader: an error that names it, never a hang, and
nothing half done under the name that was asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_run import Made, make_run

from console.cli import main
from console.cli.output import json_text, say
from harness.records.layout import RunFolder
from harness.records.runfile import read_run, write_run

Caught = pytest.CaptureFixture[str]
CLI = (sys.executable, "-m", "console.cli")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    root = tmp_path / "runs"
    root.mkdir()
    monkeypatch.setenv("PACELINE_RUNS", str(root))
    monkeypatch.delenv("PACELINE_DEBUG", raising=False)
    return RunFolder(make_run(root, Made(qps=50.0, seconds=10)))


def refused(capsys: Caught, *tokens: str) -> str:
    assert main(tokens) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    return caught.err


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["--view", "slowest", "--from-s", "nan"], "--from-s nan is not a number of seconds"),
        (["--view", "tail", "--to-s", "inf"], "--to-s inf is not a number of seconds"),
        (["--view", "slowest", "--from-s", "9", "--to-s", "3"], "--from-s 9.0 --to-s 3.0 leaves nothing"),
        (["--view", "slowest", "--prompt-from", "9", "--prompt-to", "9"], "--prompt-from 9 --prompt-to 9 leaves nothing"),
        (["--view", "slowest", "--slot", "node00/gpu0"], "--slot 'node00/gpu0' has no sample in attempt 1; did you mean node0"),
        (["--view", "tail", "--node", "rack7"], "--node 'rack7' has no sample in attempt 1; those that have are listed by"),
        (["--view", "fleet", "--top", "99999999999"], "--top 1e+11 must be more than 0 and less than 1e9"),
        (["--view", "logs", "--at", "5:99"], "--at '5:99' is no moment"),
        (["--attempt", "2"], "has no attempt 2; it has 1"),
    ],
)
def test_what_would_show_nothing_is_refused(made: RunFolder, capsys: Caught, tokens: list[str], said: str) -> None:
    assert said in refused(capsys, "show", "made", *tokens)


def test_show_takes_an_attempt_as_the_other_commands_do(made: RunFolder, capsys: Caught) -> None:
    assert main(["show", "made-1:1", "--view", "overview", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempt"] == 1
    assert "has no attempt 9; it has 1" in refused(capsys, "show", "made-1:9")
    assert "give one of them" in refused(capsys, "show", "made-1:1", "--attempt", "2")


def test_what_a_terminal_would_obey_is_written_out(made: RunFolder, capsys: Caught) -> None:
    run = read_run(made.path)
    run.verdict, run.reasons = "INVALID", ["\x1b]0;pwned\x07 slow \x9b2J \u202etxt.exe"]
    write_run(made.path, run)
    assert main(["show", "made"]) == 0
    assert "\\x1b]0;pwned\\x07 slow \\x9b2J \\u202etxt.exe\n" in capsys.readouterr().out
    say("\x1b[1mTitle\x1b[0m\n\ta column")
    assert capsys.readouterr().out == "\x1b[1mTitle\x1b[0m\n\ta column\n"
    odd = {"name": "b\udcff \x9b \x1b \u202e é"}
    assert json.loads(json_text(odd)) == odd
    json_text(odd).encode("utf-8")


def test_an_empty_note_removes_nothing(made: RunFolder, capsys: Caught) -> None:
    assert main(["note", "made", "baseline"]) == 0
    capsys.readouterr()
    assert "--clear removes the note" in refused(capsys, "note", "made", "")
    assert main(["note", "made"]) == 0
    assert "note baseline" in capsys.readouterr().out


@pytest.mark.parametrize("tokens", [["system", "check", "{}"], ["scaling", "--reference", "{}"], ["import", "{}"]])
def test_a_pipe_a_device_and_a_huge_file_are_no_input(made: RunFolder, tmp_path: Path, capsys: Caught, tokens: list[str]) -> None:
    pipe, huge = tmp_path / "pipe", tmp_path / "huge.toml"
    os.mkfifo(pipe)
    with huge.open("wb") as file:
        file.truncate(1 << 40)  # takes no room
    for path in (pipe, Path("/dev/zero"), huge):
        assert str(path) in refused(capsys, *(token.format(path) for token in tokens))


def test_pipes_in_a_record_are_told_and_do_not_hold_up_the_others(made: RunFolder, capsys: Caught) -> None:
    chunk = min(made.samples.glob("*.parquet"))
    chunk.unlink()
    os.mkfifo(chunk)
    made.journal.unlink()
    os.mkfifo(made.journal)
    assert main(["show", "made", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [problem for problem in found["problems"] if str(chunk) in problem and "no plain file" in problem]
    assert [problem for problem in found["problems"] if str(made.journal) in problem and "no plain file" in problem]
    assert main(["runs"]) == 0


def test_samples_that_cannot_be_read_are_not_called_lost(made: RunFolder, capsys: Caught) -> None:
    min(made.samples.glob("*.parquet")).write_bytes(b"PAR1")
    assert main(["show", "made", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["totals"]["completed"], found["totals"]["lost"]) == (found["totals"]["issued"], 0)
    assert len(found["problems"]) == 1


def test_a_folder_whose_name_is_no_text_is_told(made: RunFolder, capsys: Caught) -> None:
    odd = os.fsencode(made.path.parent) + b"/b\xff"
    os.rename(made.path, odd)
    assert main(["compare", os.fsdecode(odd), os.fsdecode(odd) + ":1"]) == 3
    assert "its path is not UTF-8" in capsys.readouterr().err
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["run"] == "b\udcff"


def test_places_that_cannot_be_written_are_told_by_the_name_that_was_given(
    made: RunFolder, tmp_path: Path, capsys: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "/proc/nowhere/x"
    assert f"{nowhere}: no report can be written there" in refused(capsys, "report", "made", "--out", nowhere)
    assert f"--out {nowhere}" in refused(capsys, "system", "describe", "--out", nowhere)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path / "file"))
    assert f"{tmp_path / 'file'}: runs cannot be put there: it is a file" in refused(capsys, "import", str(made.path))


def test_a_full_disk_leaves_no_half_description(made: RunFolder, tmp_path: Path) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)); from console.cli import main; exit(main({}))"
    place = tmp_path / "system.toml"
    tokens = ["system", "describe", "--out", str(place)]
    done = subprocess.run([sys.executable, "-c", code.format(tokens)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"--out {place}: File too large" in done.stderr
    assert not place.exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("redirected", "code"), [(">&-", 0), ("2>&-", 0), ("2>/dev/full", 0), (">/dev/full", 3)])
def test_closed_and_full_streams_change_nothing_but_what_is_seen(
    made: RunFolder, redirected: str, code: int, unbuffered: str
) -> None:
    command = f'"{CLI[0]}" -m console.cli show made {redirected}'
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}  # empty: as if it were not there
    done = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr, "defect" in done.stderr) == (code, False, False)


def test_a_terminal_that_knows_only_ascii_is_written_to(made: RunFolder) -> None:
    told = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([*CLI, "show", "made"], env=told, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.replace("reading the record of made-1 \\u2026\n", "")) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_report_that_is_ended_leaves_nothing(made: RunFolder, tmp_path: Path, number: signal.Signals) -> None:
    for turn in range(5):
        place = tmp_path / f"reports-{turn}"
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen([*CLI, "report", "made", "--out", str(place / "one")], stderr=said)
        while not list(place.glob(".report-*")) and process.poll() is None:
            time.sleep(0.01)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            # Again and again: a query of polars may take a SIGINT that comes while it runs for its own.
            process.send_signal(number)
            time.sleep(0.05)
        process.wait(30)
        if not (place / "one").exists():
            break  # else it was written before the first signal came
    # Of many signals one can meet it on its way out; a shell calls that the same.
    assert process.returncode in (128 + number, -number)
    assert list(place.iterdir()) == []
    assert "Traceback" not in (tmp_path / "said").read_text()


_MANY_LINES = """
import sys
from console.cli.output import open_streams
open_streams()
for i in range(60):
    sys.stdout.write(str(i % 10) * (4600 + 37 * i) + "\\n")
    sys.stdout.flush()
"""


def test_a_stop_in_the_middle_of_a_line_loses_none_of_it() -> None:
    """Ctrl-Z, while the reader is behind; without a buffer Python takes a write that was cut short for whole."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen([sys.executable, "-c", _MANY_LINES], stdout=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    found = b""
    while part := os.read(process.stdout.fileno(), 10_000):
        found += part
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
        time.sleep(0.01)
    assert process.wait(30) == 0
    assert [len(line) for line in found.splitlines()] == [4600 + 37 * i for i in range(60)]
