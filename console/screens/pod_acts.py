"""What is said before an eviction on a cluster: it takes a pod with every replica in it, the disruption budget may hold it
back, and the successor takes its time, twice as long each time. No Textual, no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from console.screens.targets import Fact, Grave, Target, target_of
from console.store.cluster import healthy
from console.store.fleet import FleetStore
from console.widgets import pods
from console.widgets.fmt import plural
from console.widgets.pending import some_names
from harness.wire.clusterview import PodRow
from harness.wire.states import ALIVE


def node_of(store: FleetStore, target: Target) -> str:
    return store.slots[store.index[target.slot]].node


def nodes_of(store: FleetStore, targets: Sequence[Target]) -> list[str]:
    """Each once, in the order of the targets."""
    return list(dict.fromkeys(node_of(store, target) for target in targets if target.slot in store.index))


def one_each(store: FleetStore, targets: Sequence[Target]) -> list[Target]:
    """A target for each pod, one that lives where there is one: the head is asked once for a pod, however many are marked."""
    chosen: dict[str, Target] = {}
    for target in targets:
        node = node_of(store, target)
        if node not in chosen or (chosen[node].state not in ALIVE and target.state in ALIVE):
            chosen[node] = target
    return list(chosen.values())


def going_with(store: FleetStore, targets: Sequence[Target]) -> list[Target]:
    """All that live in the pods of the targets; of a pod in which nobody lives, its target."""
    going: list[Target] = []
    for target in one_each(store, targets):
        node = node_of(store, target)
        fellows = [target_of(store, info.slot) for info in store.slots if info.node == node]
        alive = [fellow for fellow in fellows if fellow is not None and fellow.state in {*ALIVE, "SLOW"}]
        going += alive or [target]
    return going


def unfit_pod(store: FleetStore, node: str) -> str:
    """Why the pod of that node cannot be evicted now, in words; empty when it can be tried."""
    why, row = store.cluster.denied("evict"), store.cluster.row(node)
    if why:
        return f"pods cannot be evicted here: {why}"
    if row is None or not row.pod:
        return " · ".join(part for part in (f"{node} has no pod now", pods.replacement(store, node)) if part)
    if row.phase == "Terminating":
        return " · ".join(part for part in (f"{row.pod} is ending already", pods.replacement(store, node)) if part)
    return ""


def pod_facts(store: FleetStore, going: Sequence[Target]) -> list[Fact]:
    """`going`: all replicas that the eviction takes."""
    nodes = nodes_of(store, going)
    rows = [row for node in nodes if (row := store.cluster.row(node)) is not None]
    return [
        ("pod" if len(nodes) == 1 else "pods", _which(rows, len(going))),
        ("budget", _budget(store, rows)),
        ("after it", _after(rows)),
    ]


def _which(rows: Sequence[PodRow], replicas: int) -> str:
    with_all = f"with {'its' if len(rows) == 1 else 'their'} {plural(replicas, 'replica')}"
    if len(rows) == 1:
        where = f" on {rows[0].host}" if rows[0].host else ""
        return Grave(f"▲ {rows[0].pod}{where} goes, {with_all}")
    return Grave(f"▲ {len(rows)} pods go, {with_all}: {some_names([row.pod for row in rows])}")


def _budget(store: FleetStore, rows: Sequence[PodRow]) -> str:
    view = store.cluster.view
    budget = view.budget if view is not None else None
    text = pods.budget(budget)
    if budget is None or budget.problem:
        return Grave(f"▲ {text}") if budget is not None else text
    ready = sum(healthy(row) for row in rows)  # others may go in spite of the budget
    if ready > budget.allowed:
        return Grave(f"▲ {text}: the head tries for a while, then tells who could not go")
    return text if ready else f"{text}; a pod that is not ready may go whatever it lets"


def _after(rows: Sequence[PodRow]) -> str:
    if len(rows) == 1:
        told = pods.successor(rows[0])
        return f"a successor starts {told}" if told else "a successor starts; when is not known"
    delays = [row.next_delay_s for row in rows]
    if not any(delays):
        return "successors start; when is not known"
    return f"successors start {min(delays):.0f} to {pods.seconds(max(delays))} after they have ended"


def cordon_offer(store: FleetStore, nodes: Sequence[str]) -> tuple[str, str]:
    """(what the tick says, why it cannot be set). Only hosts that are not cordoned yet count."""
    hosts = list(dict.fromkeys(name for node in nodes if (name := store.cluster.host_name(node))))
    open_ones = [
        name for node, name in ((node, store.cluster.host_name(node)) for node in nodes) if not _cordoned(store, node) and name
    ]
    names = some_names(list(dict.fromkeys(open_ones)) or hosts)
    one = len(hosts) == 1
    label = f"cordon {names}, the {'replacement lands' if one else 'replacements land'} elsewhere"
    if not hosts:
        return "cordon", "it is bound to no node yet"
    if why := store.cluster.denied("cordon"):
        return f"cordon {names}", why
    return (label, "") if open_ones else (f"cordon {names}", f"{'it is' if one else 'they are'} cordoned already")


def _cordoned(store: FleetStore, node: str) -> bool:
    host = store.cluster.host(node)
    return host is not None and host.cordoned
