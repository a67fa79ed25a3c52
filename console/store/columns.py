"""What can be said of a replica in one value: the numbers and texts that the table shows, the filter compares, sorting uses.

One definition for all three, so that what a filter finds and what a sort puts first is what stands on screen. A number is
NaN where the table writes a dash: a replica that serves nothing has no throughput, however its last figures stood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from console.store.causes import likely_cause
from console.store.fleet import SHOWN_STATES, SLOW_CODE, FleetStore
from console.store.gpus import COLUMN_OF, unit_of
from console.store.words import Unit
from harness.metrics.gpu.roles import ROLES, Role
from harness.metrics.kernels import word
from harness.wire.control import SlotInfo

Floats = NDArray[np.float64]

#: States whose figures mean something now.
LIVE_STATES: Final = ("READY", "SLOW", "SUSPECT", "DRAINING")
_LIVE: Final[NDArray[np.bool_]] = np.array([name in LIVE_STATES for name in SHOWN_STATES], dtype=np.bool_)


def live(store: FleetStore) -> NDArray[np.bool_]:
    """Who is in a state whose figures mean something."""
    return _LIVE[store.state]


@dataclass(frozen=True, slots=True)
class Number:
    name: str  # in filters and for :sort
    unit: Unit
    values: Callable[[FleetStore], Floats]
    label: str = ""  # of the order, in titles
    descending: bool = True  # what one looks for first


@dataclass(frozen=True, slots=True)
class Text:
    name: str
    of: Callable[[FleetStore, SlotInfo], str]


def _float(column: str) -> Callable[[FleetStore], Floats]:
    return lambda store: np.where(live(store), store.floats(column), np.nan).astype(np.float64)


def _int(column: str) -> Callable[[FleetStore], Floats]:
    def values(store: FleetStore) -> Floats:
        if column not in store.columns:  # nobody has counted yet
            return np.full(len(store.slots), np.nan)
        return np.where(live(store), store.ints(column), np.nan).astype(np.float64)

    return values


def _restarts(store: FleetStore) -> Floats:
    if "restarts" not in store.columns:
        return np.full(len(store.slots), np.nan)
    return store.ints("restarts").astype(np.float64)


def _against_median(store: FleetStore) -> Floats:
    """Throughput against that of the middle replica, as a share: -0.41 is 41 % less."""
    return _float("tokens_s")(store) / (store.median("tokens_s") or math.nan) - 1.0


def _age_s(store: FleetStore) -> Floats:
    """Since when it has been what it is shown as: SLOW counts from the flag."""
    ages = store.floats("state_age_s").astype(np.float64)
    for at in np.flatnonzero(store.state == SLOW_CODE):
        ages[at] = store.slow_age_s.get(int(at), math.nan)
    return ages


def host_of(store: FleetStore, info: SlotInfo) -> str:
    """The machine: on a cluster the Kubernetes node, because a pod's own host name says nothing."""
    return info.host if store.cluster.view is None else store.cluster.host_name(info.node)


def pod_of(store: FleetStore, info: SlotInfo) -> str:
    """The one that is there now, which need not be the one that the replica was part of."""
    row = store.cluster.pod(info.node)
    return info.pod if store.cluster.view is None else row.pod if row is not None else ""


def _reason(store: FleetStore, info: SlotInfo) -> str:
    return info.reason or store.cluster.pod_reason(info.node)


def _of_role(role: Role) -> Number:
    """Of a GPU whatever its replica does: a GPU under a lost replica is hot all the same."""

    def values(store: FleetStore) -> Floats:
        return store.gpus.column(role.name, store.unix).astype(np.float64)

    return Number(COLUMN_OF[role.name], unit_of(role), values, role.title, descending=role.high_is_bad)


def _throttle(store: FleetStore) -> Floats:
    """Of whatever holds it back most."""
    gpus, unix = store.gpus, store.unix
    return np.fmax(gpus.column("throttle_power", unix), gpus.column("throttle_thermal", unix)).astype(np.float64)


def _cause(store: FleetStore, info: SlotInfo) -> str:
    at = store.index.get(info.slot)
    return likely_cause(store, at) if at is not None else ""


def _kernel(store: FleetStore, info: SlotInfo) -> str:
    """`paceline-mxfp4-a16w4 tuned 0a1b2c3d4e5f`, with `odd` before it where most of its node class have another."""
    told = [word(info.facts, name) for name in ("kernel", "kernel.config", "kernel.config_hash")]
    return " ".join([*(["odd"] if info.slot in store.odd_kernels else []), *filter(None, told)])


def _alerts(store: FleetStore, info: SlotInfo) -> str:
    return " ".join(dict.fromkeys(row.rule for row in store.gpus.alerts_of(info.slot, info.node)))


NUMBERS: Final = {
    number.name: number
    for number in (
        Number("tok/s", "count", _float("tokens_s"), "tok/s, slowest first", descending=False),
        Number("dmed", "share", _against_median, "tok/s against the median, least first", descending=False),
        Number("ratio", "factor", _float("ratio"), "step-time ratio"),
        Number("z", "factor", _float("z"), "z of the step time"),
        Number("ttft", "ms", _float("ttft_p99_ms"), "TTFT p99"),
        Number("tpot", "ms", _float("tpot_p99_ms"), "TPOT p99"),
        Number("step", "ms", _float("step_ms"), "step time"),
        Number("batch", "count", _float("batch"), "batch"),
        Number("kv", "share", _float("kv_use"), "KV cache"),
        Number("run", "count", _int("running"), "running"),
        Number("wait", "count", _int("waiting"), "waiting"),
        Number("inflight", "count", _int("outstanding"), "in flight"),
        Number("oldest", "s", _float("oldest_s"), "oldest sample"),
        Number("age", "s", _age_s, "time in its state"),
        Number("beat", "s", lambda store: store.floats("beat_age_s").astype(np.float64), "age of the heartbeat"),
        Number("restarts", "count", _restarts, "restarts"),
        Number("life", "count", lambda store: np.array([float(info.incarnations) for info in store.slots]), "lives of the slot"),
        *(_of_role(role) for role in ROLES.values()),
        Number("throttle", "share", _throttle, "time throttled, by power or heat"),
    )
}

TEXTS: Final = {
    text.name: text
    for text in (
        Text("role", lambda store, info: info.role),
        Text("host", host_of),
        Text("rack", lambda store, info: store.cluster.rack(info.node)),
        Text("worker", lambda store, info: info.worker),
        Text("pod", pod_of),
        Text("engine", lambda store, info: info.engine),
        Text("args", lambda store, info: info.args_hash),
        Text("incarnation", lambda store, info: info.incarnation),
        Text("reason", _reason),
        Text("waived", lambda store, info: "yes" if info.waived else "no"),
        Text("cause", _cause),
        Text("alert", _alerts),
        Text("kernel", _kernel),
    )
}

#: Other words for the same column.
ALIASES: Final = {
    "tok": "tok/s", "tokens": "tok/s", "δmed": "dmed", "med": "dmed", "running": "run", "waiting": "wait",
    "in-flight": "inflight", "in_flight": "inflight", "infl": "inflight", "lives": "life", "inc": "incarnation",
    "hash": "args", "for": "age", "ttftp99": "ttft", "tpotp99": "tpot",
    "busy": "util", "watts": "power", "temperature": "temp", "thr": "throttle", "alerts": "alert",
    **{role.name: COLUMN_OF[role.name] for role in ROLES.values() if role.name not in ("running", "waiting", "kv_use")},
}  # fmt: skip
