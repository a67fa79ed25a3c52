"""Whole nodes on a cluster: who goes with whom, when the pod is evicted, what a refusal means, and another size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from head_kit import Fleet, a_spec
from test_head_acts import ARun

from harness.cluster.base import ClusterError, NodeEvent, Place, Removal
from harness.head.acts import Acts
from harness.head.drains import Drains
from harness.head.journal import Journal
from harness.head.placement import Placement
from harness.head.workers import Workers
from harness.records.journal import JournalWriter
from harness.spec import RunSpec
from harness.wire import control, states
from harness.wire.clusterview import ClusterView
from harness.wire.control import Command, CommandReply


class ACluster:
    """Answers as it is told to; keeps what it was asked."""

    kind, evicts_nodes = "kubernetes", True

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool, str]] = []
        self.wanted = 0
        self.refusal = ""
        self.known = Removal(delay_s=20, subject="pod worker-1-abcde", why_no_cordon="nodes may not be changed")
        self.events: list[NodeEvent] = []

    def start(self, place: Place) -> None: ...

    def poll(self, now_s: float) -> list[NodeEvent]:
        events, self.events = self.events, []
        return events

    def why_missing(self, node: int) -> str:
        return f"pod of node {node}: Pending"

    def view(self) -> ClusterView | None:
        return None

    def removal(self, node: int) -> Removal:
        return self.known

    async def evict(self, node: int, *, cordon: bool, why: str) -> str:
        self.asked.append((node, cordon, why))
        await asyncio.sleep(0)
        if self.refusal:
            raise ClusterError(self.refusal)
        return f"the pod of node {node} is evicted"

    def scaled(self, nodes: int) -> None:
        self.wanted = nodes

    def describe(self, node: int) -> list[str]:
        return []

    def stop(self, deadline_s: float) -> None: ...


class Desk:
    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self.spec, self.fleet, self.cluster, self.head = spec, Fleet(spec), ACluster(), ARun()
        self.roster, clock = self.fleet.roster, self.fleet.clock
        self.journal = Journal(JournalWriter(folder / "journal.jsonl"), lambda entry: None, clock.unix)
        self.sent: list[msgspec.Struct] = []
        self.workers = Workers(
            self.roster, self.journal, self._send, head_epoch=1, spec_json=b"", clock=clock, on_beat=lambda *_: None
        )
        self.placement = Placement(self, self.cluster, lambda *_: None)
        self.drains = Drains(self.roster, clock, lambda *_: None, self.placement.evict, {}, set())
        self.acts = Acts(self.head, self.roster, self.drains, self.journal, spec, clock, self.placement)
        for node in range(spec.fleet.nodes):
            self.workers.handle(b"w%d" % node, control.RegisterWorker(f"worker-{node}", "i", [node], "here", 1))
        self.fleet.ready()
        self.sent.clear()

    @property
    def attempt_running(self) -> bool:
        return True

    def _send(self, peer: bytes, message: msgspec.Struct) -> bool:
        self.sent.append(message)
        return True

    def ask(self, act: str, **args: Any) -> CommandReply:
        return self.acts.run(Command(f"{act}{len(self.journal.tail)}", "ann", act, args, "because"), "operator")

    def drained(self, *numbers: int) -> None:
        for number in numbers:
            self.drains.note_drained(self.fleet[number].slot, "a")
        self.drains.tick()
        self.placement.tick()

    async def soon(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def told(self, what: str) -> list[str]:
        return [entry.why for entry in self.journal.tail if entry.what == what]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, a_spec(3, 2, fleet={"barrier": {"min_ready": 1}}, cluster={"kind": "kubernetes"}))


async def test_an_eviction_takes_the_whole_pod_once_all_its_replicas_have_drained(desk: Desk) -> None:
    answer = desk.ask("evict", slot="node001/gpu0")
    assert answer.ok, answer.message
    assert "pod worker-1-abcde with 2 replicas" in answer.message
    assert "about 20 s" in answer.message
    assert desk.fleet.states() == ["READY", "READY", "DRAINING", "DRAINING", "READY", "READY"]
    desk.drained(2)
    assert not desk.cluster.asked
    desk.drained(3)
    await desk.soon(lambda: desk.told("pod.evicted") != [])
    assert desk.cluster.asked == [(1, False, "because")]
    assert desk.fleet.states()[2:4] == ["EVICTED", "EVICTED"]
    assert not desk.workers.stopped_slots  # the successor's worker may start them


async def test_a_pod_that_may_not_go_after_all_gets_its_replicas_back(desk: Desk) -> None:
    desk.cluster.refusal = "the budget allows none"
    desk.ask("evict", slot="node001/gpu1")
    desk.drained(2, 3)
    await desk.soon(lambda: desk.told("pod.not_evicted") != [])
    assert desk.told("pod.not_evicted") == ["the budget allows none; its replicas start again in place"]
    assert [message.slot for message in desk.sent if isinstance(message, control.StartSlot)] == ["node001/gpu0", "node001/gpu1"]


async def test_what_the_budget_forbids_is_refused_before_anything_drains_even_by_force(desk: Desk) -> None:
    desk.cluster.known = Removal(why_not="the budget lets no worker go now")
    answer = desk.ask("evict", slot="node001/gpu1", force=True)
    assert not answer.ok
    assert answer.message == "the budget lets no worker go now"
    assert set(desk.fleet.states()) == {"READY"}


async def test_a_cordon_that_is_not_allowed_is_refused_with_its_reason(desk: Desk) -> None:
    answer = desk.ask("evict", slot="node001/gpu1", cordon=True)
    assert not answer.ok
    assert answer.message == "cordon: nodes may not be changed"


async def test_a_readmitted_replica_keeps_its_pod_and_its_fellows(desk: Desk) -> None:
    desk.ask("evict", slot="node001/gpu0")
    desk.drained(2)
    # The first of the two is evicted already; the other is wanted back.
    assert desk.ask("readmit", slot="node001/gpu1").ok
    desk.drained()
    await asyncio.sleep(0.05)
    assert not desk.cluster.asked
    assert desk.fleet[3].state == states.READY


async def test_a_dead_replicas_pod_can_be_evicted_too(desk: Desk) -> None:
    for number in (2, 3):
        desk.roster.move(desk.fleet[number], states.LOST, "hangs")
    assert desk.ask("evict", slot="node001/gpu0").ok
    await desk.soon(lambda: desk.cluster.asked != [])


async def test_scaling_down_drains_the_highest_nodes_and_up_takes_them_back(desk: Desk) -> None:
    answer = desk.ask("scale", nodes=2)
    assert answer.ok, answer.message
    assert answer.message == "2 of 3 nodes are wanted; node002 drains"
    assert desk.cluster.wanted == 2
    assert desk.fleet.states()[4:] == ["DRAINING", "DRAINING"]
    assert desk.fleet[4].waived
    desk.drained(4, 5)
    answer = desk.ask("scale", nodes=3)
    assert answer.message == "3 of 3 nodes are wanted; node002 is waited for again"
    assert set(desk.fleet.states()) == {"READY"}
    assert not desk.fleet[4].waived


async def test_scaling_down_asks_for_the_same_quorum_of_the_rest_as_an_eviction(tmp_path: Path) -> None:
    desk = Desk(tmp_path, a_spec(3, 2, cluster={"kind": "kubernetes"}))
    for number in (0, 1, 2):
        desk.roster.move(desk.fleet[number], states.LOST, "hangs")
    answer = desk.ask("scale", nodes=2)
    assert answer.message == "1 READY replicas would remain, the quorum is 2; force to do it anyway"
    assert desk.cluster.wanted != 2
    assert desk.ask("scale", nodes=2, force=True).ok


@pytest.mark.parametrize("nodes", [0, 4, "2", True, None, 2.5])
async def test_a_size_that_the_fleet_cannot_have_is_refused(desk: Desk, nodes: Any) -> None:
    answer = desk.ask("scale", nodes=nodes)
    assert not answer.ok
    assert "1 to 3 (fleet.nodes when it was started)" in answer.message


async def test_what_happens_to_pods_is_journalled_and_an_exit_takes_its_replicas(desk: Desk) -> None:
    desk.cluster.events = [
        NodeEvent("worker-2", (2,), "event", "node gpu-17 is NotReady", level="warn"),
        NodeEvent("worker-1", (1,), "exited", "pod worker-1-abcde was OOMKilled"),
    ]
    desk.placement.each_second(1.0)
    assert desk.told("worker.event") == ["node gpu-17 is NotReady"]
    assert desk.fleet.states()[2:4] == ["LOST", "LOST"]
    assert desk.workers.of_node(1) is None
    assert desk.placement.why_no_node(1) == "pod of node 1: Pending"
