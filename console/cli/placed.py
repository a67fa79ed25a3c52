"""Where a run on a cluster stood, from its record: as its head saw pods last."""

from __future__ import annotations

from typing import Any, Final

from console.cli.output import plural
from console.store.cluster import well, why_of
from harness.spec import node_name
from harness.wire.clusterview import ClusterView

_ILL_SHOWN: Final = 8


def pods_of(view: ClusterView | None) -> dict[str, Any] | None:
    """None for a run of processes."""
    if view is None:
        return None
    pods = [
        {
            "node": node_name(row.node), "pod": row.pod, "host": row.host, "rack": row.rack, "phase": row.phase,
            "ready": row.ready, "why": "" if well(row) else why_of(row), "restarts": row.restarts, "evictions": row.evictions,
        }
        for row in view.pods
        if row.node >= 0
    ]  # fmt: skip
    return {
        "kind": view.kind, "namespace": view.namespace, "run_label": view.run, "nodes_wanted": view.wanted,
        "seen_unix": view.seen_unix or None, "problem": view.problem, "pods": pods,
    }  # fmt: skip


def cluster_lines(cluster: dict[str, Any] | None) -> list[str]:
    """How many pods there were, what befell them, and which were not well when they were last seen."""
    if cluster is None:
        return []
    pods = cluster["pods"]
    ill = [pod for pod in pods if pod["why"]]
    counted = [(sum(pod[key] for pod in pods), what) for key, what in (("evictions", "eviction"), ("restarts", "restart"))]
    befell = [plural(number, what) for number, what in counted if number]
    lines = [
        f"\ncluster   {cluster['kind']}, namespace {cluster['namespace']}: {cluster['nodes_wanted']} of "
        f"{plural(len(pods), 'node')} wanted" + (f"; {', '.join(befell)}" if befell else "")
    ]
    lines += [f"  {pod['node']}{' on ' + pod['host'] if pod['host'] else ''}: {pod['why']}" for pod in ill[:_ILL_SHOWN]]
    if len(ill) > _ILL_SHOWN:
        lines.append(f"  and {len(ill) - _ILL_SHOWN} other pods that were not well")
    return lines
