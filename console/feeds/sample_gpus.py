"""SAMPLE DATA, never measurements: GPU metrics of a `ScriptedFleet`, as a head would tell them, and its answers to queries.

One GPU is held at a lower power limit than its peers (the sample's slowest replica), one counts uncorrectable memory errors,
one role has gone stale and three are not collected. The same second gives the same numbers.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.roles import ROLES
from harness.wire import inquiry
from harness.wire.gpus import AlertRow, GpuView, RoleColumn

if TYPE_CHECKING:
    from console.feeds.scripted import ScriptedFleet

CAPPED: Final = "node015/gpu3"
BROKEN: Final = "node003/gpu1"
EVERY_S: Final = 5.0
SOURCE: Final = "Prometheus prom.example:9090"
STALE_ROLE: Final = "memory_temp"
_STALE_FOR_S: Final = 400.0
_CAP_W: Final = 640.0
NOT_COLLECTED: Final = {
    "mem_bw": "the exporter has no gpu_umc_activity on a virtual function",
    "error_code": "amd-dme has no such metric",
    "link_down": "no NIC exporter is scraped",
}
_METRICS: Final = {
    "gpu_util": "gpu_gfx_activity", "power": "gpu_package_power", "junction_temp": "gpu_junction_temperature",
    "memory_temp": "gpu_memory_temperature", "hbm_used": "gpu_used_vram", "hbm_total": "gpu_total_vram", "clock": "gpu_clock",
    "clock_ratio": "gpu_clock", "throttle_power": "gpu_violation_ppt_residency_accumulated",
    "throttle_thermal": "gpu_violation_socket_thermal_residency_accumulated", "ecc_correctable": "gpu_ecc_correct_total",
    "ecc_uncorrectable": "gpu_ecc_uncorrect_total", "health": "gpu_health", "pcie_replay": "pcie_replay_count",
}  # fmt: skip

Floats = NDArray[np.float64]


class SampleGpus:
    def __init__(self, fleet: ScriptedFleet, *, devices: int = 1) -> None:
        self._fleet, self.devices = fleet, devices
        self.state, self.problem = "ok", ""
        self.not_collected = dict(NOT_COLLECTED)
        self.promql = True

    def _position(self, slot: str) -> int:
        return self._fleet.names.index(slot) if slot in self._fleet.names else -1

    def values(self, role: str, at_s: float) -> Floats:
        """One row a replica, one column a GPU."""
        count = len(self._fleet.names)
        rng = np.random.default_rng([int(at_s // EVERY_S) % 100_000, list(_METRICS).index(role)])
        noise = rng.normal(0.0, 1.0, (count, self.devices))
        busy = np.where(np.isin(self._fleet.phase, ("MEASURING", "DRAINING")), 1.0, 0.1)
        capped, broken = self._position(CAPPED), self._position(BROKEN)
        still: Floats = np.zeros((count, self.devices))
        if role == "gpu_util":
            found = 97 * busy + noise * 0.7
        elif role == "power":
            found = 1010 * busy + 12 * noise + 25 * math.sin(at_s / 40)
            found[capped, 0] = _CAP_W + noise[capped, 0] if capped >= 0 else found[capped, 0]
        elif role in ("junction_temp", "memory_temp"):
            found = (78 if role == "junction_temp" else 71) + 2.2 * noise
            if capped >= 0:
                found[capped, 0] -= 17
        elif role in ("clock", "clock_ratio"):
            found = 2370 + 14 * noise
            if capped >= 0:
                found[capped, 0] = 1420 + 9 * noise[capped, 0]
            found = found if role == "clock" else found / 2400
        elif role in ("hbm_used", "hbm_total"):
            found = still + (288e9 if role == "hbm_total" else 261e9)
        elif role == "throttle_power":
            found = np.abs(0.02 + 0.006 * noise)
            if capped >= 0:
                found[capped, 0] = 0.96
        elif role == "health":
            found = still + 1
        elif role == "ecc_uncorrectable":
            found = still
            if broken >= 0 and at_s >= 305:
                found[broken, 0] = 2
        elif role == "ecc_correctable":
            found = np.floor(np.abs(noise) * 1.4)
        else:
            found = still
        return found

    def view(self) -> GpuView:
        fleet = self._fleet
        sampled_s = fleet.t_s // EVERY_S * EVERY_S
        roles = []
        for role, metric in _METRICS.items():
            old_s = _STALE_FOR_S if role == STALE_ROLE else 0.0
            slow_s = fleet.t_s % 60 if ROLES[role].slow else 0.0
            unix = fleet.unix_at(sampled_s - old_s - slow_s)
            values = self.values(role, sampled_s - old_s).astype("<f4")
            roles.append(RoleColumn(role, values.tobytes(), metric, unix, unix))
        return GpuView(
            unix=fleet.unix_at(fleet.t_s), state=self.state, kind="promql", source=SOURCE, profiles=["amd-dme"],
            interval_s=EVERY_S,
            resolution_s=15.0, devices=self.devices, roles=roles, not_collected=self.not_collected, problem=self.problem,
            matched=len(fleet.names) * self.devices, alerts=self.alerts(), rules=23,
        )  # fmt: skip

    def alerts(self) -> list[AlertRow]:
        fleet, rows = self._fleet, []
        if self._position(CAPPED) >= 0 and fleet.t_s >= 240:
            rows.append(AlertRow(
                "power_cap", CAPPED, "warn", fleet.unix_at(240.0), 0.96,
                "96 % of the last minute at the power cap, fleet median 2 %", "power cap",
            ))  # fmt: skip
        if self._position(BROKEN) >= 0 and fleet.t_s >= 305:
            rows.append(AlertRow(
                "ecc_uncorrectable", BROKEN, "crit", fleet.unix_at(305.0), 2.0, "2 uncorrectable memory errors in 10 min",
                "uncorrectable ECC", "evict",
            ))  # fmt: skip
        return rows

    def story(self) -> list[tuple[float, dict[str, Any]]]:
        """What the journal says of it: when, and the fields of an entry."""
        source = {"what": "metrics.source", "subject": SOURCE, "after": "ok", "data": {
            "kind": "promql", "profiles": ["amd-dme"], "interval_s": EVERY_S, "resolution_s": 15.0, "devices": self.devices,
            "matched": len(self._fleet.names), "not_collected": self.not_collected,
        }}  # fmt: skip
        found: list[tuple[float, dict[str, Any]]] = [(-80.0, source)]
        for row in self.alerts():
            data = {"rule": row.rule, "severity": row.severity, "value": row.value, "cause": row.cause, "act": row.act}
            level = {"crit": "error", "warn": "warn"}.get(row.severity, "info")
            entry = {"what": "alert.start", "subject": row.subject, "why": row.text, "level": level, "data": data}
            found.append((row.since_unix - self._fleet.unix_at(0.0), entry))
        return found

    # --- what it answers --------------------------------------------------------------------------------------

    def names(self, question: inquiry.GetMetricNames) -> inquiry.MetricNames:
        roles: dict[str, list[str]] = {}
        for role, metric in _METRICS.items():
            roles.setdefault(metric, []).append(role)
        names = [
            inquiry.MetricName(metric, "gauge", ROLES[feeds[0]].title.capitalize(), feeds) for metric, feeds in roles.items()
        ]
        more: tuple[tuple[str, str, str, list[str]], ...] = (
            ("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", ["waiting"]),
            ("vllm:num_preemptions_total", "counter", "Cumulative number of preemptions from the engine.", ["preemptions"]),
            ("vllm:time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds.", []),
            ("paceline_queries_issued_total", "counter", "Queries that the head issued", []),
            ("up", "gauge", "", []),
        )
        names += [inquiry.MetricName(name, kind, told, feeds) for name, kind, told, feeds in more]
        return inquiry.MetricNames(question.request_id, sorted(names, key=lambda one: one.name), SOURCE)

    def curves(self, question: inquiry.QueryMetrics) -> inquiry.MetricCurves:
        """The metric that is named in the query; whatever else it says is left aside."""
        if not self.promql:
            problem = "64 exporters: no PromQL without a Prometheus; set metrics.gpu.url or metrics.gpu.with_prometheus"
            return inquiry.MetricCurves(question.request_id, source="64 exporters", problem=problem)
        known = {metric: role for role, metric in reversed(_METRICS.items())}
        role = next((known[word] for word in re.findall(r"[a-z_:]+", question.query) if word in known), None)
        if role is None:
            return inquiry.MetricCurves(question.request_id, kind="vector", source=SOURCE, took_ms=3.0)
        end_unix = question.end_unix or self._fleet.unix_at(self._fleet.t_s)
        step_s = max(15.0, (end_unix - question.start_unix) / 240) if question.start_unix else 0.0
        unix = np.arange(question.start_unix, end_unix + 1e-6, step_s) if step_s else np.array([end_unix])
        grid = np.stack([self.values(role, float(moment) - self._fleet.unix_at(0.0))[:, 0] for moment in unix], axis=1)
        curves = []
        for at, slot in enumerate(self._fleet.names[: question.most]):
            node, _, gpu = slot.partition("/gpu")
            labels = {"hostname": node, "gpu_id": gpu}
            curves.append(inquiry.MetricCurve(labels, unix.astype("<f8").tobytes(), grid[at].astype("<f8").tobytes()))
        return inquiry.MetricCurves(
            question.request_id, curves, "matrix" if step_s else "vector", step_s=step_s, took_ms=41.0 if step_s else 18.0,
            left_out=max(0, len(self._fleet.names) - question.most), source=SOURCE,
            warnings=["one of two stores did not answer in time; the result may be partial"] if step_s else [],
        )  # fmt: skip
