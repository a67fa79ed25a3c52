"""Pods, Kubernetes nodes and the disruption budget in words: one wording for screens, dialogs, pages and `--plain`. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from console.store.cluster import Waiting, alarm, phases, short_reason, well
from console.store.fleet import FleetStore
from console.widgets import fmt
from harness.wire.clusterview import BudgetRow, HostRow, PodRow

_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_TELL_AGE_S: Final = 5.0  # a view that is younger than that is not called old
GLYPHS: Final = {"Running": "●", "Pending": "◔", "Terminating": "▽", "Succeeded": "□", "Failed": "×"}


def trouble(store: FleetStore) -> str:
    """`cluster view 42 s old: API server does not answer`; empty while all can be seen, without a cluster and at the end."""
    cluster = store.cluster
    if cluster.view is None or store.ended or not cluster.blind(store.unix):
        return ""
    age_s = cluster.age_s(store.unix)
    old = f"cluster view {seconds(age_s)} old" if age_s >= _TELL_AGE_S else "cluster view incomplete"
    why = cluster.view.problem.removesuffix("; the run goes on")
    return f"{old}: {why or 'nothing was heard of the API server since'}"


def as_of(store: FleetStore) -> str:
    """How old the words of the API server are: `as the API server had it 2 s ago`."""
    age_s = store.cluster.age_s(store.unix)
    return "" if math.isnan(age_s) else f"as the API server had it {seconds(age_s) + ' ago' if age_s >= 1 else 'just now'}"


def seconds(value_s: float) -> str:
    """`42 s`, `4 min`, `2.5 h`: as one says it in a sentence."""
    value_s = max(0.0, value_s)
    if value_s < 100:
        return f"{value_s:.0f} s"
    return f"{value_s / 60:.0f} min" if value_s < 5940 else f"{value_s / 3600:.1f} h"


def ordinal(number: int) -> str:
    if 1 <= number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


# --- one pod -------------------------------------------------------------------------------------------------


def phase(row: PodRow | None) -> str:
    """`Running`, `Running, not ready`, `Pending`; `no pod` where there is none."""
    if row is None or not row.pod:
        return "no pod"
    return "Running, not ready" if row.phase == "Running" and not row.ready else row.phase or "unknown"


def glyph(row: PodRow | None) -> str:
    if row is None or not row.pod:
        return "·"
    return "○" if row.phase == "Running" and not row.ready else GLYPHS.get(row.phase, "?")


def replacement(store: FleetStore, node: str) -> str:
    """`replacement in ~32 s`; empty when none is waited for."""
    left_s = store.cluster.replacement_s(node, store.unix)
    if math.isnan(left_s):
        return ""
    return f"replacement in ~{seconds(left_s)}" if left_s >= 1 else f"replacement due for {seconds(-left_s)}"


def pod_note(store: FleetStore, node: str) -> str:
    """What an operator should know of a pod that is not well: when its replacement comes, and why it is as it is."""
    row = store.cluster.row(node)
    if row is None:
        return "no pod yet"
    if well(row):
        return ""
    return " · ".join(part for part in (replacement(store, node), short_reason(row) or phase(row)) if part)


def successor(row: PodRow | None) -> str:
    """What evicting it now would cost: `about 40 s after it has ended: third eviction of this index`."""
    if row is None or not row.next_delay_s:
        return ""
    return f"about {seconds(row.next_delay_s)} after it has ended: {ordinal(row.evictions + 1)} eviction of this index"


# --- a Kubernetes node ---------------------------------------------------------------------------------------


def host_note(host: HostRow | None) -> str:
    """What is wrong with it; empty when nothing is. What the head says of it already is not said twice."""
    if host is None or not alarm(host):
        return ""
    why = host.reason.removeprefix(f"node {host.name} ").removeprefix("is ").removeprefix("has been ")
    short = f"{host.gpus} of {host.gpus_there} GPUs allocatable" if host.gpus < host.gpus_there else ""
    parts = [
        "" if host.ready or "NotReady" in why else "NotReady",
        "cordoned" if host.cordoned else "",
        "" if f"{host.gpus} of " in why else short,
        why,
    ]
    return " · ".join(part for part in parts if part)


def node_note(store: FleetStore, node: str) -> str:
    """Of the Kubernetes node first, then of the pod: what is wrong at that place of the fleet."""
    row = store.cluster.row(node)
    restarts = f"{fmt.plural(row.restarts, 'container restart')}" if row is not None and row.restarts else ""
    return " · ".join(part for part in (host_note(store.cluster.host(node)), pod_note(store, node), restarts) if part)


# --- the whole ------------------------------------------------------------------------------------------------


def budget(row: BudgetRow | None) -> str:
    """`lets 2 go now: 64 healthy, 62 needed`."""
    if row is None:
        return "no disruption budget is known: nothing but the head's own limits holds an eviction back"
    if row.problem:
        return f"lets none go: {row.problem}"
    lets = f"lets {row.allowed} go now" if row.allowed else "lets none go now"
    return f"{lets}: {row.healthy} healthy, {row.desired} needed"


def pods_now(store: FleetStore) -> str:
    """`62 of 64 pods Running · 1 Pending · 1 Terminating`."""
    view = store.cluster.view
    if view is None:
        return ""
    counts = phases(row for row in view.pods if row.node >= 0)
    wanted = view.wanted or sum(counts.values())
    running = counts.pop("Running", 0)
    return " · ".join(
        [f"{running} of {fmt.plural(wanted, 'pod')} Running", *(f"{number} {name}" for name, number in counts.items())]
    )


def hosts_now(store: FleetStore) -> str:
    """`66 nodes: 1 NotReady, 1 cordoned, 1 short of GPUs`; why nodes cannot be seen, where they may not be read."""
    view = store.cluster.view
    if view is None:
        return ""
    if not view.hosts:
        why = view.denied.get("hosts", "")
        return f"nodes not shown: {why}" if why else ""
    kinds = Counter[str]()
    for host in view.hosts:
        kinds["NotReady"] += not host.ready
        kinds["cordoned"] += host.cordoned
        kinds["short of GPUs"] += host.gpus < host.gpus_there
    spare = sum(not host.pods and host.ready and not host.cordoned for host in view.hosts)
    told = [f"{number} {kind}" for kind, number in kinds.items() if number] + ([f"{spare} without a worker"] if spare else [])
    return f"{fmt.plural(len(view.hosts), 'node')}: {', '.join(told) or 'all ready'}"


def group_words(group: Waiting) -> tuple[str, str]:
    """(`37 pods`, `oldest 4m`)"""
    return fmt.plural(len(group.names), group.what), "" if math.isnan(group.oldest_s) else f"oldest {fmt.age(group.oldest_s)}"
