"""What the head sees of its cluster: the newest ClusterView, looked up by the fleet's nodes. Empty for a run of processes.

A view comes whole when something in it has changed, so between two of them only time passes: ages and countdowns are worked
out against the head's clock (`FleetStore.unix`), never against this machine's. What is old here is old alone: the figures of
the run come from its replicas, whatever the API server says or does not say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from harness.spec import node_name
from harness.wire.clusterview import ClusterView, HostRow, PodRow

if TYPE_CHECKING:
    from console.store.fleet import FleetStore

#: A watch that is well is told something every minute, if only that there is nothing new; two such words may be late.
OLD_AFTER_S: Final = 150.0

_AGE: Final = re.compile(r" for \d+ (?:s|min|h(?: \d+ min)?)\b")
_GRACE_LEFT: Final = re.compile(r", (?:\d+ (?:s|min|h(?: \d+ min)?) of its grace left|its grace is over)")
_INDEX: Final = re.compile(r"\bindex \d+\b")
_VERB: Final = re.compile(r"^(?:has been|is|was|has) ")

Alarm = Literal["", "warn", "bad"]
_ALARMS: Final[tuple[Alarm, ...]] = ("", "warn", "bad")
BAD: Final = _ALARMS.index("bad")


@dataclass(slots=True)
class Waiting:
    """Pods, or replicas whose pod is well, that are missing for the same reason. `oldest_s`: NaN where nobody says since when."""

    what: Literal["pod", "replica"]
    why: str
    names: list[str] = field(default_factory=list)  # nodes, or slots
    oldest_s: float = math.nan


class ClusterPicture:
    def __init__(self) -> None:
        self.view: ClusterView | None = None
        self.head: PodRow | None = None
        self._pods: dict[str, PodRow] = {}
        self._hosts: dict[str, HostRow] = {}

    def take(self, view: ClusterView | None) -> None:
        self.view = view
        rows = view.pods if view is not None else []
        self._pods = {node_name(row.node): row for row in rows if row.node >= 0}
        self.head = next((row for row in rows if row.node < 0), None)
        self._hosts = {host.name: host for host in view.hosts} if view is not None else {}

    # --- by node of the fleet ------------------------------------------------------------------------------

    def pod(self, node: str) -> PodRow | None:
        """The newest one; None where there is no cluster, or no pod yet."""
        row = self._pods.get(node)
        return row if row is not None and row.pod else None

    def row(self, node: str) -> PodRow | None:
        """Also of a node that has no pod now: it says why, and when one is expected."""
        return self._pods.get(node)

    def host_name(self, node: str) -> str:
        row = self._pods.get(node)
        return row.host if row is not None else ""

    def host(self, node: str) -> HostRow | None:
        """The Kubernetes node under it; None where nodes may not be read."""
        return self._hosts.get(self.host_name(node))

    def rack(self, node: str) -> str:
        row, host = self._pods.get(node), self.host(node)
        return (row.rack if row is not None else "") or (host.rack if host is not None else "")

    def pod_reason(self, node: str) -> str:
        row = self._pods.get(node)
        """Of one that ended in order there is nothing to say."""
        return row.reason if row is not None and row.phase != "Succeeded" else ""

    def denied(self, right: str) -> str:
        return self.view.denied.get(right, "") if self.view is not None else ""

    def level(self, node: str) -> int:
        """How bad the Kubernetes node under it is: 2 not ready, 1 cordoned or short of accelerators."""
        return _ALARMS.index(alarm(self.host(node)))

    # --- time ----------------------------------------------------------------------------------------------

    def age_s(self, unix: float) -> float:
        """Since the API server's last word; NaN when that is not known."""
        if self.view is None or not self.view.seen_unix:
            return math.nan
        return max(0.0, unix - self.view.seen_unix)

    def blind(self, unix: float) -> bool:
        """Something of the cluster cannot be seen now."""
        return self.view is not None and (bool(self.view.problem) or self.age_s(unix) > OLD_AFTER_S)

    def replacement_s(self, node: str, unix: float) -> float:
        """Until the successor of an evicted pod is expected, below 0 when it is late; NaN when none is waited for."""
        row = self._pods.get(node)
        if row is None or not row.replacement_unix or healthy(row):
            return math.nan
        return row.replacement_unix - unix


