"""The simulated exporter: a page on loopback that reads like AMD's Device Metrics Exporter, of GPUs that do not exist.

It serves synthetic fleets, whose head starts it: a direct scrape and a child Prometheus read the same bytes. Names and
labels are the real ones (all gauges, counters too; labels of a pod are there and empty); card_model, serial_number,
gpu_uuid and the first line of the page say that nothing here was measured.

A page of 512 GPUs has 14,000 lines. Nearly all of each line is fixed, so a metric is one template that is filled in by
one `%`; this takes 4 to 22 ms of CPU (measured), in a thread and in pieces of a millisecond, at most once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from aiohttp import web

from harness.engines.synthetic.gpus import MODEL, numbers_on_node, uuid
from harness.metrics.gpu.simgpus import (
    MAX_CLOCK_MHZ,
    MEMORY_CLOCK_MHZ,
    VRAM_MB,
    FleetLoad,
    SimulatedGpus,
    SlotLoad,
    fleet_load,
)
from harness.spec import RunSpec, node_name

__all__ = ["FleetLoad", "SimulatedExporter", "SimulatedPage", "SlotLoad", "fleet_load"]

#: A page that is younger is served again.
KEEP_S: Final = 1.0
_FIRST = "# Simulated by paceline for a synthetic fleet: these GPUs do not exist and nothing here was measured.\n"
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CLOCKS: Final = {"system": {"clock_index": "0", "clock_type": "system"}, "memory": {"clock_index": "8", "clock_type": "memory"}}

_PPT, _THM = "gpu_violation_ppt_residency", "gpu_violation_socket_thermal_residency"
_PPT_TOLD, _THM_TOLD = "violation of package power tracking", "violation of the socket's temperature"
#: Metric, help, clock, and the column of SimulatedGpus: whole numbers, as the exporter's are.
_MOVING: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("gpu_gfx_activity", "Graphics engine busy, percent", "", "busy_percent"),
    ("gpu_umc_activity", "Memory engine busy, percent", "", "membw_percent"),
    ("gpu_package_power", "Present socket power, W", "", "power_w"),
    ("gpu_power_usage", "Power usage, W", "", "power_w"),
    ("gpu_energy_consumed", "Accumulated energy, uJ", "", "energy_uj"),
    ("gpu_used_vram", "Used VRAM, MB", "", "used_mb"),
    ("gpu_free_vram", "Free VRAM, MB", "", "free_mb"),
    ("gpu_junction_temperature", "Junction (hotspot) temperature, Celsius", "", "junction_c"),
    ("gpu_memory_temperature", "Memory temperature, Celsius", "", "hbm_c"),
    ("gpu_clock", "Present clock, MHz", "system", "clock_mhz"),
    ("gpu_violation_current_accumulated_counter", "Accumulation counter of violations", "", "looks"),
    (f"{_PPT}_accumulated", f"Accumulated {_PPT_TOLD}", "", "capped_looks"),
    (f"{_PPT}_percentage", f"Percentage of {_PPT_TOLD}", "", "capped_percent"),
    (f"{_THM}_accumulated", f"Accumulated {_THM_TOLD}", "", "hot_looks"),
    (f"{_THM}_percentage", f"Percentage of {_THM_TOLD}", "", "hot_percent"),
    ("gpu_ecc_uncorrect_total", "Uncorrectable ECC errors", "", "uncorrectable"),
    ("gpu_ecc_uncorrect_umc", "Uncorrectable ECC errors in UMC", "", "uncorrectable"),
    ("gpu_health", "Health of the GPU (1: healthy)", "", "health"),
    ("pcie_bandwidth", "Present PCIe bandwidth, Mb/s", "", "pcie_mbit_s"),
)
#: What does not change, with its value.
_FIXED: Final[tuple[tuple[str, str, str, float], ...]] = (
    ("gpu_total_vram", "Total VRAM, MB", "", VRAM_MB),
    ("gpu_max_clock", "Maximum clock, MHz", "system", MAX_CLOCK_MHZ),
    ("gpu_violation_vr_thermal_residency_accumulated", "Accumulated violation of a voltage regulator's temperature", "", 0),
    ("gpu_violation_hbm_thermal_residency_accumulated", "Accumulated violation of the memory's temperature", "", 0),
    ("gpu_violation_processor_hot_residency_accumulated", "Accumulated violation of the processor's temperature", "", 0),
    ("gpu_ecc_correct_total", "Correctable ECC errors", "", 0),
    ("gpu_ecc_correct_umc", "Correctable ECC errors in UMC", "", 0),
    ("pcie_replay_count", "PCIe replays", "", 0),
)


class SimulatedPage:
    """The text, of a fleet's GPUs in their present state. Holds templates of as many bytes as the page has."""

    def __init__(self, spec: RunSpec) -> None:
        labels = list(_labels(spec))
        prefix = spec.metrics.gpu.prefix
        self._templates: list[tuple[str, str]] = []  # with a column's name
        for name, told, clock, column in _MOVING:
            text = _block(prefix + name, told, labels, clock, "%d")
            if name == "gpu_clock":  # a second clock of the same metric stands under the same head
                text += _lines(prefix + name, labels, "memory", f"{MEMORY_CLOCK_MHZ:g}")
            self._templates.append((text, column))
        self._fixed = "".join(
            _block(prefix + name, told, labels, clock, f"{value:g}") % () for name, told, clock, value in _FIXED
        )

    def columns(self, gpus: SimulatedGpus) -> list[tuple[float, ...]]:
        """Read on the thread that advances the GPUs; `render` may then run on another."""
        return [tuple(np.rint(getattr(gpus, column)).tolist()) for _, column in self._templates]

    def render(self, columns: Sequence[tuple[float, ...]]) -> bytes:
        moving = [template % values for (template, _), values in zip(self._templates, columns, strict=True)]
        return "".join([_FIRST, *moving, self._fixed]).encode()


