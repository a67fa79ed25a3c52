"""Real runs whose replicas start a server each (a small fake one) and ask it: LoadGen to HTTP and back."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from run_kit import RunHandle

from harness.records.reader import Record

Start = Callable[..., RunHandle]
ROOT = Path(__file__).parents[2]
SERVER = ROOT / "tests" / "unit" / "openai_kit.py"
ARGS = {"command": [sys.executable, str(SERVER), "{port}"], "env": {"PYTHONPATH": str(ROOT)}, "stop_s": 1.0}


def servers() -> list[int]:
    """Of ours, by what they were started with."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            words = (proc / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(SERVER).encode() in words:
            found.append(int(proc.name))
    return found


def start(start_run: Start, **changes: object) -> RunHandle:
    return start_run(
        fleet__engine="openai",
        fleet__engine_args=ARGS,
        fleet__nodes=1,
        load__max_output_tokens=24,
        load__target_qps=20,
        sampling={"min_tokens": 2},
        **changes,
    )


def all_gone(within_s: float = 30.0) -> bool:
    deadline_s = time.monotonic() + within_s
    while servers() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not servers()


def test_a_run_over_two_servers_completes_every_sample_and_leaves_none(start_run: Start) -> None:
    run = start(start_run, load__duration_s=3)
    end = run.wait_end()
    attempt = end.attempts[0]
    assert attempt.totals["issued"] == attempt.totals["completed"] > 30
    assert attempt.totals["failed"] == attempt.totals["redispatched"] == 0
    samples = Record(run.folder).samples(1).collect()
    assert set(samples["n_tokens"]) == {24}
    assert samples["slot"].n_unique() == 2
    assert all_gone()


def test_a_server_that_dies_takes_its_replica_along_and_both_come_back(start_run: Start) -> None:
    run = start(start_run, load__kind="explore", load__duration_s=0, fleet__no_ready_grace_s=20)
    run.wait_issuing(60)
    assert len(servers()) == 2
    victim = servers()[0]
    os.kill(victim, signal.SIGKILL)
    run.wait("two servers again", lambda: len(servers()) == 2 and victim not in servers())
    run.wait("both replicas serve", lambda: sorted(s.incarnations for s in run.state().slots if s.state == "READY") == [1, 2])
    assert "the server was killed by SIGKILL" in run.story()
    run.command("stop")
    end = run.wait_end()
    totals = end.attempts[0].totals
    assert totals["failed"] == 0
    assert all_gone()


def test_a_head_and_a_worker_that_are_killed_leave_no_server(start_run: Start) -> None:
    run = start(start_run, load__kind="explore", load__duration_s=0)
    run.wait_issuing(60)
    run.state()
    assert len(servers()) == 2
    run.kill_head()
    for worker in run.workers():
        os.kill(worker["pid"], signal.SIGKILL)
    assert all_gone()