def healthy(row: PodRow) -> bool:
    return row.phase == "Running" and row.ready


def well(row: PodRow) -> bool:
    """Nothing needs a look: it is as it should be, or has ended in order."""
    return healthy(row) or row.phase == "Succeeded"


def alarm(host: HostRow | None) -> Alarm:
    """Whether somebody should look at a Kubernetes node."""
    if host is None:
        return ""
    if not host.ready:
        return "bad"
    return "warn" if host.cordoned or host.gpus < host.gpus_there or host.reason else ""


def worker_of(node: str) -> str:
    """What the journal calls the worker of a node: `worker-3` of node003."""
    digits = node.removeprefix("node")
    return f"worker-{int(digits)}" if digits.isdecimal() else node


def evicted_whole(store: FleetStore) -> bool:
    """An eviction takes a pod with all replicas in it, not one replica."""
    return store.cluster.view is not None


# --- who is missing, and why ---------------------------------------------------------------------------------


def waiting(store: FleetStore) -> list[Waiting]:
    """By reason, most first: pods that are not ready, of all that are wanted; then the replicas that the head names as missing
    although their pod is well."""
    cluster, groups = store.cluster, dict[tuple[str, str], Waiting]()
    if cluster.view is None:
        return []
    wanted = store.node_names[: cluster.view.wanted or None]
    ill = [node for node in wanted if (row := cluster.row(node)) is None or not healthy(row)]
    for node in ill:
        row = cluster.row(node)
        group = groups.setdefault(("pod", why_of(row)), Waiting("pod", why_of(row)))
        group.names.append(node)
        if row is not None and row.since_unix:
            group.oldest_s = _older(group.oldest_s, store.unix - row.since_unix)
    pods = sorted(groups.values(), key=lambda group: -len(group.names))
    return pods + _replicas(store, frozenset(ill))


def _replicas(store: FleetStore, ill: frozenset[str]) -> list[Waiting]:
    """Of those that the snapshot names: it has the first twenty."""
    groups: dict[str, Waiting] = {}
    for text in store.snapshot.missing if store.snapshot is not None else []:
        slot, _, why = text.partition(": ")
        at = store.index.get(slot)
        if at is not None and store.slots[at].node in ill:
            continue
        groups.setdefault(why, Waiting("replica", why)).names.append(slot)
    return sorted(groups.values(), key=lambda group: -len(group.names))


def why_of(row: PodRow | None) -> str:
    """`Pending: 0/64 nodes are available`; a reason that begins with the phase anyway is not told it twice."""
    why = short_reason(row) if row is not None else ""
    if row is None or not row.pod:
        return why if why.startswith("no pod") else f"no pod: {why}" if why else "no pod yet"
    phase = "not ready" if row.phase == "Running" else row.phase or "unknown"
    if not why:
        return phase
    return why if why.startswith(phase) else f"{phase}: {why}"


def short_reason(row: PodRow) -> str:
    """The head's sentence without the names and ages that stand beside it, and that would make every pod a case of its own:
    of `pod w-3-x has been Pending for 4 min: no node fits` there is left `Pending: no node fits`."""
    text, opening = row.reason, f"pod {row.pod}"
    if row.host:
        text = text.replace(f" on node {row.host}", "")
    text = _INDEX.sub("its index", _GRACE_LEFT.sub("", _AGE.sub("", text)))
    if not row.pod:
        return text
    if text.startswith(opening):
        text = _VERB.sub("", text[len(opening) :].lstrip(": "))
    return text.replace(row.pod, "…")


def phases(rows: Iterable[PodRow]) -> dict[str, int]:
    """How many pods are in which phase, `Running` being those that are ready, most first."""
    counts: dict[str, int] = {}
    for row in rows:
        name = "missing" if not row.pod else "not ready" if row.phase == "Running" and not row.ready else row.phase or "unknown"
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (item[0] != "Running", -item[1])))


def _older(a: float, b: float) -> float:
    return b if math.isnan(a) else max(a, b)
