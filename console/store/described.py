"""What the record has of the pod behind a replica, in the words of a head's description; for a replay, and for a run that has
no head to ask any more."""

from __future__ import annotations

import time
from typing import Final

from console.store.fleet import FleetStore
from harness.wire.clusterview import HostRow, PodRow

MOST_ENTRIES: Final = 12
NOT_RECORDED: Final = (
    "Not recorded",
    "  containers and their states, conditions, images and events of the API: only a running head can be asked for those",
)


def described(store: FleetStore, slot: str) -> list[str]:
    """As of the second that the store shows."""
    at, cluster = store.index.get(slot), store.cluster
    if at is None or cluster.view is None:
        return []
    node = store.slots[at].node
    row, host = cluster.row(node), cluster.host(node)
    lines = _pod(row, cluster.rack(node)) if row is not None else [f"Pod          none of {node} had been seen by then"]
    if cluster.host_name(node):
        lines += _host(host, cluster.host_name(node), cluster.denied("hosts"))
    budget = cluster.view.budget
    if budget is not None:
        lines.append(f"Budget       {budget.name}: lets {budget.allowed} go, {budget.healthy} healthy, {budget.desired} needed")
    entries = store.history_of(slot)
    if entries:
        shown = entries[-MOST_ENTRIES:]
        lines.append("Journal" + (f" (the newest {len(shown)} of {len(entries)})" if len(shown) < len(entries) else ""))
        for entry in shown:
            told = " ".join(filter(None, (entry.what, entry.subject, entry.after, entry.why)))
            lines.append(f"  {_clock(entry.unix)} {told}")
    return [*lines, *NOT_RECORDED]


def _pod(row: PodRow, rack: str) -> list[str]:
    if not row.pod:
        lines = ["Pod          none"]
    else:
        ready = "ready" if row.ready else "not ready"
        where = ", ".join(filter(None, (row.host or "none yet", rack and f"rack {rack}")))
        lines = [f"Pod          {row.pod}", f"Phase        {row.phase or 'unknown'}, {ready}", f"Node         {where}"]
        lines.append(f"UID          {row.uid}")
    if row.since_unix:
        lines.append(f"Since        {_clock(row.since_unix)}")
    if row.reason:
        lines.append(f"Why          {row.reason}")
    lines.append(f"Restarts     {row.restarts} of its container, {row.evictions} evictions of this index")
    if row.replacement_unix:
        lines.append(f"Successor    expected at {_clock(row.replacement_unix)}")
    return lines


def _host(host: HostRow | None, name: str, denied: str) -> list[str]:
    if host is None:
        return [f"Its node     {name}: {f'not seen: {denied}' if denied else 'not seen'}"]
    state = ("Ready" if host.ready else "NotReady") + (", cordoned" if host.cordoned else "")
    lines = [f"Its node     {host.name}: {state}"]
    if host.gpus_there:
        lines.append(f"  {host.gpus} of {host.gpus_there} accelerators allocatable")
    if host.taints:
        lines.append(f"  taints {', '.join(host.taints)}")
    return [*lines, f"  {host.reason}"] if host.reason else lines


def _clock(unix: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix))
