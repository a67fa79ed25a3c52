"""GPU metrics from a real Prometheus: roles with units and keys, what labels were renamed to, what is missing and why, ages."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from prometheus_kit import Page, PrometheusServer, config_of, job, prometheus, scraping, write_page

from harness.metrics.gpu import profiles
from harness.metrics.gpu.base import Curve, Reading, SeriesKey, SourceError
from harness.metrics.gpu.profiles import Profile
from harness.metrics.gpu.promsource import PromqlSource, resolution_of
from harness.metrics.gpu.recipes import Recipe
from harness.metricspec import GpuSourceSpec

BLANK = 9223372036854775794  # how DCGM writes it


@dataclass(frozen=True)
class Gpu:
    host: str
    number: int
    partition: str = "0"


def amd_page(gpus: Sequence[Gpu], **more: object) -> str:
    """Metrics of the AMD exporter, all gauges; `more` replaces what GPU 1 of each host has (None: nothing)."""
    found: list[str] = []
    for gpu in gpus:
        values: dict[str, object] = {
            "gpu_gfx_activity": 90 + gpu.number,
            "gpu_umc_activity": 40,
            "gpu_package_power": 1000 + gpu.number if gpu.partition == "0" else 0,
            "gpu_junction_temperature": 70.5,
            "gpu_used_vram": 200_000,
            "gpu_total_vram": 294_912,
            'gpu_clock{clock_type="system"}': 1800,
            'gpu_clock{clock_type="memory"}': 900,
            'gpu_max_clock{clock_type="system"}': 2400,
            "gpu_ecc_uncorrect_total": 0,
            "gpu_violation_ppt_residency_percentage": 25,
            **(more if gpu.number == 1 else {}),
        }
        labels = (
            f'gpu_id="{gpu.number}",gpu_uuid="uuid-{gpu.host}-{gpu.number}",hostname="{gpu.host}",'
            f'gpu_partition_id="{gpu.partition}",pod="",serial_number="",card_model=""'
        )
        for name, value in values.items():
            metric, _, own = name.partition("{")
            if value is not None:
                found.append(f"{metric}{{{own[:-1] + ',' if own else ''}{labels}}} {value}")
    return "\n".join(found) + "\n"


def dcgm_page(host: str, label: str) -> str:
    lines = []
    for gpu in range(2):
        labels = f'gpu="{gpu}",UUID="GPU-{host}-{gpu}",pci_bus_id="00000000:0{gpu}:00.0",{label}="{host}"'
        values = {
            "DCGM_FI_DEV_GPU_UTIL": 99,
            "DCGM_FI_DEV_POWER_USAGE": BLANK if gpu else 650.5,
            "DCGM_FI_DEV_GPU_TEMP": "NaN" if gpu else 61,
            "DCGM_FI_DEV_FB_USED": 70_000,
            "DCGM_FI_DEV_FB_FREE": 11_920,
        }
        lines += [f"{name}{{{labels}}} {value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


VLLM = """\
vllm:num_requests_running{engine="0",model_name="m"} 12
vllm:num_requests_waiting{engine="0",model_name="m"} 3
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
"""

TWO_HOSTS = [Gpu(host, number) for host in ("node1", "node2") for number in range(2)]
DPX = [Gpu("node3", 0, "0"), Gpu("node3", 0, "1"), Gpu("node3", 1, "0")]  # the second partition of GPU 1 is not told


@pytest.fixture(scope="module")
def pages() -> Iterator[dict[str, Page]]:
    texts = {
        "plain": amd_page(TWO_HOSTS),
        "partitions": amd_page(DPX),
        "old": dcgm_page("node4", "Hostname"),
        "new": dcgm_page("node4", "hostname"),
        "engine": VLLM,
        "late": "",
    }

    with ExitStack() as stack:
        yield {name: stack.enter_context(write_page(text, stamped=True)) for name, text in texts.items()}


@pytest.fixture(scope="module")
def server(pages: dict[str, Page]) -> Iterator[PrometheusServer]:
    ours = {"hostname": "the-scraper", "pod": "exporter-7"}
    jobs = [job(name, [page.target]) for name, page in pages.items()]
    jobs.append(job("renamed", [pages["plain"].target], labels=ours))
    jobs.append(job("honoured", [pages["plain"].target], labels=ours, honor_labels=True))
    jobs.append(job("both", [pages["plain"].target, pages["engine"].target]))
    with prometheus(config_of(jobs)) as running:
        running.until_scraped(targets=10, times=4)
        yield running


@asynccontextmanager
async def source_of(url: str, made: list[Profile] | None = None, **settings: Any) -> AsyncIterator[PromqlSource]:
    clocks = {name: settings.pop(name) for name in ("clock", "now") if name in settings}
    spec = GpuSourceSpec.model_validate({"url": url, **settings})
    source = PromqlSource(spec, profiles.load(spec) if made is None else made, **clocks)
    try:
        async with asyncio.timeout(30):
            yield source
    finally:
        await source.close()


def values_of(reading: Reading, role: str) -> dict[tuple[str, str, str], float]:
    there = reading.roles[role]
    assert len(there.keys) == len(there.values) == len(there.unix)
    found = {(key.host, key.gpu, key.partition): float(value) for key, value in zip(there.keys, there.values, strict=True)}
    assert len(found) == len(there.keys), "one value for each"
    return found


ASKED = ["gpu_util", "mem_bw", "power", "junction_temp", "hbm_used", "clock", "clock_ratio", "throttle_power", "hbm_total"]

# --- values and keys -------------------------------------------------------------------------------------------


async def test_one_round_has_all_roles_in_their_units(server: PrometheusServer) -> None:
    async with source_of(server.url, matchers='job="plain"') as source:
        reading = await source.read([*ASKED, "ecc_uncorrectable"])
    assert reading.profiles == ("amd-dme",)
    assert reading.not_collected == {}
    assert reading.problems == reading.warnings == ()
    gpus = {(gpu.host, str(gpu.number), "0"): gpu for gpu in TWO_HOSTS}
    assert values_of(reading, "gpu_util") == {key: 90.0 + gpu.number for key, gpu in gpus.items()}
    assert values_of(reading, "power") == {key: 1000.0 + gpu.number for key, gpu in gpus.items()}
    for role, value in {
        "hbm_used": 200_000 * 2**20,
        "hbm_total": 294_912 * 2**20,
        "clock": 1800.0,
        "clock_ratio": 0.75,
        "throttle_power": 0.25,
        "ecc_uncorrectable": 0.0,
        "junction_temp": 70.5,
    }.items():
        assert values_of(reading, role) == dict.fromkeys(gpus, value), role
    assert reading.roles["power"].metric == "gpu_package_power"
    assert reading.roles["power"].keys[0].uuid.startswith("uuid-node")


async def test_a_round_is_one_query(server: PrometheusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with source_of(server.url, matchers='job="plain"') as source:
        await source.read(ASKED)
        asked: list[str] = []
        post = source._client._post

        async def counted(path: str, fields: dict[str, str], query: str) -> bytes:
            asked.append(query)
            return await post(path, fields, query)

        monkeypatch.setattr(source._client, "_post", counted)
        before, after = await source.read(ASKED), await source.read(ASKED)
    assert len(asked) == 2
    assert before.roles["power"].keys is after.roles["power"].keys, "the same list, so that nobody joins it again"
    assert len(asked[0]) < 4000


async def test_labels_that_a_scrape_renamed_or_honoured_name_the_same_gpus(server: PrometheusServer) -> None:
    """honor_labels = false makes `hostname` the scraper's own and keeps the exporter's as `exported_hostname`."""
    assert server.ask('gpu_umc_activity{job="renamed",hostname="the-scraper",exported_hostname="node1"}')
    found = {}
    for name in ("plain", "renamed", "honoured"):
        async with source_of(server.url, matchers=f'job="{name}"') as source:
            found[name] = values_of(await source.read(["gpu_util"]), "gpu_util")
    assert found["plain"] == found["renamed"] == found["honoured"]


async def test_a_pod_of_the_exporter_is_not_taken_for_the_gpus_own() -> None:
    page = amd_page([Gpu("node1", 0)]).replace('pod=""', 'pod="worker-3"')
    labels = {"pod": "exporter-7"}
    with write_page(page, stamped=True) as there, prometheus(scraping([there.target], labels=labels)) as server:
        server.until_found('gpu_umc_activity{exported_pod="worker-3",pod="exporter-7"}')
        async with source_of(server.url) as source:
            [key] = (await source.read(["gpu_util"])).roles["gpu_util"].keys
    assert (key.host, key.pod) == ("node1", "worker-3")


async def test_hostname_in_either_spelling_is_the_host(server: PrometheusServer) -> None:
    found = {}
    for name in ("old", "new"):
        async with source_of(server.url, matchers=f'job="{name}"') as source:
            found[name] = await source.read(["gpu_util", "power", "junction_temp", "hbm_total", "clock"])
    assert found["old"].profiles == found["new"].profiles == ("dcgm",)
    assert set(found["old"].roles["gpu_util"].keys) == set(found["new"].roles["gpu_util"].keys)
    assert SeriesKey("node4", "0", "GPU-node4-0", "00000000:00:00.0") in found["old"].roles["gpu_util"].keys


async def test_blank_and_nan_are_no_values(server: PrometheusServer) -> None:
    async with source_of(server.url, matchers='job="old"') as source:
        reading = await source.read(["power", "junction_temp", "hbm_total", "clock"])
    assert values_of(reading, "power") == {("node4", "0", ""): 650.5}
    assert values_of(reading, "junction_temp") == {("node4", "0", ""): 61.0}
    assert values_of(reading, "hbm_total") == {("node4", str(gpu), ""): 81_920.0 * 2**20 for gpu in range(2)}
    assert "clock" in reading.not_collected


async def test_partitions_that_are_not_told_are_absent_and_power_is_of_the_first(server: PrometheusServer) -> None:
    async with source_of(server.url, matchers='job="partitions"') as source:
        reading = await source.read(["gpu_util", "power"])
    assert values_of(reading, "gpu_util") == {("node3", "0", "0"): 90.0, ("node3", "0", "1"): 90.0, ("node3", "1", "0"): 91.0}
    assert values_of(reading, "power") == {("node3", "0", "0"): 1000.0, ("node3", "1", "0"): 1001.0}


async def test_engines_and_gpus_of_one_server_are_read_in_one_round(server: PrometheusServer) -> None:
    async with source_of(server.url, matchers='job="both"') as source:
        reading = await source.read(["gpu_util", "waiting", "kv_use", "preemptions"])
    assert set(reading.profiles) == {"amd-dme", "vllm"}
    assert list(reading.roles["waiting"].values) == [3.0]
    assert reading.roles["kv_use"].keys[0].engine == "0"
    assert len(reading.roles["gpu_util"].keys) == 4
    assert "vllm:num_preemptions_total" in reading.not_collected["preemptions"]


# --- what is missing -------------------------------------------------------------------------------------------


async def test_roles_that_nobody_collects_say_why(server: PrometheusServer) -> None:
    async with source_of(server.url, matchers='job="old"') as source:
        reading = await source.read(["gpu_util", "health", "kv_use", "ecc_correctable"])
    assert set(reading.not_collected) == {"health", "kv_use", "ecc_correctable"}
    assert "NVIDIA" in reading.not_collected["health"]
    assert "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL" in reading.not_collected["ecc_correctable"]


async def test_a_server_without_any_exporter_is_told_as_such_and_found_later(
    server: PrometheusServer, pages: dict[str, Page]
) -> None:
    async with source_of(server.url, matchers='job="late",gpu_id="7"') as source:
        before = await source.read(["gpu_util"])
        assert before.roles == {}
        assert "gpu_util" in before.not_collected
        assert 'with the matchers job="late",gpu_id="7"' in before.problems[0]
        assert "gpu_gfx_activity" in before.problems[0]
        pages["late"].text = amd_page([Gpu("node9", 7)])
        try:
            await asyncio.to_thread(server.until_found, 'gpu_gfx_activity{gpu_id="7",job="late"}', 25.0)
            after = await source.read(["gpu_util"])
        finally:
            pages["late"].text = ""
    assert values_of(after, "gpu_util") == {("node9", "7", "0"): 97.0}


async def test_a_prefix_stands_before_names(pages: dict[str, Page], server: PrometheusServer) -> None:
    text = pages["new"].text
    pages["new"].text = text + re.sub(r"^gpu_", "amd_gpu_", amd_page([Gpu("node8", 0)]), flags=re.MULTILINE)
    try:
        server.until_found("amd_gpu_gfx_activity")
        async with source_of(server.url, prefix="amd_") as source:
            reading = await source.read(["power", "clock_ratio"])
    finally:
        pages["new"].text = text
    assert ("node8", "0", "0") in values_of(reading, "power")
    assert values_of(reading, "clock_ratio") == {("node8", "0", "0"): 0.75}


class Unanswerable(Recipe):
    def promql(self, matchers: str = "", prefix: str = "", window_s: float = 60.0) -> str:
        return f"gpu_clock{{{matchers}}} / on (gpu_id) gpu_clock{{{matchers}}}"


async def test_one_recipe_that_the_server_cannot_compute_costs_its_role_alone(server: PrometheusServer) -> None:
    [amd] = profiles.load(GpuSourceSpec(profiles=("amd-dme",)))
    good = amd.recipes["clock_ratio"]
    bad = replace(amd, recipes={**amd.recipes, "clock_ratio": Unanswerable(good.role, good.steps, good.labels)})
    async with source_of(server.url, [bad], matchers='job="plain"') as source:
        first, second = await source.read(ASKED), await source.read(ASKED)
    for reading in (first, second):
        assert set(reading.roles) == set(ASKED) - {"clock_ratio"}
        assert "many-to-many" in reading.not_collected["clock_ratio"]
    assert "many-to-many" in first.warnings[0]


async def test_matchers_that_the_server_refuses_are_a_bad_query(server: PrometheusServer) -> None:
    async with source_of(server.url, matchers='job=~"("') as source:
        with pytest.raises(SourceError) as caught:
            await source.read(["gpu_util"])
    assert caught.value.trouble == "bad_query"


# --- time ------------------------------------------------------------------------------------------------------


async def test_values_tell_their_age_and_how_often_they_can_change(server: PrometheusServer) -> None:
    deadline_s = time.monotonic() + 60
    while True:  # where the first scrapes came late, some more tell how often they come
        async with source_of(server.url, matchers='job="plain"') as source:
            reading = await source.read(["gpu_util", "hbm_total"])
            now = time.time()
        if abs(reading.resolution_s - 0.5) < 0.25 or time.monotonic() > deadline_s:
            break
        await asyncio.sleep(1)
    assert reading.resolution_s == pytest.approx(0.5, abs=0.25)
    for role in reading.roles.values():
        assert ((now - role.unix > -0.1) & (now - role.unix < 10)).all()


async def test_a_clock_that_goes_wrong_is_told_and_does_not_age_values(server: PrometheusServer) -> None:
    async with source_of(server.url, matchers='job="plain"', now=lambda: time.time() + 500) as source:
        reading = await source.read(["gpu_util"])
    assert "behind ours" in reading.warnings[0]
    assert (np.abs(reading.roles["gpu_util"].unix - reading.unix) < 15).all()


async def test_roles_are_answered_whenever_they_are_asked_for(server: PrometheusServer) -> None:
    """How often slow ones are wanted is for one clock alone to say, and that is the head's."""
    now_s = 1000.0
    async with source_of(server.url, matchers='job="plain"', clock=lambda: now_s) as source:
        for passes_s, roles in ((59, ["gpu_util", "hbm_total"]), (2, ["gpu_util"]), (58, ["gpu_util", "hbm_total"])):
            reading = await source.read(roles)
            assert list(reading.roles) == roles
            assert reading.not_collected == {}
            now_s += passes_s


