"""What pages of text say of pods and Kubernetes nodes; nothing of it for a run of processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from console.cli.page import Page
from console.store.tables import Row, Tables
from console.widgets import fmt
from console.widgets.pods import host_note
from harness.wire.clusterview import HostRow

_SPARE_SHOWN: Final = 12


def cluster_lines(page: Page, tables: Tables) -> None:
    """What cannot be seen first, then what pods wait for, then the disruption budget. Nothing for a run of processes."""
    for row in tables.get("cluster", []):
        if row["blind"]:
            why_blind = row["problem"].removesuffix("; the run goes on") or "nothing was heard of the API server"
            page.prose(f"CLUSTER VIEW OLD: {why_blind} (the run goes on)")
        seen = f"seen {row['seen_s_ago']:.0f} s ago" if row["seen_s_ago"] is not None else ""
        page.line(f"cluster {row['kind']} {row['namespace']}", f"{fmt.plural(row['nodes_wanted'], 'node')} wanted", seen)
        if row["budget_allows"] is not None:
            because = row["budget_problem"] or f"{row['budget_healthy']} healthy, {row['budget_needs']} needed"
            page.line(f"disruption budget lets {row['budget_allows']} go now: {because}")
    for group in tables.get("waiting", []):
        oldest = f" (oldest {fmt.age(group['oldest_s'])})" if group["oldest_s"] is not None else ""
        who = f", {', '.join(group['names'][:3])}{', …' if group['number'] > 3 else ''}"
        page.prose(f"{fmt.plural(group['number'], group['what'])}: {group['why']}{oldest}{who}")


def on_cluster(key: str) -> Callable[[Row], str]:
    """Only of a run on a cluster: of a run of processes the host is the same everywhere."""
    return lambda row: str(row.get(key) or fmt.UNKNOWN) if "pod_phase" in row else ""


def why(row: Row) -> str:
    """When a replacement comes, what is said of the pod, and why the replica is in its state."""
    left_s = row.get("replacement_in_s")
    coming = f"replacement in ~{max(0.0, left_s):.0f} s" if left_s is not None else ""
    ill = row.get("pod_reason") or ""
    return "; ".join(dict.fromkeys(part for part in (coming, ill, row.get("reason") or "") if part))


def _trouble(row: Row) -> str:
    """What is wrong with a Kubernetes node and the pod on it."""
    if "pod_phase" not in row:
        return ""
    host = HostRow(
        row["host"], row["host_ready"] is not False, bool(row["host_cordoned"]), row["host_reason"],
        gpus=row["host_gpus_allocatable"] or 0, gpus_there=row["host_gpus"] or 0,
    )  # fmt: skip
    restarts = fmt.plural(row["pod_restarts"], "container restart") if row.get("pod_restarts") else ""
    return "; ".join(part for part in (host_note(host), why(row), restarts) if part)


def nodes_in_trouble(page: Page, tables: Tables) -> None:
    """Below the table of nodes: those that somebody should look at, and those of the cluster that carry nothing."""
    for row in tables["nodes"]:
        if told := _trouble(row):
            page.prose(" on ".join(filter(None, (row["node"], row["host"]))) + f": {told}")
    spare = [row["host"] for row in tables.get("hosts", []) if not row["pods"] and row["ready"] and not row["cordoned"]]
    if spare:
        page.line(f"{fmt.plural(len(spare), 'node')} of the cluster without a worker: {', '.join(spare[:_SPARE_SHOWN])}")
