"""The console's twins beside a real run: one look at every screen, sentences and objects until its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_kit import RunHandle

StartRun = Callable[..., RunHandle]


@pytest.fixture
def twin() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(run: RunHandle, *tokens: str) -> subprocess.Popen[str]:
        path: Path = run.folder.path
        command = [sys.executable, "-m", "console.cli", "attach", path.name, *tokens]
        environ = os.environ | {"PACELINE_RUNS": str(path.parent), "COLUMNS": "120"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait(10)


def test_twins_follow_a_run_to_its_end(start_run: StartRun, twin: Callable[..., subprocess.Popen[str]]) -> None:
    run = start_run(load__duration_s=25)
    run.wait_journal("attempt.start")
    plain, follow = twin(run, "--plain", "--every", "2"), twin(run, "--json", "--follow")
    run.wait_measuring()
    live = twin(run, "--once")
    replica = twin(run, "--once", "--screen", "replica", "--slot", "node001/gpu1")
    sla = twin(run, "--json", "--screen", "sla")
    page, error = live.communicate(timeout=60)
    assert "MEASURING" in page, error
    assert "4 in all  4 READY" in page
    assert "\x1b" not in page
    page, error = replica.communicate(timeout=60)
    assert page.splitlines()[0].startswith(run.folder.name), error
    assert "Log, its end" in page
    found, error = sla.communicate(timeout=60)
    tables = json.loads(found)["tables"]
    assert [row["metric"] for row in tables["sla"]] == ["TTFT", "TPOT"], error
    assert tables["percentiles"]
    assert run.command("drain", slot="node001/gpu1", incarnation="").ok
    run.wait_end()

    said, error = plain.communicate(timeout=60)
    assert error == ""
    sentences = [line[9:] for line in said.splitlines()]
    for expected in (
        "Attempt 1 is draining.",
        "Operator test drained node001/gpu1: test.",
        "4 of 4 replicas ready",
        "Phase DRAINING",
    ):
        assert any(expected in line for line in sentences), said
    assert sentences[-1].startswith("The run has ended, phase DONE: attempt 1 ")
    verdict = run.run.verdict
    assert plain.returncode == {"VALID": 0, "INVALID": 1}[verdict]

    lines, error = follow.communicate(timeout=60)
    objects = [json.loads(line) for line in lines.splitlines()]
    assert objects[-1]["link"] == "ended", error
    assert objects[-1]["tables"]["run"][0]["verdict"] == verdict
    seconds = [row["unix"] for one in objects for row in one["tables"]["series"]]
    assert seconds == sorted(set(seconds))
    assert follow.returncode == plain.returncode


def test_leaving_a_twin_leaves_the_run(start_run: StartRun, twin: Callable[..., subprocess.Popen[str]]) -> None:
    run = start_run(load__kind="explore", load__duration_s=0)
    run.wait_measuring()
    plain = twin(run, "--plain")
    assert plain.stdout is not None
    assert run.folder.name in plain.stdout.readline()
    plain.send_signal(signal.SIGINT)
    _, error = plain.communicate(timeout=60)
    assert plain.returncode == 0
    assert f"{run.folder.name} goes on." in error
    assert run.state().phase == "MEASURING"


def test_a_head_that_is_stopped_is_called_silent_and_one_that_is_killed_gone(
    start_run: StartRun, twin: Callable[..., subprocess.Popen[str]]
) -> None:
    run = start_run(load__kind="explore", load__duration_s=0)
    run.wait_measuring()
    plain = twin(run, "--plain", "--every", "60")
    assert plain.stdout is not None
    plain.stdout.readline()
    os.kill(run.head_pid, signal.SIGSTOP)
    once = twin(run, "--once")
    _, error = once.communicate(timeout=60)
    assert once.returncode == 3
    assert "does not answer" in error
    while "The head is silent" not in (line := plain.stdout.readline()):
        assert line, "it ended without a word about a silent head"
    os.kill(run.head_pid, signal.SIGKILL)
    os.kill(run.head_pid, signal.SIGCONT)
    _, error = plain.communicate(timeout=60)
    assert plain.returncode == 1
    assert f"{run.folder.name}: head gone" in error