async def test_a_restart_of_prometheus_ages_values_until_they_are_fresh_again() -> None:
    now_s = 1000.0
    with write_page(amd_page(TWO_HOSTS), stamped=True) as page, prometheus(scraping([page.target])) as server:
        server.until_scraped(times=2)
        async with source_of(server.url, clock=lambda: now_s) as source:
            before = await source.read(["gpu_util"])
            server.stop()
            with pytest.raises(SourceError) as caught:
                await source.read(["gpu_util"])
            assert caught.value.trouble == "unreachable"
            page.status = 503  # it is not scraped before it was asked
            server.start()
            with pytest.raises(SourceError):
                await source.read(["gpu_util"])  # it waits before it tries again
            now_s += 10
            await asyncio.sleep(1.0)
            stale = await source.read(["gpu_util"])
            age_s = time.time() - stale.roles["gpu_util"].unix.max()
            assert values_of(stale, "gpu_util") == values_of(before, "gpu_util")
            assert age_s > 1.0, "it has not been scraped since"
            page.status = 200
            newest = f"timestamp(gpu_gfx_activity) > {stale.roles['gpu_util'].unix.max() + 1}"
            await asyncio.to_thread(server.until_found, newest)
            fresh = await source.read(["gpu_util"])
    assert fresh.roles["gpu_util"].unix.min() > stale.roles["gpu_util"].unix.max()


