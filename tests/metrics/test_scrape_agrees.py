"""Direct scrape and PromQL read the same bytes of 64 x 8 GPUs and agree on every role, GPU by GPU; windows agree to the digit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product

import numpy as np
import pytest
from pages import Fleet, amd_page, dcgm_page
from prometheus_kit import Page, PrometheusServer, config_of, job, prometheus, scraping, write_page

from harness.metrics.gpu import profiles
from harness.metrics.gpu.base import Reading, SeriesKey
from harness.metrics.gpu.promsource import PromqlSource
from harness.metrics.gpu.recipes import growth_a_second, mean_of_window
from harness.metrics.gpu.roles import GPU_ROLES
from harness.metrics.gpu.scrape import ScrapeSource
from harness.metricspec import GpuSourceSpec

ROUNDS = 4
INTERVAL_S = 3.0  # Prometheus waits as long for a page, and these pages have some megabytes


def by_key(reading: Reading, role: str) -> dict[SeriesKey, float]:
    """Without the pod: an empty one is no label for Prometheus."""
    of_role = reading.roles[role]
    return dict(zip(of_role.keys, of_role.values.tolist(), strict=True))


Both = tuple[Fleet, Reading, Reading]  # by PromQL, and by scrape

FLEETS: dict[str, tuple[int, str, Callable[[Fleet], str]]] = {  # nodes, prefix and page
    "amd": (64, "", amd_page),
    "amd_prefixed": (13, "amd_", lambda fleet: amd_page(fleet, prefix="amd_")),
    "dcgm_old": (64, "", lambda fleet: dcgm_page(fleet, host_label="Hostname")),
    "dcgm_new": (3, "", lambda fleet: dcgm_page(fleet, host_label="hostname")),
}


@pytest.fixture(scope="module")
def read_both_ways() -> dict[str, Both]:
    """The last readings of each fleet after some rounds in which accumulated metrics grew; all at once, because most of it is
    waiting for samples."""
    with ExitStack() as stack:
        fleets = {name: Fleet(nodes) for name, (nodes, _, _) in FLEETS.items()}
        pages = {name: stack.enter_context(write_page(FLEETS[name][2](fleet))) for name, fleet in fleets.items()}
        jobs = [job(name, [page.target]) for name, page in pages.items()]
        server = stack.enter_context(prometheus(config_of(jobs, interval_s=INTERVAL_S)))
        return asyncio.run(_read(server, fleets, pages))


async def _read(server: PrometheusServer, fleets: dict[str, Fleet], pages: dict[str, Page]) -> dict[str, Both]:
    scrapes, promqls = dict[str, ScrapeSource](), dict[str, PromqlSource]()
    for name, page in pages.items():
        common = {"prefix": FLEETS[name][1], "interval_s": 1.0, "timeout_s": 30.0}
        scrapes[name] = ScrapeSource([page.url], spec := GpuSourceSpec.model_validate(common), profiles.load(spec))
        own = {**common, "url": server.url, "matchers": f'job="{name}"'}
        promqls[name] = PromqlSource(spec := GpuSourceSpec.model_validate(own), profiles.load(spec))
    try:
        for _ in range(ROUNDS):
            for name, fleet in fleets.items():
                fleet.advance(INTERVAL_S)
                pages[name].text = FLEETS[name][2](fleet)
            await asyncio.to_thread(server.until_all_scraped_since, time.time(), len(pages))
            await asyncio.gather(*(scrape.read(GPU_ROLES) for scrape in scrapes.values()))
        return {
            name: (fleet, await promqls[name].read(GPU_ROLES), await scrapes[name].read(GPU_ROLES))
            for name, fleet in fleets.items()
        }
    finally:
        await asyncio.gather(*(source.close() for source in scrapes.values()), *(source.close() for source in promqls.values()))


def check_agreement(asked: Reading, scraped: Reading, loose: frozenset[str] = frozenset()) -> set[str]:
    assert set(asked.roles) == set(scraped.roles)
    assert asked.profiles == scraped.profiles
    assert set(asked.not_collected) == set(scraped.not_collected)
    for role in scraped.roles:
        there, here = by_key(asked, role), by_key(scraped, role)
        assert there.keys() == here.keys(), role
        ours, theirs = np.array([here[key] for key in here]), np.array([there[key] for key in here])
        tolerance = 0.35 if role in loose else 1e-6
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=1e-9 + 0.01 * (role in loose), err_msg=role)
    return set(scraped.roles)


@pytest.mark.parametrize("name", ["amd", "amd_prefixed"])
def test_agree_on_every_role_of_an_amd_page(name: str, read_both_ways: dict[str, Both]) -> None:
    fleet, asked, scraped = read_both_ways[name]
    roles = check_agreement(asked, scraped)
    assert roles == set(GPU_ROLES) - {"link_down"}
    assert scraped.profiles == ("amd-dme",)
    power = scraped.roles["power"]
    assert len(power.keys) == fleet.count
    assert power.values[3] == 803  # the one without gpu_package_power has the next in line
    assert len(scraped.roles["memory_temp"].keys) == fleet.count - sum(
        gpu % 100 == 6 for gpu in range(fleet.count)
    )  # blank ones are absent, not huge
    assert len(scraped.roles["junction_temp"].keys) == fleet.count - sum(gpu % 100 == 5 for gpu in range(fleet.count))
    assert scraped.roles["hbm_used"].values[0] == 270_000 * 1048576
    np.testing.assert_allclose(scraped.roles["throttle_power"].values, fleet.capped, atol=1e-3)
    np.testing.assert_allclose(scraped.roles["throttle_thermal"].values, np.fmax(fleet.hot, 0.5 * fleet.hot[::-1]), atol=1e-3)


@pytest.mark.parametrize("name", ["dcgm_old", "dcgm_new"])
def test_agree_on_every_role_of_a_dcgm_page(name: str, read_both_ways: dict[str, Both]) -> None:
    """Shares of time are per second of two different sets of samples here, so they agree only roughly; see below."""
    fleet, asked, scraped = read_both_ways[name]
    roles = check_agreement(asked, scraped, frozenset({"throttle_power", "throttle_thermal"}))
    assert roles == set(GPU_ROLES) - {"health", "link_down"}
    assert {key.host for key in scraped.roles["power"].keys} == {fleet.host(gpu) for gpu in range(fleet.count)}
    assert scraped.roles["hbm_total"].values[5] == (70_005 + 11_000) * 1048576
    assert scraped.roles["error_code"].values.tolist() == [48.0]


def test_a_window_is_what_prometheus_computes_from_the_same_samples() -> None:
    """Growth, a restart from 0, and a counter that began a moment ago."""
    series = {"steady": [100, 110, 121, 133, 140], "restarted": [50, 60, 3, 9, 9], "young": [0, 2, 4, 6, 8]}
    lines = [[f'made_up{{kind="{kind}"}} {values[i]}' for kind, values in series.items()] for i in range(5)]
    with write_page("\n".join(lines[0]) + "\n") as page, prometheus(scraping([page.target])) as server:
        for part in lines:
            page.text = "\n".join(part) + "\n"
            server.until_all_scraped_since(time.time())
        (newest,) = server.until_found("max(timestamp(made_up))")
        now = round(float(newest["value"][1]) + 0.2, 3)  # no window begins or ends at a sample
        server.until_all_scraped_since(now)  # so that none comes between two questions
        functions: dict[str, Callable[..., np.ndarray]] = {"rate": growth_a_second, "avg_over_time": mean_of_window}
        for (function, ours), window_s in product(functions.items(), (2, 4, 30)):
            raw = server.ask(f"made_up[{window_s + 5}s]", now)
            assert {one["metric"]["kind"] for one in raw} == series.keys()
            told = {one["metric"]["kind"]: float(one["value"][1]) for one in server.ask(f"{function}(made_up[{window_s}s])", now)}
            for one in raw:
                times, values = (np.array(column, float).reshape(-1, 1) for column in zip(*one["values"], strict=True))
                computed = float(ours(times, values, now - window_s, now)[0])
                expected = told.get(one["metric"]["kind"], np.nan)  # a busy machine may have too few samples
                assert computed == pytest.approx(expected, rel=1e-3, nan_ok=True), (function, one["metric"], window_s)
        assert told.keys() == series.keys(), "the longest window has samples"
