"""Engines with helper processes and interpreters of their own: who ends with whom, and what a replica starts with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_kit import FakeHead, alive, children_of, spec_of

from harness.spec import RunSpec
from harness.wire import control

SLOT = "node000/gpu0"
GONE_WITHIN_S = 15.0

MakeHead = Callable[..., FakeHead]


@pytest.fixture
def make_head(tmp_path: Path) -> Iterator[MakeHead]:
    made: list[FakeHead] = []

    def make(spec: RunSpec | None = None, **fleet: Any) -> FakeHead:
        fleet = {"engine": "helping", "nodes": 1, "replicas_per_node": 1, **fleet}
        made.append(FakeHead(tmp_path, spec or spec_of(1, **fleet)))
        return made[-1]

    yield make
    for head in made:
        head.close()


def helpers_of(head: FakeHead, slot: str = SLOT) -> list[int]:
    """The helpers of the incarnation that registered last, and its guard."""
    facts = head.told(control.Register, slot=slot)[-1].facts
    pids = {facts["forked"], facts["program"]} | children_of(head.pids[slot])
    assert len(pids) == 3, "two helpers and the guard"
    return sorted(pids)


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"left running: {left}"


@pytest.mark.parametrize("killed", ["worker", "replica, then worker", "worker, then replica"])
def test_helpers_end_with_a_replica_and_a_worker_that_are_killed(make_head: MakeHead, killed: str) -> None:
    head = make_head(replicas_per_node=2)
    worker = head.start_worker([0], "w0")
    head.wait_ready(2)
    replicas = [head.pids[slot] for slot in head.spec.slots()]
    pids = [pid for slot in head.spec.slots() for pid in helpers_of(head, slot)]
    if killed == "replica, then worker":
        os.kill(worker.process.pid, signal.SIGSTOP)  # it can no longer kill their groups
        for pid in replicas:
            os.kill(pid, signal.SIGKILL)
    worker.signal(signal.SIGKILL)
    if killed == "worker, then replica":
        for pid in replicas:
            os.kill(pid, signal.SIGKILL)
    wait_gone([*pids, *replicas])


def test_helpers_end_with_a_replica_that_is_killed_and_the_slot_comes_back(make_head: MakeHead) -> None:
    head = make_head()
    head.start_worker([0], "w0")
    head.wait_ready(1)
    before, pids = head.incarnations[SLOT], helpers_of(head)
    os.kill(head.pids[SLOT], signal.SIGKILL)
    wait_gone(pids)
    head.wait("a new incarnation", lambda: head.incarnations[SLOT] != before)
    head.wait_ready(1)


def test_a_worker_that_stops_leaves_no_helper(make_head: MakeHead) -> None:
    head = make_head()
    worker = head.start_worker([0], "w0")
    head.wait_ready(1)
    pids = helpers_of(head)
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(30) == 143
    wait_gone(pids)


def test_the_signal_that_ends_a_forked_helper_does_not_reach_the_replica(make_head: MakeHead) -> None:
    head = make_head()
    head.start_worker([0], "w0")
    head.wait_ready(1)
    os.kill(head.told(control.Register)[0].facts["forked"], signal.SIGTERM)
    head.serve(1)
    assert not head.told(control.ReplicaExited)


def test_an_engine_starts_in_a_process_without_threads_or_connections(make_head: MakeHead) -> None:
    head = make_head()
    head.start_worker([0], "w0")
    head.wait_ready(1)
    facts = head.told(control.Register)[0].facts
    assert facts["threads"] == 1
    assert facts["sockets"] == 2, "the loop's own pair"
    assert facts["mark"] == "place 0"


def test_a_replica_that_loads_says_nothing_to_the_head_until_its_engine_has_started(make_head: MakeHead) -> None:
    head = make_head(engine_args={"load_s": 1.5})
    head.start_worker([0], "w0")
    head.wait_ready(1)
    first, *_ = (message for message in head.messages if isinstance(message, control.Register | control.Heartbeat))
    assert isinstance(first, control.Register)
    assert first.facts["loaded"]


@pytest.mark.parametrize("kind", ["stuck", "slow"])
def test_a_slot_is_stopped_while_its_engine_loads(make_head: MakeHead, kind: str) -> None:
    head = make_head(engine_args={"kind": kind, "load_s": 60})
    worker = head.start_worker([0], "w0")
    starting = head.wait("ReplicaStarting", lambda: head.told(control.ReplicaStarting))[0]
    head.wait("both helpers and the guard", lambda: len(children_of(starting.pid)) == 3)
    pids = [starting.pid, *children_of(starting.pid)]
    head.say("w0", control.StopSlot(SLOT, starting.incarnation, "evicted"))
    exited = head.wait("ReplicaExited", lambda: head.told(control.ReplicaExited))[0]
    assert (exited.reason, exited.restart_in_s) == ("stopped: evicted", None)
    wait_gone(pids)
    assert worker.process.poll() is None


def test_a_worker_that_is_killed_takes_a_loading_replica_along(make_head: MakeHead) -> None:
    head = make_head(engine_args={"kind": "stuck"})
    worker = head.start_worker([0], "w0")
    starting = head.wait("ReplicaStarting", lambda: head.told(control.ReplicaStarting))[0]
    head.wait("both helpers and the guard", lambda: len(children_of(starting.pid)) == 3)
    pids = [starting.pid, *children_of(starting.pid)]
    worker.signal(signal.SIGKILL)
    wait_gone(pids)


def test_a_replica_whose_devices_are_not_there_is_reported_with_what_is_and_not_tried_again(make_head: MakeHead) -> None:
    layout = {"device": "rocm"} if not Path("/dev/kfd").exists() else {"device": "cuda", "tp": 64}
    head = make_head(engine_args={"accelerated": True}, layout=layout, replicas_per_node=2)
    head.start_worker([0], "w0")
    exits = head.wait("two exits", lambda: head.told(control.ReplicaExited)[1:] and head.told(control.ReplicaExited))
    assert {e.slot for e in exits} == set(head.spec.slots())
    assert all(e.restart_in_s is None and "fleet.layout" in e.reason and "node000 has" in e.reason for e in exits)
    assert not head.told(control.ReplicaStarting)


# --- interpreters ------------------------------------------------------------------------------------------------


def synthetic_with(python: Path | str) -> RunSpec:
    fleet = {"engine_args": {"load_s": 0.05, "speed": 20}, "replicas_per_node": 2, "heartbeat_s": 0.2, "python": str(python)}
    return RunSpec.model_validate({"fleet": fleet})


def test_replicas_run_in_the_interpreter_that_the_spec_names(make_head: MakeHead, tmp_path: Path) -> None:
    """The link stands for another environment: what counts is that the process was started through it."""
    other = tmp_path / "other python"
    other.write_text(f'#!/bin/sh\nPACELINE_TEST_SEEN="$PYTHONPATH" exec {sys.executable} "$@"\n')
    other.chmod(0o755)
    head = make_head(synthetic_with(other))
    head.start_worker([0], "w0")
    head.wait_ready(2)
    environ = Path(f"/proc/{head.pids[SLOT]}/environ").read_bytes().split(b"\0")
    (seen,) = [entry.decode() for entry in environ if entry.startswith(b"PACELINE_TEST_SEEN=")]
    assert (Path(seen.partition("=")[2].split(os.pathsep)[0]) / "harness" / "worker" / "replica.py").exists()


def final_reason(head: FakeHead) -> str:
    head.start_worker([0], "w0")
    exited = head.wait("ReplicaExited", lambda: head.told(control.ReplicaExited))[0]
    assert exited.restart_in_s is None
    return str(exited.reason)


def test_an_interpreter_that_is_missing_is_the_final_reason(make_head: MakeHead, tmp_path: Path) -> None:
    reason = final_reason(make_head(synthetic_with(tmp_path / "none")))
    assert reason.startswith(f"fleet.python = {tmp_path / 'none'}: no such file; give the path of a Python 3.11 or newer")


def test_a_program_that_is_no_interpreter_is_the_final_reason(make_head: MakeHead) -> None:
    reason = final_reason(make_head(synthetic_with("/bin/true")))
    assert "fleet.python = /bin/true: it ended by itself (exit code 0) without running our code" in reason


def test_a_file_that_cannot_be_run_is_the_final_reason(make_head: MakeHead, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_text("no program")
    garbage.chmod(0o755)
    assert final_reason(make_head(synthetic_with(garbage))).startswith(
        f"fleet.python = {garbage}: cannot be run: Exec format error"
    )


def test_an_environment_without_our_libraries_says_which_one_it_lacks(make_head: MakeHead, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=60)
    reason = final_reason(make_head(synthetic_with(tmp_path / "bare" / "bin" / "python")))
    assert "No module named" in reason
    assert "replicas need pyzmq, msgspec, pydantic and numpy" in reason
