"""A head's rooms without a head: a small fleet, a clock that tests turn, and the messages that replicas send."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.cluster.base import ClusterError, Removal
from harness.head.roster import Replica, Roster
from harness.spec import RunSpec
from harness.wire.control import Register, ReplicaBeat

ARGS_HASH = "0123456789ab"
LEASE_S = 10.0


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return 1.7e9 + self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


def a_spec(nodes: int = 2, replicas_per_node: int = 2, **tables: dict[str, Any]) -> RunSpec:
    fleet = {"nodes": nodes, "replicas_per_node": replicas_per_node, "lease_s": LEASE_S, **tables.pop("fleet", {})}
    return RunSpec.model_validate({"fleet": fleet, **tables})


class EachAlone:
    """Workers that are processes: a replica goes without its fellows."""

    whole_nodes = False

    def going_with(self, replica: Replica) -> list[Replica]:
        return [replica]

    def removal(self, replica: Replica) -> Removal:
        return Removal()

    def leave(self, node: int, who: str, why: str, *, cordon: bool) -> None:
        raise AssertionError("no node leaves")

    def stay(self, node: int) -> bool:
        return False

    def scale(self, nodes: int, who: str, why: str) -> str:
        raise ClusterError("a fleet of processes keeps its size")


@dataclass
class Fleet:
    """A roster whose moves are kept as (slot, before, after, why, who)."""

    spec: RunSpec = field(default_factory=a_spec)
    clock: Clock = field(default_factory=Clock)
    moves: list[tuple[str, str, str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.roster = Roster(self.spec, ARGS_HASH, self._moved, self.clock, self.clock.unix)

    def _moved(self, replica: Replica, before: str, why: str, who: str) -> None:
        self.moves.append((replica.slot, before, replica.state, why, who))

    def __getitem__(self, number: int) -> Replica:
        return self.roster.replicas[number]

    def message(self, number: int, incarnation: str = "a", **changes: Any) -> Register:
        fields: dict[str, Any] = {
            "slot": self[number].slot,
            "incarnation": incarnation,
            "role": "both",
            "model": self.spec.model.name,
            "args_hash": ARGS_HASH,
            "engine": "synthetic",
            "synthetic": True,
            "worker": f"w{self[number].node:03d}",
            "pid": 4000 + number,
            "host": "here",
        }
        return Register(**{**fields, **changes})

    def register(self, number: int, incarnation: str = "a", peer: bytes = b"peer") -> Replica:
        admission = self.roster.register(self.message(number, incarnation), peer)
        assert admission.replica is not None, admission.reason
        return admission.replica

    def beat(self, number: int, incarnation: str = "a", state: str = "READY", **facts: Any) -> Replica | None:
        return self.roster.beat(ReplicaBeat(self[number].slot, incarnation, state, **facts), b"peer", 1.0)

    def ready(self, *numbers: int, incarnation: str = "a") -> None:
        for number in numbers or range(len(self.roster.replicas)):
            self.register(number, incarnation)
            self.beat(number, incarnation)

    def states(self) -> list[str]:
        return [replica.state for replica in self.roster.replicas]
