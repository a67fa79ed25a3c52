"""Columns of the Fleet table: what there is for replicas and for nodes, and which of it a terminal has room for. Pure.

On a cluster where a replica stands comes before its figures, and nodes have a note on pod and Kubernetes node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from console.store.columns import NUMBERS, TEXTS
from console.store.fleet import FleetStore
from console.store.gpus import COLUMN_OF, ROLE_OF
from console.store.nodes import GPU_COLUMNS
from console.widgets import fmt, gpu_figures
from harness.metrics.gpu.roles import ROLES

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
_NODE_GPU_DROPS: Final = ("run", "oldest", "inflight", "tpot", "dmed", "clock", "util", "wait", "temp", "kv")
_CAUSE_NEEDS: Final = 150
_NODE_DROPS: Final = ("run", "oldest", "inflight", "tpot", "dmed", "wait", "missing", "kv", "slow")


def _of_gpus(name: str, width: int) -> Column:
    role = ROLES[ROLE_OF[name]]
    return Column(name, gpu_figures.heading(role), max(width, len(gpu_figures.heading(role)) + 2), write=gpu_figures.writer(name))


_THROTTLE: Final = Column("throttle", "THROTTLE", 10, write=fmt.percent)
_CAUSE: Final = Column("cause", "   CAUSE", 22, False)
_ALERT: Final = Column("alert", "   ALERT", 14, False)
_KERNEL: Final = Column("kernel", "   KERNEL", 46, False)
#: With a source of GPU metrics these come by themselves; all others in wide columns, and by :columns.
_GPUS: Final = (_of_gpus("util", 6), _of_gpus("power", 8), _of_gpus("temp", 7), _of_gpus("clock", 7), _THROTTLE)
#: Which go first where there is little room: of what says the same, the one that says it less plainly.
_GPU_DROPS: Final = (
    "run", "oldest", "tpot", "clock", "inflight", "kv", "ratio", "util", "pod", "rack", "wait", "dmed", "age", "temp", "host",
    "cause", "z", "throttle", "power",
)  # fmt: skip


def _collected(store: FleetStore) -> tuple[Column, ...]:
    """Those of the usual five of which the source has something."""
    known = store.gpus
    has_throttle = known.has("throttle_power") or known.has("throttle_thermal")
    return tuple(one for one in _GPUS if (has_throttle if one is _THROTTLE else known.has(ROLE_OF[one.name])))


def _all_collected(store: FleetStore) -> tuple[Column, ...]:
    usual = _collected(store)
    named = {column.name for column in usual}
    more = (COLUMN_OF[role.name] for role in store.gpus.roles())
    return (*usual, *(_of_gpus(name, 8) for name in more if name not in named))


def named_columns(store: FleetStore, names: Sequence[str]) -> tuple[Column, ...]:
    """Replica and state, then what the operator asked for, in that order."""
    known = {column.name: column for column in (*_REPLICA_WIDE_CLUSTER, *_all_collected(store), _CAUSE, _ALERT, _KERNEL)}
    known |= {name: _of_gpus(name, 8) for name in NUMBERS if name in ROLE_OF and name not in known}
    known.setdefault("throttle", _THROTTLE)
    return (_SLOT, _STATE, *(known[name] for name in names if name in known and name not in ("slot", "state")))


def choosable(store: FleetStore) -> list[str]:
    """What `:columns` takes."""
    names = (*NUMBERS, *TEXTS)
    known = {column.name for column in named_columns(store, names)}
    return ["usual", *(name for name in names if name in known)]


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
            of_gpus = tuple(one for one in _collected(store) if one.name in GPU_COLUMNS)
            return (*_NODE, *of_gpus), (*_NODE_GPU_DROPS, *_NODE_DROPS) if of_gpus else _NODE_DROPS
        if room >= _NOTE_NEEDS:
            return _NODE_CLUSTER, _NODE_CLUSTER_DROPS
        short = (replace(one, width=_STATES_NARROW) if one.name == "states" else one for one in _NODE_CLUSTER)
        return tuple(short), _NODE_CLUSTER_DROPS
    replica = _REPLICA_SPLIT if store.split else _REPLICA
    of_gpus = _collected(store)
    causes = (_CAUSE,) if of_gpus and room >= _CAUSE_NEEDS else ()
    if not on_cluster:
        return (*replica, *of_gpus, *causes), _GPU_DROPS if of_gpus else _REPLICA_DROPS
    placed = (*replica[: -len(_FIGURES)], _HOST, _RACK, _POD, *_FIGURES, *of_gpus, *causes)
    return placed, _GPU_DROPS if of_gpus else _REPLICA_CLUSTER_DROPS


def wide_columns(store: FleetStore, *, by_node: bool) -> tuple[Column, ...]:
    on_cluster = store.cluster.view is not None
    if by_node:
        of_nodes: tuple[Column, ...] = _NODE_CLUSTER_WIDE if on_cluster else _NODE_WIDE
        return (*of_nodes[:-1], *_collected(store), of_nodes[-1])
    wide: tuple[Column, ...] = _REPLICA_WIDE_CLUSTER if on_cluster else _REPLICA_WIDE
    of_gpus = _all_collected(store)
    return (*wide[:-1], *of_gpus, *((_CAUSE, _ALERT) if of_gpus else ()), wide[-1])


def noted(columns: tuple[Column, ...], room: int) -> tuple[Column, ...]:
    """The last column, when it is the note, is as wide as there is room."""
    if columns[-1].name != _NOTE.name:
        return columns
    rest = room - sum(column.width for column in columns[:-1])
    return (*columns[:-1], replace(columns[-1], width=max(12, rest)))


def in_words(column: Column) -> bool:
    """Counts of states have the names of the states, not their marks alone."""
    return column.width > _STATES_NARROW
