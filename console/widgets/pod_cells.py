"""Cells of the Fleet table and facts of the Replica screen that only a run on a cluster has."""

from __future__ import annotations

from typing import Final

from rich.style import Style

from console.store.cluster import BAD, healthy, well
from console.store.columns import LIVE_STATES
from console.store.fleet import STOPPED, FleetStore
from console.widgets import fmt, pods
from console.widgets.paint import Paint, Run
from console.widgets.replica import Fact


def host_cell(store: FleetStore, ink: Paint, node: str, width: int, style: Style) -> Run:
    """`× mi355x-017` when it is not ready, `▲` when it is cordoned or short of accelerators."""
    name, level = store.cluster.host_name(node), store.cluster.level(node)
    text = fmt.middle(name, width - 3) if name else fmt.UNKNOWN
    return f"{' ▲×'[level]} {text}".ljust(width), (style if name else ink.faint, ink.warn, ink.bad)[level]


def note_cell(store: FleetStore, ink: Paint, node: str, width: int) -> Run:
    """What is wrong with the Kubernetes node or the pod; else where the pod stands."""
    row, level, note = store.cluster.row(node), store.cluster.level(node), pods.node_note(store, node)
    phase = f"{pods.glyph(row)} {pods.phase(row)}  "
    told = f"{pods.glyph(row)} {note}" if note else phase + fmt.middle(row.pod if row is not None else "", width - 4 - len(phase))
    as_it_should_be = row is not None and well(row) and not level
    return f"   {fmt.clause(told, width - 4)}".ljust(
        width
    ), ink.muted if as_it_should_be else ink.bad if level == BAD else ink.warn


def why_gone(store: FleetStore, at: int, state: str) -> str:
    """Of a replica that serves nothing: what became of its pod, and when another one comes; else why it is gone."""
    if state in LIVE_STATES or state == STOPPED:
        return ""
    info = store.slots[at]
    return pods.pod_note(store, info.node) or info.reason


def pod_facts(store: FleetStore, node: str) -> list[Fact]:
    """What the Replica screen says of its pod. What does not apply is left out."""
    cluster, row, host = store.cluster, store.cluster.row(node), store.cluster.host(node)
    if cluster.view is None:
        return []
    budget = ("budget", "" if store.ended else pods.budget(cluster.view.budget), "")
    if row is None:
        return [("pod", "none was seen", "NEW")] if store.ended else [("pod", "none yet", "NEW"), budget]
    since = f" for {fmt.age(store.unix - row.since_unix)}" if row.since_unix and not store.ended else ""
    successor = pods.successor(row) if row.pod and not store.ended else ""
    evictions = f", {fmt.plural(row.evictions, 'eviction')} of this index" if row.evictions else ""
    facts: list[Fact] = [
        ("pod", row.pod or "none now", ""),
        ("phase", f"{pods.glyph(row)} {pods.phase(row)}{since}", _LIKE.get(row.phase, "READY" if healthy(row) else "WARMING")),
        ("reason", "" if row.phase == "Succeeded" else row.reason, "WARMING"),
        ("replaced", pods.replacement(store, node), "WARMING"),
        ("host", " · ".join(part for part in (row.host, f"rack {cluster.rack(node)}" if cluster.rack(node) else "") if part), ""),
        ("its node", pods.host_note(host) or _unread(store), ("", "SLOW", "LOST")[cluster.level(node)]),
        ("restarts", f"{row.restarts} of its container{evictions}", ""),
        ("successor", f"would start {successor}" if successor else "", ""),
        budget,
        ("seen", pods.trouble(store), "SLOW"),
    ]
    return [fact for fact in facts if fact[1] and fact[1] != fmt.UNKNOWN]


#: Phases that have the colour of a replica's state.
_LIKE: Final = {"Pending": "WARMING", "Terminating": "DRAINING", "Failed": "LOST", "Succeeded": STOPPED, "": "EVICTED"}


def _unread(store: FleetStore) -> str:
    why = store.cluster.denied("hosts")
    return f"not shown: {why}" if why else ""
