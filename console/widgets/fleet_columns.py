"""Columns of the Fleet table: what there is for replicas and for nodes, and which of it a terminal has room for. Pure.

On a cluster where a replica stands comes before its figures, and nodes have a note on pod and Kubernetes node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from console.store.columns import TEXTS
from console.store.fleet import FleetStore
from console.widgets import fmt

_ALIKE: Final = ("engine", "args")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    title: str
    width: int
    right: bool = True
    write: Callable[[float], str] = fmt.count


def _factor(value: float) -> str:
    return fmt.UNKNOWN if math.isnan(value) else f"{value:.2f}x"


_SLOT: Final = Column("slot", "REPLICA", 14, right=False)
_STATE: Final = Column("state", "STATE", 13, right=False)
_FIGURES: Final = (
    Column("tok/s", "TOK/S", 9), Column("dmed", "Δmed", 7, write=fmt.signed_percent), Column("ratio", "ratio", 7, write=_factor),
    Column("z", "z", 7, write=fmt.signed), Column("ttft", "TTFTp99", 9, write=fmt.millis),
    Column("tpot", "TPOTp99", 9, write=fmt.millis), Column("kv", "KV", 5, write=fmt.percent), Column("run", "RUN", 5),
    Column("wait", "WAIT", 6), Column("inflight", "INFLIGHT", 10), Column("oldest", "OLDEST", 8, write=fmt.age),
    Column("age", "FOR", 6, write=fmt.age),
)  # fmt: skip
_MORE: Final = (
    Column("role", "ROLE", 6, False), Column("host", "HOST", 6, False), Column("worker", "WORKER", 8, False),
    Column("pod", "POD", 5, False), Column("restarts", "RESTARTS", 10), Column("life", "LIFE", 6),
    Column("beat", "BEAT", 6, write=fmt.age), Column("incarnation", "  INCARNATION", 16, False),
    Column("engine", "ENGINE", 8, False), Column("args", "ARGS", 6, False), Column("waived", "WAIVED", 8, False),
    Column("step", "STEP", 9, write=fmt.millis), Column("batch", "BATCH", 7, write=fmt.big),
)  # fmt: skip
_REASON: Final = Column("reason", "   REASON", 10, False)
_HOST: Final = Column("host", "  HOST", 8, False)
_RACK: Final = Column("rack", "RACK", 6, False)
_POD: Final = Column("pod", "POD", 5, False)
_ROLE: Final = Column("role", "ROLE", 8, False)
_REPLICA: Final = (_SLOT, _STATE, *_FIGURES)
_REPLICA_SPLIT: Final = (_SLOT, _ROLE, _STATE, *_FIGURES)
_REPLICA_WIDE: Final = (_SLOT, _STATE, *_MORE, *_FIGURES, _REASON)
_MORE_CLUSTER: Final = (_MORE[0], _HOST, _RACK, *_MORE[2:])
_REPLICA_WIDE_CLUSTER: Final = (_SLOT, _STATE, *_MORE_CLUSTER, *_FIGURES, _REASON)
_REPLICA_DROPS: Final = ("run", "tpot", "oldest", "ratio", "inflight", "kv", "wait", "dmed", "age", "z")

_NODE: Final = (
    Column("node", "NODE", 10, False), Column("states", "REPLICAS", 27, False), Column("slow", "SLOW", 6),
    Column("missing", "MISSING", 9), Column("tok/s", "TOK/S", 10), Column("dmed", "Δmed", 7, write=fmt.signed_percent),
    Column("ratio", "ratio", 7, write=_factor), Column("ttft", "TTFTp99", 9, write=fmt.millis),
    Column("tpot", "TPOTp99", 9, write=fmt.millis), Column("kv", "KV", 5, write=fmt.percent), Column("run", "RUN", 7),
    Column("wait", "WAIT", 7), Column("inflight", "INFLIGHT", 10), Column("oldest", "OLDEST", 8, write=fmt.age),
)  # fmt: skip
_NODE_WIDE: Final = (*_NODE, Column("z", "z", 7, write=fmt.signed), Column("restarts", "RESTARTS", 10))
_NOTE: Final = Column("note", "   POD AND NODE", 48, False)  # takes what is left
_STATES_NARROW: Final = 12  # of the counts beside it: without the names of states
_NOTE_NEEDS: Final = 135  # columns from which there is room for both in words
_NODE_CLUSTER: Final = (_NODE[0], _HOST, _RACK, *_NODE[1:], _NOTE)
_NODE_CLUSTER_DROPS: Final = (
    "slow", "missing", "run", "oldest", "inflight", "tpot", "kv", "dmed", "wait", "rack", "ttft", "ratio",
)  # fmt: skip
_REPLICA_CLUSTER_DROPS: Final = (
    "pod", "rack", "run", "oldest", "tpot", "inflight", "ratio", "kv", "wait", "dmed", "host", "age", "z",
)  # fmt: skip
_NODE_CLUSTER_WIDE: Final = (*_NODE_CLUSTER[:-1], *_NODE_WIDE[-2:], replace(_NOTE, width=60))
_NODE_DROPS: Final = ("run", "oldest", "inflight", "tpot", "dmed", "wait", "missing", "kv", "slow")


def chosen_columns(columns: tuple[Column, ...], drops: tuple[str, ...], room: int) -> tuple[Column, ...]:
    """As many as fit; those named in `drops` go first, in that order."""
    kept = list(columns)
    for name in drops:
        if sum(column.width for column in kept) <= room:
            break
        kept = [column for column in kept if column.name != name]
    return tuple(kept)


def usual_texts(store: FleetStore) -> dict[tuple[str, str], str]:
    """What most replicas of a role run, of what all of a role should have alike: who differs is worth a look."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for info in store.slots:
        for name in _ALIKE:
            text = TEXTS[name].of(store, info)
            if text:  # not registered yet
                counts.setdefault((name, info.role), Counter())[text] += 1
    return {key: found.most_common(1)[0][0] for key, found in counts.items()}


def usual_columns(store: FleetStore, room: int, *, by_node: bool) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """And which of them go first where there is too little room. On a cluster all of where a replica stands that fits."""
    on_cluster = store.cluster.view is not None
    if by_node:
        if not on_cluster:
            return _NODE, _NODE_DROPS
        if room >= _NOTE_NEEDS:
            return _NODE_CLUSTER, _NODE_CLUSTER_DROPS
        short = (replace(one, width=_STATES_NARROW) if one.name == "states" else one for one in _NODE_CLUSTER)
        return tuple(short), _NODE_CLUSTER_DROPS
    replica = _REPLICA_SPLIT if store.split else _REPLICA
    if not on_cluster:
        return replica, _REPLICA_DROPS
    return (*replica[: -len(_FIGURES)], _HOST, _RACK, _POD, *_FIGURES), _REPLICA_CLUSTER_DROPS


def wide_columns(store: FleetStore, *, by_node: bool) -> tuple[Column, ...]:
    if store.cluster.view is not None:
        return _NODE_CLUSTER_WIDE if by_node else _REPLICA_WIDE_CLUSTER
    return _NODE_WIDE if by_node else _REPLICA_WIDE


def noted(columns: tuple[Column, ...], room: int) -> tuple[Column, ...]:
    """The last column, when it is the note, is as wide as there is room."""
    if columns[-1].name != _NOTE.name:
        return columns
    rest = room - sum(column.width for column in columns[:-1])
    return (*columns[:-1], replace(columns[-1], width=max(12, rest)))


def in_words(column: Column) -> bool:
    """Counts of states have the names of the states, not their marks alone."""
    return column.width > _STATES_NARROW