class SimulatedExporter:
    """`state` is asked on the loop, when a page is fetched that is not fresh any more."""

    def __init__(self, spec: RunSpec, state: Callable[[], FleetLoad]) -> None:
        self._state = state
        self._gpus, self._page = SimulatedGpus(spec), SimulatedPage(spec)
        self._body, self._rendered_s = b"", float("-inf")
        self._lock = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> str:
        """The page's URL, on a free port of 127.0.0.1."""
        app = web.Application()
        app.router.add_get("/metrics", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/metrics"
        return self.url

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def page(self) -> bytes:
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._rendered_s >= KEEP_S:
                self._gpus.advance(self._state())
                columns = self._page.columns(self._gpus)
                self._rendered_s = loop.time()  # what it shows is of now, however long the text takes
                self._body = await asyncio.to_thread(self._page.render, columns)
            return self._body

    async def _answer(self, request: web.Request) -> web.Response:
        return web.Response(body=await self.page(), headers={"Content-Type": _CONTENT_TYPE})


def _labels(spec: RunSpec) -> list[dict[str, str]]:
    """One set for each GPU, in the order of SimulatedGpus."""
    fleet = spec.fleet
    return [
        {
            "card_model": f"AMD Instinct {MODEL}",
            "container": "",
            "deployment_mode": "baremetal",
            "gpu_compute_partition_type": "spx",
            "gpu_id": str(number),
            "gpu_memory_partition_type": "nps1",
            "gpu_partition_id": "0",
            "gpu_uuid": uuid(node, number),
            "hostname": node_name(node),
            "job_id": "",
            "job_partition": "",
            "job_user": "",
            "namespace": "",
            "pod": "",
            "serial_number": f"SIMULATED-{node:03d}-{number}",
        }
        for node in range(fleet.nodes)
        for gpu in range(fleet.replicas_per_node)
        for number in numbers_on_node(spec, gpu)
    ]


def _block(name: str, told: str, labels: Sequence[dict[str, str]], clock: str, form: str) -> str:
    return f"# HELP {name} {told}\n# TYPE {name} gauge\n" + _lines(name, labels, clock, form)


def _lines(name: str, labels: Sequence[dict[str, str]], clock: str, form: str) -> str:
    more = _CLOCKS.get(clock, {})
    return "".join(f"{name}{{{_joined({**one, **more})}}} {form}\n" for one in labels)


def _joined(labels: dict[str, str]) -> str:
    """Sorted by name, as the exporter's library writes them. Nothing that we write needs an escape."""
    return ",".join(f'{name}="{labels[name]}"' for name in sorted(labels))
