"""The head's side of workers and replicas: what each message is answered with, and that exits of the right life count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from head_kit import Fleet

from harness.head.journal import Journal
from harness.head.roster import Replica
from harness.head.workers import Workers
from harness.records.journal import JournalWriter
from harness.wire import control, states


class Office:
    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet()
        self.sent: list[tuple[bytes, Any]] = []
        self.beats: list[str] = []
        self.journal = Journal(JournalWriter(folder / "journal.jsonl"), lambda entry: None, self.fleet.clock.unix)
        self.workers = Workers(
            self.fleet.roster,
            self.journal,
            self._send,
            head_epoch=4,
            spec_json=b"{}",
            clock=self.fleet.clock,
            on_beat=self._on_beat,
        )

    def _send(self, peer: bytes, message: msgspec.Struct) -> bool:
        self.sent.append((peer, message))
        return True

    def _on_beat(self, replica: Replica, beat: control.ReplicaBeat) -> None:
        self.beats.append(replica.slot)

    def says(self, message: control.ToHead, peer: bytes = b"p") -> list[Any]:
        """The answers to this peer."""
        self.sent.clear()
        self.workers.handle(peer, message)
        return [answer for to, answer in self.sent if to == peer]

    def worker(self, name: str = "w000", nodes: tuple[int, ...] = (0,), incarnation: str = "w-a") -> control.RegisterWorker:
        return control.RegisterWorker(name, incarnation, list(nodes), "here", 99)

    def noted(self, what: str) -> list[str]:
        return [entry.subject for entry in self.journal.tail if entry.what == what]


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def test_a_worker_is_told_the_slots_of_its_nodes_and_registering_again_is_noted_once(office: Office) -> None:
    for _ in range(2):
        (plan,) = office.says(office.worker("w001", (1,)))
        assert plan == control.WorkerPlan(4, b"{}", ["node001/gpu0", "node001/gpu1"])
    assert office.noted("worker.register") == ["w001"]
    office.says(office.worker("w001", (1,), "w-b"))
    assert office.noted("worker.register") == ["w001", "w001"]


def test_a_worker_for_nodes_outside_the_run_is_refused(office: Office) -> None:
    (answer,) = office.says(office.worker(nodes=(1, 2, 7)))
    assert answer == control.Rejected("nodes [2, 7] are not part of this run", head_epoch=4)
    assert not office.workers.workers


def test_a_beat_of_an_unknown_worker_is_answered_with_unknown_until_it_registers(office: Office) -> None:
    beat = control.WorkerBeat("w000", "w-a", 3)
    assert office.says(beat) == [control.Unknown(4)]
    office.says(office.worker())
    assert office.says(beat) == [control.BeatAck(4)]
    assert office.says(control.WorkerBeat("w000", "an earlier life", 3)) == [control.Unknown(4)]


def test_a_replica_is_acknowledged_or_told_why_not(office: Office) -> None:
    assert office.says(office.fleet.message(0)) == [control.Ack("node000/gpu0", "a", 4)]
    (answer,) = office.says(office.fleet.message(1, model="llama"))
    assert isinstance(answer, control.Rejected)
    assert (answer.slot, answer.incarnation) == ("node000/gpu1", "a")
    assert "llama" in answer.reason
    assert office.noted("replica.rejected") == ["node000/gpu1"]


def test_one_heartbeat_for_many_replicas_names_those_that_must_register_again(office: Office) -> None:
    office.fleet.ready(0, 1)
    beats = [
        control.ReplicaBeat("node000/gpu0", "a", "READY"),
        control.ReplicaBeat("node000/gpu1", "old", "READY"),
        control.ReplicaBeat("node001/gpu0", "a", "READY"),
    ]
    assert office.says(control.Heartbeat(3, 1.5, beats)) == [
        control.Unknown(4, "node000/gpu1", "old"),
        control.Unknown(4, "node001/gpu0", "a"),
        control.BeatAck(4),
    ]
    assert office.beats == ["node000/gpu0"]


def test_an_exit_is_a_loss_at_once_with_its_reason(office: Office) -> None:
    office.fleet.ready(0)
    office.says(control.ReplicaExited("node000/gpu0", "a", "exited with status 1", ["Traceback", "OOM"], 2.0, 1))
    assert office.fleet[0].state == "LOST"
    assert office.fleet[0].reason == "exited with status 1; starts again in 2 s"
    assert office.fleet[0].restarts == 1
    entry = next(entry for entry in office.journal.tail if entry.what == "replica.exit")
    assert entry.data["log_tail"] == ["Traceback", "OOM"]


def test_the_late_news_of_an_earlier_lifes_exit_does_not_hurt_the_present_one(office: Office) -> None:
    office.fleet.ready(0)
    office.fleet.ready(0, incarnation="b")
    office.says(control.ReplicaExited("node000/gpu0", "a", "killed"))
    assert (office.fleet[0].state, office.fleet[0].incarnation) == ("READY", "b")
    assert office.fleet.roster.stale_messages == 1


def test_an_engine_that_dies_before_it_registers_leaves_its_reason(office: Office) -> None:
    office.says(control.ReplicaExited("node000/gpu0", "x", "no such model"))
    assert office.fleet[0].state == "NEW"
    assert office.fleet[0].reason == "no such model; not started again"
    assert office.noted("replica.exit") == ["node000/gpu0"]


def test_exits_at_the_end_of_a_run_are_as_they_should_be(office: Office) -> None:
    office.fleet.ready(0)
    office.workers.ending = True
    office.says(control.ReplicaExited("node000/gpu0", "a", "stopped"))
    assert office.fleet[0].state == "READY"


def test_a_worker_that_is_gone_takes_the_replicas_of_its_nodes_with_it(office: Office) -> None:
    office.fleet.ready()
    office.workers.worker_gone((1,), "worker w001 was ended by SIGKILL")
    assert office.fleet.states() == ["READY", "READY", "LOST", "LOST"]
    assert office.fleet[2].reason == "worker w001 was ended by SIGKILL"


def test_commands_go_to_the_worker_of_the_replicas_node_over_its_latest_connection(office: Office) -> None:
    stop = control.StopSlot("node001/gpu0", "a", "evicted")
    office.workers.command(office.fleet[2], stop)
    assert office.sent == []
    office.says(office.worker("w000", (0,)), b"zero")
    office.says(office.worker("w001", (1,)), b"one")
    office.says(control.WorkerBeat("w001", "w-a", 4), b"one again")
    office.sent.clear()
    office.workers.command(office.fleet[2], stop)
    assert office.sent == [(b"one again", stop)]


def test_news_for_replicas_go_once_to_every_connection_behind_a_live_one(office: Office) -> None:
    office.fleet.register(0, peer=b"one")
    office.fleet.register(1, peer=b"one")
    office.fleet.register(2, peer=b"two")
    office.fleet.register(3, peer=b"three")
    office.fleet.roster.move(office.fleet[3], states.LOST, "gone")
    assert office.workers.replica_peers() == {b"one", b"two"}
