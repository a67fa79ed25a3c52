"""What tables say of pods and Kubernetes nodes; nothing for a run of processes. Part of tables.py, whose rules hold here."""

from __future__ import annotations

import math
from typing import Any

from console.store.cluster import waiting
from console.store.fleet import FleetStore

Row = dict[str, Any]


def of_replica(store: FleetStore, node: str) -> Row:
    cluster = store.cluster
    if cluster.view is None:
        return {}
    row = cluster.row(node)
    return {
        "rack": cluster.rack(node), "pod_phase": row.phase if row is not None else "",
        "pod_ready": row.ready if row is not None else False, "pod_reason": cluster.pod_reason(node),
        "replacement_in_s": _known(cluster.replacement_s(node, store.unix)),
    }  # fmt: skip


def of_node(store: FleetStore, node: str) -> Row:
    """The pod of that node of the fleet, and the Kubernetes node that it stands on; None: it may not be read."""
    cluster = store.cluster
    if cluster.view is None:
        return {}
    row, host = cluster.row(node), cluster.host(node)
    found: Row = {"pod": row.pod if row is not None else "", "host": cluster.host_name(node)} | of_replica(store, node)
    if row is not None:
        found |= {
            "pod_restarts": row.restarts, "pod_age_s": _known(store.unix - row.since_unix) if row.since_unix else None,
            "evictions": row.evictions, "next_delay_s": row.next_delay_s or None,
        }  # fmt: skip
    return found | {
        "host_ready": host.ready if host is not None else None, "host_cordoned": host.cordoned if host is not None else None,
        "host_reason": host.reason if host is not None else "", "host_gpus_allocatable": host.gpus if host is not None else None,
        "host_gpus": host.gpus_there if host is not None else None,
    }  # fmt: skip


def whole(store: FleetStore) -> dict[str, list[Row]]:
    """One row about the cluster; what pods wait for, by reason. At the end nothing: nobody looks at it any more."""
    view = store.cluster.view
    if view is None or store.ended:
        return {}
    budget = view.budget
    row: Row = {
        "kind": view.kind, "namespace": view.namespace, "run_label": view.run, "nodes_wanted": view.wanted,
        "seen_s_ago": _known(store.cluster.age_s(store.unix)) if view.seen_unix else None, "problem": view.problem,
        "blind": store.cluster.blind(store.unix), "denied": dict(view.denied),
        "budget_allows": budget.allowed if budget is not None else None,
        "budget_healthy": budget.healthy if budget is not None else None,
        "budget_needs": budget.desired if budget is not None else None,
        "budget_problem": budget.problem if budget is not None else "",
    }  # fmt: skip
    groups = [
        {
            "what": group.what,
            "number": len(group.names),
            "why": group.why,
            "oldest_s": _known(group.oldest_s),
            "names": group.names,
        }
        for group in waiting(store)
    ]
    return {"cluster": [row], "waiting": groups}


def hosts(store: FleetStore) -> dict[str, list[Row]]:
    """Every Kubernetes node that carries, or could carry, a worker."""
    view = store.cluster.view
    if view is None:
        return {}
    rows = [
        {
            "host": host.name, "ready": host.ready, "cordoned": host.cordoned, "reason": host.reason, "rack": host.rack,
            "gpus_allocatable": host.gpus, "gpus": host.gpus_there, "taints": list(host.taints), "pods": list(host.pods),
        }
        for host in view.hosts
    ]  # fmt: skip
    return {"hosts": rows}


def _known(value: float) -> float | None:
    return round(float(value), 3) if math.isfinite(value) else None
