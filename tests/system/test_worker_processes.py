"""Worker and replica processes against a fake head: who comes back after which death, and who does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from worker_kit import FakeHead, alive, foreign_worker_key, spec_of

from harness.spec import RunSpec
from harness.wire import control

MakeHead = Callable[[RunSpec], FakeHead]


@pytest.fixture
def make_head(tmp_path: Path) -> Iterator[MakeHead]:
    made: list[FakeHead] = []

    def make(spec: RunSpec) -> FakeHead:
        made.append(FakeHead(tmp_path, spec))
        return made[-1]

    yield make
    for head in made:
        head.close()


@pytest.fixture
def shared(make_head: MakeHead) -> FakeHead:
    """One worker, node 0 with 4 replicas in one process, all READY."""
    head = make_head(spec_of(4, nodes=1))
    head.start_worker([0], "w0")
    head.wait_ready(4)
    return head


def test_two_workers_of_four_slots_register_warm_and_become_ready(make_head: MakeHead) -> None:
    head = make_head(spec_of(4))
    head.start_worker([0], "w0")
    head.start_worker([1], "w1")
    head.wait_ready(8)
    assert sorted(head.ready()) == head.spec.slots()
    register = head.told(control.Register, slot="node001/gpu2")[0]
    assert (register.worker, register.engine, register.model, register.synthetic) == ("w1", "echo", "synthetic", True)
    assert {"python", "pyzmq", "echo"} <= register.versions.keys()
    assert (head.folder / "logs" / "node001.log").exists()


def test_a_killed_replica_is_reported_within_seconds_and_comes_back_in_a_new_incarnation(make_head: MakeHead) -> None:
    head = make_head(spec_of(1, nodes=1, replicas_per_node=2))
    head.start_worker([0], "w0")
    head.wait_ready(2)
    before = dict(head.incarnations)
    os.kill(head.pids["node000/gpu1"], signal.SIGKILL)
    exited = head.wait("ReplicaExited", lambda: head.told(control.ReplicaExited))[0]
    assert (exited.slot, exited.incarnation) == ("node000/gpu1", before["node000/gpu1"])
    assert "SIGKILL" in exited.reason
    assert exited.restart_in_s == pytest.approx(0.2)
    assert any("round" in line for line in exited.log_tail)
    head.wait("a new incarnation", lambda: head.incarnations["node000/gpu1"] != before["node000/gpu1"])
    head.wait_ready(2)
    assert head.incarnations["node000/gpu0"] == before["node000/gpu0"]


def test_a_killed_process_of_many_slots_reports_and_restarts_each(shared: FakeHead) -> None:
    before = dict(shared.incarnations)
    os.kill(shared.pids["node000/gpu0"], signal.SIGKILL)
    shared.wait("four exits", lambda: len(shared.told(control.ReplicaExited)) == 4)
    shared.wait("new incarnations", lambda: not set(before.values()) & set(shared.incarnations.values()))
    shared.wait_ready(4)
    assert len(set(shared.pids.values())) == 1


def test_replica_processes_end_with_a_worker_that_is_killed(make_head: MakeHead) -> None:
    head = make_head(spec_of(1, nodes=1, replicas_per_node=2))
    worker = head.start_worker([0], "w0")
    head.wait_ready(2)
    frozen, *_ = pids = sorted(worker.children())
    assert set(pids) == set(head.pids.values())
    os.kill(frozen, signal.SIGSTOP)
    worker.signal(signal.SIGKILL)
    head.wait("replica processes gone", lambda: not any(map(alive, pids)))


def test_a_restarted_head_gets_the_same_incarnations_without_a_restart(make_head: MakeHead) -> None:
    head = make_head(spec_of(2))
    head.start_worker([0], "w0")
    head.start_worker([1], "w1")
    head.wait_ready(8)
    incarnations, pids = dict(head.incarnations), dict(head.pids)
    head.restart()
    head.wait_ready(8)
    head.wait("both workers", lambda: {"w0", "w1"} <= head.peers.keys())
    head.serve(0.5)
    assert head.incarnations == incarnations
    assert head.pids == pids
    assert not head.told(control.ReplicaExited)
    assert not head.told(control.ReplicaStarting)


def test_recycling_one_slot_of_a_shared_process_changes_only_it(shared: FakeHead) -> None:
    before, pid = dict(shared.incarnations), shared.pids["node000/gpu2"]
    shared.say("w0", control.RecycleSlot("node000/gpu2", before["node000/gpu2"], "too slow"))
    shared.say("w0", control.RecycleSlot("node000/gpu2", before["node000/gpu2"], "too slow"))
    shared.wait("a new incarnation", lambda: shared.incarnations["node000/gpu2"] != before["node000/gpu2"])
    shared.wait_ready(4)
    exits = shared.told(control.ReplicaExited)
    assert [(e.slot, e.reason, e.restart_in_s) for e in exits] == [("node000/gpu2", "recycled: too slow", 0.0)]
    assert {s: i for s, i in shared.incarnations.items() if i != before[s]}.keys() == {"node000/gpu2"}
    assert shared.pids["node000/gpu2"] == pid


def test_commands_for_a_stale_incarnation_change_nothing(shared: FakeHead) -> None:
    before = dict(shared.incarnations)
    shared.say("w0", control.RecycleSlot("node000/gpu2", "0123456789ab", "late"))
    shared.say("w0", control.StopSlot("node000/gpu3", "0123456789ab", "late"))
    shared.serve(1)
    assert not shared.told(control.ReplicaExited)
    assert shared.incarnations == before


def test_recycling_a_frozen_replica_kills_it_and_starts_a_fresh_one(make_head: MakeHead) -> None:
    head = make_head(spec_of(1, nodes=1, replicas_per_node=1))
    head.start_worker([0], "w0")
    head.wait_ready(1)
    incarnation, pid = head.incarnations["node000/gpu0"], head.pids["node000/gpu0"]
    os.kill(pid, signal.SIGSTOP)
    head.say("w0", control.RecycleSlot("node000/gpu0", incarnation, "frozen"))
    head.wait("a new process", lambda: head.pids["node000/gpu0"] != pid)
    head.wait_ready(1)
    assert not alive(pid)


def test_a_frozen_process_of_many_slots_is_killed_when_it_does_not_end_one_of_them(shared: FakeHead) -> None:
    before, pid = dict(shared.incarnations), shared.pids["node000/gpu0"]
    os.kill(pid, signal.SIGSTOP)
    shared.say("w0", control.RecycleSlot("node000/gpu0", before["node000/gpu0"], "frozen"))
    shared.wait("four exits", lambda: len(shared.told(control.ReplicaExited)) == 4)
    reasons = {e.slot: e.reason for e in shared.told(control.ReplicaExited)}
    assert reasons["node000/gpu0"] == "recycled: frozen"
    assert "did not end node000/gpu0" in reasons["node000/gpu3"]
    shared.wait("new incarnations", lambda: not set(before.values()) & set(shared.incarnations.values()))
    shared.wait_ready(4)
    assert not alive(pid)


def test_a_replica_process_ended_from_outside_is_restarted_once(shared: FakeHead) -> None:
    os.kill(shared.pids["node000/gpu0"], signal.SIGTERM)
    before = dict(shared.incarnations)
    shared.wait("four exits", lambda: len(shared.told(control.ReplicaExited)) == 4)
    shared.wait("new incarnations", lambda: not set(before.values()) & set(shared.incarnations.values()))
    shared.wait_ready(4)
    shared.serve(0.5)
    exits = shared.told(control.ReplicaExited)
    assert [(e.reason, e.restarts) for e in exits] == [("process ended after SIGTERM", 1)] * 4


def test_a_restarted_head_is_told_again_why_a_slot_is_down(make_head: MakeHead) -> None:
    head = make_head(spec_of(2, nodes=1, replicas_per_node=2))
    head.reject["node000/gpu1"] = "model m7 is not this run's"
    head.start_worker([0], "w0")
    head.wait("ReplicaExited", lambda: head.told(control.ReplicaExited))
    head.restart()
    again = head.wait("ReplicaExited again", lambda: head.told(control.ReplicaExited))[0]
    assert "model m7" in again.reason
    head.wait_ready(1)


def test_synthetic_replicas_of_two_nodes_share_one_process_of_their_worker(make_head: MakeHead) -> None:
    fleet = {
        "engine": "synthetic",
        "engine_args": {"load_s": 0.05, "speed": 20},
        "replicas_per_node": 4,
        "nodes": 2,
        "heartbeat_s": 0.2,
    }
    head = make_head(RunSpec.model_validate({"fleet": fleet, "cluster": {"nodes_per_worker": 2}}))
    head.start_worker([0, 1], "w0")
    head.wait_ready(8)
    assert len(set(head.pids.values())) == 1
    assert all(register.synthetic for register in head.told(control.Register))


def test_a_stopped_slot_stays_down_until_it_is_started_again(shared: FakeHead) -> None:
    before = shared.incarnations["node000/gpu1"]
    shared.say("w0", control.StopSlot("node000/gpu1", before, "evicted by test"))
    exited = shared.wait("ReplicaExited", lambda: shared.told(control.ReplicaExited))[0]
    assert (exited.slot, exited.restart_in_s) == ("node000/gpu1", None)
    shared.serve(1)
    assert shared.incarnations["node000/gpu1"] == before
    shared.say("w0", control.StartSlot("node000/gpu1"))
    shared.wait("a new incarnation", lambda: shared.incarnations["node000/gpu1"] != before)


def test_a_rejected_replica_is_reported_as_final_and_not_retried(make_head: MakeHead) -> None:
    head = make_head(spec_of(2, nodes=1, replicas_per_node=2))
    head.reject["node000/gpu1"] = "model m7 is not this run's"
    head.start_worker([0], "w0")
    exited = head.wait("ReplicaExited", lambda: head.told(control.ReplicaExited))[0]
    assert (exited.slot, exited.restart_in_s) == ("node000/gpu1", None)
    assert "model m7" in exited.reason
    head.wait_ready(1)
    head.serve(1.5)
    assert {told.incarnation for told in head.told(control.Register, slot="node000/gpu1")} == {exited.incarnation}


def test_an_engine_that_cannot_start_is_given_up_after_max_restarts(make_head: MakeHead) -> None:
    spec = spec_of(2, nodes=1, replicas_per_node=2, max_restarts=2, engine_args={"broken": "node000/gpu1"})
    head = make_head(spec)
    head.start_worker([0], "w0")
    exits = head.wait("three exits", lambda: head.told(control.ReplicaExited)[2:] and head.told(control.ReplicaExited))
    assert [e.restart_in_s for e in exits] == [pytest.approx(0.2), pytest.approx(0.4), None]
    assert all("no weights here" in e.reason for e in exits)
    head.wait_ready(1)


def test_slots_that_the_plan_calls_evicted_are_not_started(make_head: MakeHead) -> None:
    head = make_head(spec_of(4, nodes=1))
    head.evicted = ["node000/gpu3"]
    head.start_worker([0], "w0")
    head.wait_ready(3)
    head.serve(0.5)
    assert sorted(head.incarnations) == ["node000/gpu0", "node000/gpu1", "node000/gpu2"]


def test_a_worker_with_an_unknown_key_never_registers_and_still_ends_on_sigterm(make_head: MakeHead, tmp_path: Path) -> None:
    head = make_head(spec_of(1))
    worker = head.start_worker([0], "w0", keys=foreign_worker_key(head, tmp_path / "foreign"))
    head.wait("a refused handshake", lambda: head.zap.refused)
    head.serve(1)
    assert not head.messages
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(30) == 143


@pytest.mark.parametrize(("how", "status"), [("SIGTERM", 143), ("StopWorker", 0)])
def test_a_worker_that_is_told_to_stop_ends_its_replicas_and_only_its_heads_word_is_success(
    make_head: MakeHead, how: str, status: int
) -> None:
    head = make_head(spec_of(1, nodes=1, replicas_per_node=2))
    worker = head.start_worker([0], "w0")
    head.wait_ready(2)
    pids = worker.children()
    if how == "SIGTERM":
        worker.signal(signal.SIGTERM)
    else:
        head.say("w0", control.StopWorker("test"))
    head.wait("the worker's end", lambda: worker.process.poll() is not None)
    assert worker.process.returncode == status
    assert not any(map(alive, pids))


def test_a_rejected_worker_exits_with_the_reason(make_head: MakeHead, monkeypatch: pytest.MonkeyPatch) -> None:
    head = make_head(spec_of(1))
    worker = head.start_worker([0], "w0")
    head.hear = lambda peer, _: (head.peers.update(w0=peer), head.say("w0", control.Rejected("not one of ours")))  # type: ignore
    head.wait("the worker's end", lambda: worker.process.poll() is not None)
    assert worker.process.returncode == 2
    assert "not one of ours" in worker.log_path.read_text()


def test_a_worker_without_a_head_ends_itself_and_its_replicas(make_head: MakeHead) -> None:
    head = make_head(spec_of(4, nodes=1, orphan_s=4))
    worker = head.start_worker([0], "w0")
    head.wait_ready(4)
    pids = worker.children()
    deadline = time.monotonic() + 60
    while worker.process.poll() is None:  # nobody serves the head's socket now
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert worker.process.returncode == 3
    assert not any(map(alive, pids))