def test_the_resolution_is_how_often_a_cache_behind_the_scrape_changes() -> None:
    unix = np.arange(0.0, 300.0, 5.0)
    rests = Curve({}, unix, np.full(len(unix), 100.0))
    cached = Curve({}, unix, np.floor(unix / 15) % 7)
    assert resolution_of([rests]) == 5.0
    assert resolution_of([rests, cached]) == 15.0
    assert np.isnan(resolution_of([Curve({}, unix[:1], unix[:1])]))


# --- people's questions ----------------------------------------------------------------------------------------


async def test_people_ask_at_one_moment_or_over_a_range(server: PrometheusServer) -> None:
    now = time.time()
    async with source_of(server.url, matchers='job="plain"') as source:
        await source.read(["gpu_util"])
        instant = await source.query('gpu_gfx_activity{job="plain"}', most=3)
        ranged = await source.query('max(gpu_gfx_activity{job="plain"})', now - 3600, now)
        stepped = await source.query("vector(1)", now - 60, now, 5.0)
        names = {metric.name: metric.roles for metric in await source.metrics()}
    assert (len(instant.curves), instant.left_out) == (3, 1)
    assert ranged.step_s == pytest.approx(12.0)
    assert set(ranged.curves[0].values) == {91.0}
    assert stepped.step_s == 5.0
    assert names["gpu_clock"] == ("clock", "clock_ratio")
    assert names["up"] == ()
