"""The seam between a head and whatever places its workers: processes on this machine, or pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from harness.wire.clusterview import ClusterView


class ClusterError(Exception):
    """Workers cannot be placed; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something that happened to a worker since the last poll."""

    worker: str
    nodes: tuple[int, ...]
    kind: Literal["started", "exited", "pending", "gave_up", "event"]
    reason: str = ""
    pid: int = 0
    retry_in_s: float | None = None
    level: str = ""  # info, warn, error; "" lets the kind decide


@dataclass(frozen=True, slots=True)
class Place:
    """Where the head listens and what workers need to find it."""

    control: str
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Removal:
    """What evicting a node's worker would mean now. `why_not`: it cannot be done, in words; `delay_s`: until its successor
    starts, as far as can be told."""

    why_not: str = ""
    delay_s: float = 0.0
    subject: str = ""  # the pod
    why_no_cordon: str = ""


class Cluster(Protocol):
    kind: str
    #: Evicting a replica takes the whole worker of its node (a pod); else the worker ends that replica alone.
    evicts_nodes: bool

    def start(self, place: Place) -> None:
        """Place every worker, or adopt those that a previous head of this run left alive. Raises ClusterError."""

    def poll(self, now_s: float) -> list[NodeEvent]:
        """Cheap; called once or twice a second. Restarts dead workers with a doubling delay."""

    def why_missing(self, node: int) -> str:
        """Why a node has not registered, in words; "" when nothing is known."""

    def view(self) -> ClusterView | None:
        """What a console is shown of pods and nodes; None where workers are plain processes. The same object until it changes."""

    def removal(self, node: int) -> Removal:
        """Answered from what is known, without asking anybody."""

    async def evict(self, node: int, *, cordon: bool, why: str) -> str:
        """Have the node's worker ended and replaced; only where `evicts_nodes`. Waits, within a deadline, for a budget that
        allows it. Returns what follows, in words. Raises ClusterError with cause and next step."""

    def scaled(self, nodes: int) -> None:
        """So many nodes are wanted from now on."""

    def describe(self, node: int) -> list[str]:
        """All that is known of a node's worker, as lines for a person; empty when there is nothing to say."""

    def stop(self, deadline_s: float) -> None:
        """End every worker of this run and nothing else; blocks up to the deadline, then kills."""
