"""The head's side of what places its workers: what happens to them, who goes with whom, and how many nodes are wanted.

Where workers are processes, a replica is evicted alone: its worker ends it and starts it again after a delay that doubles.
On a cluster its pod goes, with every replica in it: all of them drain first, then the pod is evicted, and should the
cluster refuse that after all, the replicas are started again in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.cluster.base import Cluster, ClusterError, NodeEvent, Place, Removal
from harness.head.drains import Drains
from harness.head.journal import Journal
from harness.head.roster import Replica, Roster
from harness.head.workers import Workers
from harness.spec import RunSpec, node_name
from harness.wire import control, states
from harness.wire.clusterview import ClusterView

_LEVELS = {"started": "info", "event": "info"}


@dataclass(frozen=True, slots=True)
class Leave:
    """A node whose pod shall go once its replicas have drained."""

    who: str
    why: str
    cordon: bool


class Head(Protocol):
    spec: RunSpec
    roster: Roster
    workers: Workers
    journal: Journal
    drains: Drains

    @property
    def attempt_running(self) -> bool: ...


class Placement:
    def __init__(self, head: Head, cluster: Cluster, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._head, self._cluster, self._later = head, cluster, later
        self._evicted: dict[str, int] = {}  # slot → how often, of replicas that are evicted alone
        self._leaving: dict[int, Leave] = {}
        self._out: set[int] = set()  # nodes that the fleet has been scaled down by
        self._tasks: set[asyncio.Task[None]] = set()
        self.whole_nodes = cluster.evicts_nodes

    # --- life --------------------------------------------------------------------------------------------

    def start(self, endpoint: str, wanted: int | None) -> None:
        """`wanted`: nodes asked for before this head began, None: as the spec says. Raises ClusterError."""
        self._cluster.start(Place(endpoint))
        if self.whole_nodes:
            start = self._head.spec.cluster.kubernetes.start_nodes
            nodes = wanted or start or self._head.spec.fleet.nodes
            self._cluster.scaled(nodes)
            self._take_out(nodes, "head", "not among the nodes that are wanted at first")

    def stop(self, deadline_s: float) -> None:
        self._cluster.stop(deadline_s)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def each_second(self, now_s: float) -> None:
        for event in [] if self._head.workers.ending else self._cluster.poll(now_s):
            self._note(event)
            if event.kind in ("exited", "gave_up"):
                self._head.workers.worker_gone(event.nodes, event.reason)

    def _note(self, event: NodeEvent) -> None:
        retry = f"; starts again in {event.retry_in_s:g} s" if event.retry_in_s is not None else ""
        why = f"{event.reason}{retry}" if event.reason else f"process {event.pid}"
        level = event.level or _LEVELS.get(event.kind, "error")
        self._head.journal.note(f"worker.{event.kind}", subject=event.worker, why=why, level=level)

    # --- what is known -----------------------------------------------------------------------------------

    def why_no_node(self, node: int) -> str:
        worker = self._head.workers.of_node(node)
        if worker is not None:
            return f"worker {worker.name} is registered, no REGISTER from this replica yet"
        return self._cluster.why_missing(node)

    def view(self) -> ClusterView | None:
        return self._cluster.view()

    def describe(self, node: int) -> list[str]:
        return self._cluster.describe(node)

    def removal(self, replica: Replica) -> Removal:
        return self._cluster.removal(replica.node)

    # --- evictions ---------------------------------------------------------------------------------------

    def going_with(self, replica: Replica) -> list[Replica]:
        """All that an eviction of this one takes, of those that live."""
        if not self.whole_nodes:
            return [replica]
        return [other for other in self._head.roster.replicas if other.node == replica.node and other.alive]

    def leave(self, node: int, who: str, why: str, *, cordon: bool) -> None:
        """To be called after the node's replicas have begun to drain."""
        if self.whole_nodes:
            self._leaving[node] = Leave(who, why, cordon)
            self.tick()

    def stay(self, node: int) -> bool:
        """Somebody wants a replica of this node back: its pod stays. False: it was not to go."""
        return self._leaving.pop(node, None) is not None

    def evict(self, replica: Replica, who: str, why: str) -> None:
        """The replica has drained, or its deadline has passed: what it holds goes back at once."""
        workers = self._head.workers
        self._head.roster.move(replica, states.EVICTED, why, who)
        workers.stopped_slots.add(replica.slot)  # also for a worker that restarts meanwhile
        workers.command(replica, control.StopSlot(replica.slot, replica.incarnation, f"evicted: {why}"))
        if self.whole_nodes:
            return
        times = self._evicted[replica.slot] = self._evicted.get(replica.slot, 0) + 1
        fleet = self._head.spec.fleet
        delay_s = min(fleet.restart_backoff_s * 2 ** (times - 1), fleet.restart_backoff_max_s)
        self._later(delay_s, lambda: self.start_slot(replica))

    def start_slot(self, replica: Replica) -> None:
        if self._head.workers.ending:
            return
        self._head.workers.stopped_slots.discard(replica.slot)
        self._head.workers.command(replica, control.StartSlot(replica.slot))

    def tick(self) -> None:
        """Evict the pods of which nothing drains any more."""
        for node, leave in list(self._leaving.items()):
            fellows = [replica for replica in self._head.roster.replicas if replica.node == node]
            if any(replica.slot in self._head.drains.pending for replica in fellows):
                continue
            del self._leaving[node]
            for replica in fellows:
                if replica.alive:  # it came up while the others drained
                    self.evict(replica, leave.who, leave.why)
            task = asyncio.get_running_loop().create_task(self._evict_node(node, leave, fellows))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _evict_node(self, node: int, leave: Leave, fellows: Sequence[Replica]) -> None:
        try:
            said = await self._cluster.evict(node, cordon=leave.cordon, why=leave.why)
        except ClusterError as error:
            why = f"{error}; its replicas start again in place"
            self._head.journal.note("pod.not_evicted", who=leave.who, subject=node_name(node), why=why, level="error")
            for replica in fellows:
                if replica.state == states.EVICTED:
                    self.start_slot(replica)
            return
        self._head.journal.note("pod.evicted", who=leave.who, subject=node_name(node), why=said, level="warn")
        for replica in fellows:
            self._head.workers.stopped_slots.discard(replica.slot)  # its successor's worker starts them

    # --- how many nodes ----------------------------------------------------------------------------------

    def scale(self, nodes: int, who: str, why: str) -> str:
        """Want so many nodes of the fleet: the others drain and are not waited for. Raises ClusterError."""
        self._cluster.scaled(nodes)
        leaving = self._take_out(nodes, who, why or f"scaled to {nodes} nodes")
        coming = self._take_in(nodes)
        told = [f"{nodes} of {self._head.spec.fleet.nodes} nodes are wanted"]
        if leaving:
            told.append(f"{_nodes(leaving)} drain{'s' if len(leaving) == 1 else ''}")
        if coming:
            told.append(f"{_nodes(coming)} {'is' if len(coming) == 1 else 'are'} waited for again")
        return "; ".join(told)

    def _take_out(self, nodes: int, who: str, why: str) -> list[int]:
        leaving = [node for node in range(nodes, self._head.spec.fleet.nodes) if node not in self._out]
        self._out |= set(leaving)
        for replica in self._head.roster.replicas:
            if replica.node not in leaving:
                continue
            replica.waived = True
            self._head.roster.touch(replica)
            if replica.state in states.HOLDS_SAMPLES:
                holds = self._head.attempt_running
                self._head.drains.start(replica, "stay", within_s=float("inf"), who=who, why=why, holds_samples=holds)
        return leaving

    def _take_in(self, nodes: int) -> list[int]:
        coming = sorted(node for node in self._out if node < nodes)
        self._out -= set(coming)
        for replica in self._head.roster.replicas:
            if replica.node not in coming:
                continue
            replica.waived = False
            self._head.roster.touch(replica)
            if replica.state in (states.DRAINING, states.DRAINED):
                self._head.drains.cancel(replica.slot)
                self._head.roster.move(replica, states.READY, "its node is wanted again")
        return coming


def _nodes(nodes: list[int]) -> str:
    named = ", ".join(map(node_name, nodes[:3]))
    return f"{len(nodes)} nodes ({named}{', …' if len(nodes) > 3 else ''})" if len(nodes) > 1 else named
