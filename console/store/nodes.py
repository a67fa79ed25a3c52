"""The fleet by node: what the replicas of one node come to together, and the view of those rows.

`NodeRows` sums up a snapshot in numpy (0.5 ms at 512 nodes of 8); a value is NaN where no replica of the node has one.
On a cluster those whose Kubernetes node is not ready, cordoned or short of accelerators come before all others.
A node is shown when at least one of its replicas matches the filter; its numbers are always those of all its replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from console.store.columns import NUMBERS, Floats
from console.store.fleet import SHOWN_STATES, SLOW_CODE, FleetStore
from console.store.view import SEVERITY_OF, Order, RowView, Sort, TableView, by_text, by_value

#: Neither serving nor taken out on purpose: the fleet waits for these.
MISSING_STATES: Final = ("NEW", "REGISTERED", "WARMING", "LOST", "REJECTED")
_MISSING: Final[NDArray[np.bool_]] = np.array([name in MISSING_STATES for name in SHOWN_STATES], dtype=np.bool_)

_SUMS: Final = ("tok/s", "run", "wait", "inflight")
_LARGEST: Final = ("ratio", "z", "ttft", "tpot", "oldest", "restarts")
_GPU_SUMS: Final = ("power",)
_GPU_MEANS: Final = ("util",)
_GPU_LARGEST: Final = ("temp", "throttle")
_GPU_LEAST: Final = ("clock",)
#: What a node's GPUs come to, in the order of the columns.
GPU_COLUMNS: Final = ("util", "power", "temp", "clock", "throttle")

NODE_SORTS: Final = {
    sort.name: sort
    for sort in (
        Sort("worst", "worst first"),
        Sort("node", "node", descending=False),
        Sort("slow", "slow replicas"),
        Sort("missing", "missing replicas"),
        Sort("tok/s", "tok/s, slowest first", descending=False),
        Sort("dmed", "tok/s against the median, least first", descending=False),
        Sort("ratio", "worst step-time ratio"),
        Sort("z", "worst z"),
        Sort("ttft", "worst TTFT p99"),
        Sort("tpot", "worst TPOT p99"),
        Sort("kv", "mean KV cache"),
        Sort("run", "running"),
        Sort("wait", "waiting"),
        Sort("inflight", "in flight"),
        Sort("oldest", "oldest sample"),
        Sort("restarts", "restarts"),
        Sort("util", "mean GPU use, least first", descending=False),
        Sort("power", "power of its GPUs"),
        Sort("temp", "hottest GPU"),
        Sort("clock", "slowest engine clock", descending=False),
        Sort("throttle", "most time throttled"),
        Sort("host", "host", descending=False),
        Sort("rack", "rack", descending=False),
    )
}
_PLACES: Final = ("host", "rack")
_CYCLE: Final = tuple(NODE_SORTS[name] for name in ("worst", "node", "tok/s", "ratio", "ttft", "wait", "inflight"))


class NodeRows:
    """One snapshot of the fleet, a row a node, in the order of `store.node_names`."""

    def __init__(self, store: FleetStore) -> None:
        self.names = store.node_names
        nodes, kinds = len(self.names), len(SHOWN_STATES)
        flat = np.bincount(store.node_of * kinds + store.state, minlength=nodes * kinds)
        self.states: NDArray[np.intp] = flat.reshape(nodes, kinds)  # replicas in each state
        waived = np.fromiter((info.waived for info in store.slots), dtype=np.bool_, count=len(store.slots))
        missing = _MISSING[store.state] & ~waived
        self.columns: dict[str, Floats] = {
            "slow": self.states[:, SLOW_CODE].astype(np.float64),
            "missing": np.bincount(store.node_of[missing], minlength=nodes).astype(np.float64),
        }
        for name in (*_SUMS, "kv", "dmed"):
            total, known = _totals(NUMBERS[name].values(store), store.node_of, nodes)
            with np.errstate(invalid="ignore", divide="ignore"):
                value = total if name in _SUMS else total / known  # shares: the mean of those that have one
            self.columns[name] = np.where(known > 0, value, np.nan)
        for name in _LARGEST:
            worst = np.full(nodes, np.nan)
            np.fmax.at(worst, store.node_of, NUMBERS[name].values(store))
            self.columns[name] = worst
        self._of_gpus(store, nodes)
        cluster = store.cluster
        pods = self.names if cluster.view is not None else []
        self._alarms: NDArray[np.intp] = np.array([cluster.level(name) for name in pods] or [0] * nodes, dtype=np.intp)
        self._places: dict[str, list[str]] = {
            "host": [cluster.host_name(name) for name in pods],
            "rack": [cluster.rack(name) for name in pods],
        }

    def _of_gpus(self, store: FleetStore, nodes: int) -> None:
        if not store.gpus.roles():
            self.columns |= {name: np.full(nodes, np.nan) for name in GPU_COLUMNS}
            return
        for name in (*_GPU_SUMS, *_GPU_MEANS):
            total, known = _totals(NUMBERS[name].values(store), store.node_of, nodes)
            with np.errstate(invalid="ignore", divide="ignore"):
                value = total if name in _GPU_SUMS else total / known
            whole = known == np.bincount(store.node_of, minlength=nodes)  # a sum without one of its GPUs is another figure
            self.columns[name] = np.where(whole if name in _GPU_SUMS else known > 0, value, np.nan)
        for names, take in ((_GPU_LARGEST, np.fmax), (_GPU_LEAST, np.fmin)):
            for name in names:
                ends = np.full(nodes, np.nan)
                take.at(ends, store.node_of, NUMBERS[name].values(store))
                self.columns[name] = ends

    def order(self, sort: Sort, *, reverse: bool) -> Order:
        roster = np.arange(len(self.names))
        sign = -1 if reverse else 1
        if sort.name == "node":
            return roster[::sign]
        if sort.name == "worst":
            ratio = np.nan_to_num(np.round(self.columns["ratio"] * 20), nan=-1.0)
            return np.lexsort((roster, -sign * ratio, sign * self._severity(), -sign * self._alarms))
        if sort.name in _PLACES:
            return by_text(self._places[sort.name] or self.names, reverse=reverse)
        return by_value(self.columns[sort.name], sort.descending != reverse)

    def _severity(self) -> NDArray[np.intp]:
        """Of the worst state that a replica of the node is in."""
        severity = np.where(self.states > 0, SEVERITY_OF[None, :], np.iinfo(np.int8).max)
        return np.asarray(severity.min(axis=1).astype(np.intp)) if severity.size else np.zeros(0, dtype=np.intp)


def _totals(values: Floats, node_of: NDArray[np.int32], nodes: int) -> tuple[Floats, NDArray[np.intp]]:
    known = ~np.isnan(values)
    sums = np.bincount(node_of[known], weights=values[known], minlength=nodes)
    return sums.astype(np.float64), np.bincount(node_of[known], minlength=nodes)


class NodeView(RowView):
    """Nodes, by the filter of the replicas."""

    def __init__(self, replicas: TableView) -> None:
        super().__init__(NODE_SORTS, _CYCLE)
        self._replicas = replicas
        replicas.on_other_rows(self.refilter)
        self._index: dict[str, int] = {}
        self._index_of: object = None
        self._summed: tuple[int, NodeRows] | None = None

    def summed(self, store: FleetStore) -> NodeRows:
        """The newest figures; worked out once for each change of the store."""
        if self._summed is None or self._summed[0] != store.version:
            self._summed = (store.version, NodeRows(store))
        return self._summed[1]

    def index(self, store: FleetStore) -> Mapping[str, int]:
        if self._index_of is not store.index:
            self._index_of = store.index
            self._index = {name: at for at, name in enumerate(store.node_names)}
        return self._index

    def name(self, store: FleetStore, at: int) -> str:
        return store.node_names[at]

    def slots_of(self, store: FleetStore, name: str) -> list[str]:
        return [store.slots[int(at)].slot for at in self.members(store, name)]

    def members(self, store: FleetStore, name: str) -> Order:
        """Positions of the replicas of this node."""
        at = self.index(store).get(name, -1)
        return np.flatnonzero(store.node_of == at)

    def _order(self, store: FleetStore) -> Order:
        return self.summed(store).order(self.sort, reverse=self.reverse)

    def _keep(self, store: FleetStore) -> NDArray[np.bool_]:
        matching = self._replicas.matching(store)
        return np.bincount(store.node_of[matching], minlength=len(store.node_names)) > 0
