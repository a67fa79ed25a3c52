"""One round of 8 roles x 512 GPUs from a real Prometheus: the head's CPU, against a bare httpx + json of the same query.

The round asks, decodes, scales to units and tells each value's age; the bare fetch only decodes. CPU is that of the thread
that runs the loop; the page that Prometheus scrapes is served by another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx

from harness.metrics.gpu import profiles
from harness.metrics.gpu.promsource import PromqlSource
from harness.metricspec import GpuSourceSpec
from tests.bench.rig import Row, median, process_cpu_s, row
from tests.metrics.prometheus_kit import PrometheusServer, prometheus, scraping, write_page

NODES, GPUS, ROUNDS, WARM = 64, 8, 15, 3
ROLES = ["gpu_util", "mem_bw", "power", "junction_temp", "memory_temp", "hbm_used", "clock", "throttle_power"]
METRICS = {
    "gpu_gfx_activity": 97,
    "gpu_umc_activity": 43,
    "gpu_package_power": 987,
    "gpu_junction_temperature": 71,
    "gpu_memory_temperature": 64,
    "gpu_used_vram": 271_113,
    "gpu_violation_ppt_residency_percentage": 25,
    'gpu_clock{clock_index="0",clock_type="system",': 1873,
}


def run() -> list[Row]:
    with write_page(page_text()) as page, prometheus(scraping([page.target], interval_s=2.0)) as server:
        server.until_scraped(times=2)
        return asyncio.run(measured(server))


def page_text() -> str:
    """With the labels of the AMD exporter, sixteen after a scrape."""
    lines = []
    for name, value in METRICS.items():
        head = name if "{" in name else f"{name}{{"
        for node in range(NODES):
            for gpu in range(GPUS):
                labels = (
                    f'card_model="",cluster_name="c1",container="",deployment_mode="baremetal",gpu_compute_partition_type="spx",'
                    f'gpu_id="{gpu}",gpu_memory_partition_type="nps1",gpu_partition_id="0",gpu_uuid="{node:08x}-{gpu:04x}-1000",'
                    f'hostname="node{node:03}",job_id="",namespace="",pod="",serial_number="6924{node:04}{gpu}"'
                )
                lines.append(f"{head}{labels}}} {value + gpu}")
    return "\n".join(lines) + "\n"


async def measured(server: PrometheusServer) -> list[Row]:
    assert server.process is not None
    spec = GpuSourceSpec(url=server.url, profiles=("amd-dme",), slow_interval_s=3600)
    source = PromqlSource(spec, profiles.load(spec))
    direct = httpx.AsyncClient(trust_env=False, timeout=30)
    try:
        reading = await source.read(ROLES)
        assert {role: len(reading.roles[role].keys) for role in ROLES} == dict.fromkeys(ROLES, NODES * GPUS)
        query = " or ".join(part.promql for part in source._kept["amd-dme"].rounds.parts(ROLES, 60.0))

        async def ours() -> None:
            await source.read(ROLES)

        async def bare() -> None:
            answer = await direct.post(f"{server.url}/api/v1/query", data={"query": query})
            assert len(answer.json()["data"]["result"]) >= len(ROLES) * NODES * GPUS

        (ours_s, ours_server_s), (bare_s, bare_server_s) = await cpu_of(server.process.pid, ours, bare)
    finally:
        await source.close()
        await direct.aclose()
    return [
        row("promql: client CPU of a round of 8 roles x 512 GPUs over bare httpx + json", ours_s / bare_s, "ratio", at_most=1.2),
        row("promql: client CPU of a round of 8 roles x 512 GPUs", ours_s * 1000, "ms", at_most=25.0),
        row("promql: client CPU of a bare httpx + json fetch of it", bare_s * 1000, "ms"),
        row(
            "promql: the server's CPU of such a round, scrapes in between included",
            median([ours_server_s, bare_server_s]) * 1000,
            "ms",
        ),
    ]


async def cpu_of(server: int, *ways: Callable[[], Awaitable[None]]) -> list[tuple[float, float]]:
    """Of this thread and of the server, a round each; the ways take turns, so that the machine's load is the same for both."""
    found: list[list[tuple[float, float]]] = [[] for _ in ways]
    for _ in range(WARM + ROUNDS):
        for each, way in zip(found, ways, strict=True):
            began_s, server_began_s = time.thread_time(), process_cpu_s(server)
            await way()
            each.append((time.thread_time() - began_s, process_cpu_s(server) - server_began_s))
    return [(median([one[0] for one in each[WARM:]]), median([one[1] for one in each[WARM:]])) for each in found]
