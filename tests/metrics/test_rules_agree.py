"""Twins and a real Prometheus find the same on one fleet: 64 nodes of 8 GPUs with planted troubles, of both vendors.

What happened in the last eleven minutes is written into Prometheus' storage by promtool, so nobody has to wait for it; the
twins get the same as columns of roles. (That both ways of reading a role agree is the business of test_scrape_agrees.py.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_kit import PrometheusServer, prometheus, promtool

from harness.metrics.gpu.alerts import Findings, find
from harness.metrics.gpu.base import MetricInfo, QueryAnswer, Reading, SourceError
from harness.metrics.gpu.join import GpuPlace, Joined, Joiner
from harness.metrics.gpu.promquery import PromClient
from harness.metrics.gpu.rules import load_rules
from harness.metrics.gpu.window import RoleHistory
from harness.metricspec import GpuSourceSpec

NODES, GPUS = 64, 8
COUNT = NODES * GPUS
#: Seconds before now: a sample a minute, at the end every 15 s.
TIMES_S = (*range(-600, -120, 60), *range(-120, 1, 15))
Column = NDArray[np.float64]
Values = Callable[[dict[str, Column]], Column]

CAPPED, HOT, SLOW_CLOCK, ECC, BURST, IDLE, MISSING, FULL, CODE, REPLAY, SOFT_CODE = (
    25,
    85,
    162,
    247,
    248,
    324,
    406,
    483,
    489,
    490,
    491,
)


@dataclass
class Plan:
    """Columns of roles at one of the times, in the units of roles, but for residencies, which are seconds so far."""

    at_s: int
    columns: dict[str, Column] = field(default_factory=dict)


def plan(at_s: int) -> Plan:
    noise = np.sin(np.arange(COUNT) * 1.7 + at_s)
    late = at_s > -300  # half of the troubles begin within the window
    columns = {
        "gpu_util": 94 + noise, "power": 900 + 10 * noise, "junction_temp": 72 + noise, "clock_ratio": 0.95 + 0.01 * noise,
        "hbm_used": np.full(COUNT, 270e9), "hbm_total": np.full(COUNT, 300e9), "ecc_correctable": 40.0 + np.zeros(COUNT),
        "ecc_uncorrectable": np.full(COUNT, 2.0), "health": np.ones(COUNT), "error_code": np.zeros(COUNT),
        "pcie_replay": np.full(COUNT, 5.0), "capped_s": np.full(COUNT, 0.004 * (1000 + at_s)), "hot_s": np.zeros(COUNT),
    }  # fmt: skip
    columns["capped_s"][CAPPED] = 0.85 * (1000 + at_s)
    columns["junction_temp"][HOT], columns["hot_s"][HOT] = 95, 0.4 * (1000 + at_s)
    columns["clock_ratio"][SLOW_CLOCK] = 0.6
    columns["gpu_util"][IDLE] = 55
    columns["hbm_used"][FULL] = 297e9
    if late:
        columns["ecc_uncorrectable"][ECC], columns["health"][ECC] = 3, 0
        columns["ecc_correctable"][BURST] = 540
        columns["pcie_replay"][REPLAY] = 8
        columns["error_code"][[CODE, SOFT_CODE]] = 79, 31
    for column in columns.values():
        column[MISSING] = np.nan
    return Plan(at_s, columns)


#: Metric → what it is of a plan, for each vendor.
AMD: dict[str, Values] = {
    "gpu_gfx_activity": lambda c: c["gpu_util"],
    "gpu_package_power": lambda c: c["power"],
    "gpu_junction_temperature": lambda c: c["junction_temp"],
    'gpu_clock{clock_type="system"}': lambda c: 2400 * c["clock_ratio"],
    'gpu_max_clock{clock_type="system"}': lambda c: 2400 + 0 * c["clock_ratio"],
    "gpu_used_vram": lambda c: c["hbm_used"] / 1e6,
    "gpu_total_vram": lambda c: c["hbm_total"] / 1e6,
    "gpu_ecc_correct_total": lambda c: c["ecc_correctable"],
    "gpu_ecc_uncorrect_total": lambda c: c["ecc_uncorrectable"],
    "gpu_health": lambda c: c["health"],
    "gpu_afid_errors": lambda c: c["error_code"],
    "pcie_replay_count": lambda c: c["pcie_replay"],
    "gpu_violation_current_accumulated_counter": lambda c: 1000 * c["looked_s"],
    "gpu_violation_ppt_residency_accumulated": lambda c: 1000 * c["capped_s"],
    "gpu_violation_socket_thermal_residency_accumulated": lambda c: 1000 * c["hot_s"],
}
NVIDIA: dict[str, Values] = {
    "DCGM_FI_DEV_GPU_UTIL": lambda c: c["gpu_util"],
    "DCGM_FI_DEV_POWER_USAGE": lambda c: c["power"],
    "DCGM_FI_DEV_GPU_TEMP": lambda c: c["junction_temp"],
    "DCGM_FI_DEV_SM_CLOCK": lambda c: 1900 * c["clock_ratio"],
    "DCGM_FI_DEV_FB_USED": lambda c: c["hbm_used"] / 1e6,
    "DCGM_FI_DEV_FB_FREE": lambda c: (c["hbm_total"] - c["hbm_used"]) / 1e6,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": lambda c: c["ecc_correctable"],
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": lambda c: c["ecc_uncorrectable"],
    "DCGM_FI_DEV_XID_ERRORS": lambda c: c["error_code"],
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": lambda c: c["pcie_replay"],
    "DCGM_FI_DEV_POWER_VIOLATION": lambda c: 1e9 * c["capped_s"],
    "DCGM_FI_DEV_THERMAL_VIOLATION": lambda c: 1e9 * c["hot_s"],
}
#: Of each rule where the plan makes it hold.
BOTH = {
    "straggler_util": [IDLE], "straggler_node_peers": [IDLE], "power_cap": [CAPPED], "thermal_throttle": [HOT], "hot_gpu": [HOT],
    "clock_drop": [SLOW_CLOCK], "ecc_uncorrectable": [ECC], "ecc_corr_burst": [BURST], "pcie_replays": [REPLAY],
    "hbm_pressure": [FULL],
}  # fmt: skip
PLANTED = {
    "amd-dme": {**BOTH, "gpu_unhealthy": [ECC], "afid": [CODE, SOFT_CODE]},
    "dcgm": {**BOTH, "xid_critical": [CODE], "xid": [SOFT_CODE]},
}


def slot(gpu: int) -> str:
    return f"node{gpu // GPUS:03d}/gpu{gpu % GPUS}"


class AtOneMoment:
    """A source that asks a server what it knew at a given second."""

    kind, name = "promql", "test"

    def __init__(self, url: str, unix: float) -> None:
        self._client, self._unix = PromClient(GpuSourceSpec(source="promql", url=url, timeout_s=60)), unix

    async def query(
        self,
        promql: str,
        start_unix: float | None = None,
        end_unix: float | None = None,
        step_s: float | None = None,
        *,
        most: int = 200,
    ) -> QueryAnswer:
        return await self._client.instant(promql, self._unix)

    async def close(self) -> None:
        await self._client.close()

    async def read(self, roles: object) -> Reading:
        raise NotImplementedError

    async def metrics(self) -> list[MetricInfo]:
        raise NotImplementedError


class Scraped(AtOneMoment):
    kind = "scrape"

    def __init__(self) -> None: ...

    async def query(self, promql: str, *_: object, **__: object) -> QueryAnswer:
        raise SourceError("setup", "no PromQL here")


def history_of(plans: list[Plan], now: float) -> RoleHistory:
    history = RoleHistory()
    before = plans[0]
    for one in plans:
        columns = {name: values for name, values in one.columns.items() if not name.endswith("_s")}
        since_s = max(1, one.at_s - before.at_s)
        for role, name in (("throttle_power", "capped_s"), ("throttle_thermal", "hot_s")):
            columns[role] = (one.columns[name] - before.columns[name]) / since_s
        columns["clock"] = 1900 * columns["clock_ratio"]
        history.push(now + one.at_s, {name: values.astype(np.float32) for name, values in columns.items()})
        before = one
    return history


def text_of(plans: list[Plan], now: float, vendor: str) -> str:
    lines = []
    table = AMD if vendor == "amd-dme" else NVIDIA
    for name, values_of in table.items():
        bare, _, more = name.rstrip("}").partition("{")
        lines.append(f"# TYPE {bare} gauge")
        for gpu in range(COUNT):
            if gpu == MISSING:
                continue
            node, number = f"node{gpu // GPUS:03d}", gpu % GPUS
            labels = (
                f'hostname="{node}",gpu_id="{number}"'
                if table is AMD
                else f'Hostname="{node}",gpu="{number}",UUID="GPU-{gpu:04d}"'
            )
            labels += f",{more}" if more else ""
            for one in plans:
                looked = {**one.columns, "looked_s": np.full(COUNT, 1000.0 + one.at_s)}
                lines.append(f"{bare}{{{labels}}} {values_of(looked)[gpu]:.10g} {now + one.at_s:.3f}")
    return "\n".join([*lines, "# EOF\n"])


@contextmanager
def knowing(text: str, folder: Path) -> Iterator[PrometheusServer]:
    """A Prometheus that knows the text, as if it had scraped it."""
    (page := folder / "page.txt").write_text(text)
    with prometheus(json.dumps({"global": {"scrape_interval": "15s"}})) as server:
        server.stop()
        made = promtool("tsdb", "create-blocks-from", "openmetrics", page, server.folder / "data", within_s=100)
        assert made.returncode == 0, made.stdout + made.stderr
        server.start()
        yield server


def joined() -> Joined:
    places = [
        GpuPlace(slot(gpu), 0, (f"node{gpu // GPUS:03d}",), gpu=str(gpu % GPUS), uuid=f"GPU-{gpu:04d}") for gpu in range(COUNT)
    ]
    return Joined({}, {}, COUNT - 1, 1, 0, (), Joiner(places))


def where(findings: Findings) -> dict[str, list[str]]:
    return {rule: sorted(one.subject for one in found) for rule, found in findings.items() if found}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("vendor", ["amd-dme", "dcgm"])
async def test_twins_and_a_real_prometheus_find_the_same(vendor: str, tmp_path: Path) -> None:
    now = float(int(time.time()) - 5)
    plans = [plan(at_s) for at_s in TIMES_S]
    history, fleet, rules = history_of(plans, now), joined(), load_rules()
    with knowing(text_of(plans, now, vendor), tmp_path) as server:
        source = AtOneMoment(server.url, now)
        try:
            began_s = time.perf_counter()
            asked = await find(source, rules, history, fleet, COUNT, profiles=[vendor])
            print(f"{vendor}: asked in {time.perf_counter() - began_s:.2f} s")
            of_the_server = await source.query(
                next(rule for rule in rules if rule.id == "gpus_missing").expr.replace(
                    "paceline_gpus_expected", f"vector({COUNT})"
                )
            )
        finally:
            await source.close()
    began_s = time.process_time()
    computed = await find(Scraped(), rules, history, fleet, COUNT, profiles=[vendor])
    print(f"{vendor}: computed in {1e3 * (time.process_time() - began_s):.1f} ms")
    wanted = {rule: sorted(map(slot, gpus)) for rule, gpus in PLANTED[vendor].items()} | {"gpus_missing": ["fleet"]}
    assert where(computed) == wanted
    assert where(asked) == wanted
    assert asked.problems == []
    assert [float(curve.values[-1]) for curve in of_the_server.curves] == [1.0]
    for rule, found in computed.items():
        values = {one.subject: one.value for one in asked[rule]}
        for one in found:
            # Prometheus extrapolates a growth to the ends of its window.
            assert one.value == pytest.approx(values[one.subject], rel=0.15), rule
    by_id = {rule: found[0].text for rule, found in asked.items() if found}
    assert by_id["power_cap"] == "power cap 85 % of the last minute, fleet median 0 %"
    assert by_id["hot_gpu"] == "junction at 95 °C, fleet median 72 °C"


async def test_rules_that_scraping_cannot_evaluate_say_so(tmp_path: Path) -> None:
    plans = [plan(at_s) for at_s in TIMES_S]
    computed = await find(Scraped(), load_rules(), history_of(plans, 1e9), joined(), COUNT, profiles=["amd-dme"])
    assert computed.not_evaluated.keys() == {"scrape_stale", "pod_restart", "disk", "target_down"}
    assert all("needs a Prometheus" in why for why in computed.not_evaluated.values())
