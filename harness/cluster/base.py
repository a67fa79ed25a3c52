"""The seam between a head and whatever places its workers: processes on this machine, or pods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol


class ClusterError(Exception):
    """Workers cannot be placed; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something that happened to a worker since the last poll."""

    worker: str
    nodes: tuple[int, ...]
    kind: Literal["started", "exited", "pending", "gave_up"]
    reason: str = ""
    pid: int = 0
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the head listens and what workers need to find it."""

    control: str
    facts: dict[str, str] = field(default_factory=dict)


class Cluster(Protocol):
    kind: str

    def start(self, place: Place) -> None:
        """Place every worker, or adopt those that a previous head of this run left alive. Raises ClusterError."""

    def poll(self, now_s: float) -> list[NodeEvent]:
        """Cheap; called once or twice a second. Restarts dead workers with a doubling delay."""

    def why_missing(self, node: int) -> str:
        """Why a node has not registered, in words; "" when nothing is known."""

    def stop(self, deadline_s: float) -> None:
        """End every worker of this run and nothing else; blocks up to the deadline, then kills."""
