"""Replicas and nodes that are slow beside their fleet, as findings: whether or not the limits hold."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from harness.analysis.distributions import short
from harness.analysis.fleet import grouped, robust_z
from harness.analysis.table import AttemptTable, node_of
from harness.analysis.views import CALLED, Finding, Metric, Where

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]

SLOW_Z: Final = 3.5
SLOW_RATIO: Final = 1.08
NAMED: Final = 4  # told one by one
_LOOKED_AT: Final = 400  # samples of a replica, about: the middle of that many is sure to a few per cent
_LEAST: Final = 10  # and the middle of fewer than that says nothing of a replica


def slow_places(table: AttemptTable) -> list[Finding]:
    """Replicas that decode (or, with roles split, prefill) slower than the fleet by robust z, and nodes where all do."""
    found = _slow(table, "tpot", _medians(table, "tpot"))
    if table.split:  # else a prompt's length and its place in a queue say more of a TTFT than its replica
        found += _slow(table, "ttft", _medians(table, "ttft"))
    return found


def _medians(table: AttemptTable, metric: Metric) -> Floats:
    """Of each replica, in ms; NaN where too few of its samples were looked at."""
    step = max(1, table.n // (_LOOKED_AT * max(len(table.slots), 1)))
    values, codes = table.metric(metric)[::step], table.replica_codes(metric)[::step]
    seen = np.bincount(codes[~np.isnan(values) & (codes >= 0)], minlength=len(table.slots))
    return np.where(seen >= _LEAST, grouped(values, codes, len(table.slots), (0.5,))[0], np.nan)


def _slow(table: AttemptTable, metric: Metric, medians: Floats) -> list[Finding]:
    there = np.flatnonzero(np.isfinite(medians) & (medians > 0))
    z = robust_z(medians[there])
    if not len(there) or np.isnan(z).all():
        return []
    usual_ms = float(np.median(medians[there]))
    slow = {
        int(i): float(score) for i, score in zip(there, z, strict=True) if score > SLOW_Z and medians[i] > SLOW_RATIO * usual_ms
    }
    of_node: dict[str, list[int]] = {}
    for i in there.tolist():
        of_node.setdefault(node_of(table.slots[i]), []).append(i)
    nodes = [
        node for node, members in of_node.items() if len(members) > 1 and len(of_node) > 1 and all(i in slow for i in members)
    ]
    found: list[tuple[float, Finding]] = []
    for node in nodes:
        ms, score = float(np.median(medians[of_node[node]])), min(slow[i] for i in of_node[node])
        found.append((ms, _told(f"{node} ({len(of_node[node])} replicas)", metric, ms, usual_ms, score, Where(node=node))))
    for i in slow:
        if node_of(slot := table.slots[i]) not in nodes:
            found.append((float(medians[i]), _told(slot, metric, float(medians[i]), usual_ms, slow[i], Where(slot=slot))))
    found.sort(key=lambda each: -each[0])
    told = [finding for _, finding in found[:NAMED]]
    if len(found) > NAMED:
        text = f"{len(found) - NAMED} more are slow: sort the fleet by z."
        told.append(Finding("warn", text, "fleet", metric))
    return told


def _told(name: str, metric: Metric, ms: float, usual_ms: float, z: float, where: Where) -> Finding:
    does = "decodes" if metric == "tpot" else "prefills"
    far = f"{ms / usual_ms - 1:.0%} slower than" if ms < 2 * usual_ms else f"{ms / usual_ms:.1f} times as long as"
    figures = f"{CALLED[metric]} p50 {short(ms)} against {short(usual_ms)} ms, z {z:,.1f}"
    text = f"{name} {does} {far} the fleet ({figures}): look at its GPU and log, and recycle it between attempts."
    return Finding("warn", text, "fleet", metric, "node" if where.node else "replica", where)
