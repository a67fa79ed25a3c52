"""Direct scrape and PromQL read the same bytes of 64 x 8 GPUs and agree on every role, GPU by GPU; windows agree to the digit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np
import pytest
from pages import Fleet, amd_page, dcgm_page
from prometheus_kit import prometheus, scraping, write_page

from harness.metrics.gpu import profiles
from harness.metrics.gpu.base import Reading, SeriesKey
from harness.metrics.gpu.promsource import PromqlSource
from harness.metrics.gpu.recipes import growth_a_second, mean_of_window
from harness.metrics.gpu.roles import GPU_ROLES
from harness.metrics.gpu.scrape import ScrapeSource
from harness.metricspec import GpuSourceSpec

ROUNDS = 4


def by_key(reading: Reading, role: str) -> dict[SeriesKey, float]:
    """Without the pod: an empty one is no label for Prometheus."""
    of_role = reading.roles[role]
    return dict(zip(of_role.keys, of_role.values.tolist(), strict=True))


def both(page_of: Callable[[Fleet], str], nodes: int, prefix: str = "") -> tuple[Fleet, Reading, Reading]:
    """The fleet, and the last readings by PromQL and by scrape, after some rounds in which accumulated metrics grew."""
    fleet = Fleet(nodes)
    with write_page(page_of(fleet)) as page, prometheus(scraping([page.target], interval_s=1.0)) as server:
        common = {"prefix": prefix, "interval_s": 1.0, "timeout_s": 30.0}
        scrape = ScrapeSource([page.url], spec := GpuSourceSpec.model_validate(common), profiles.load(spec))
        promql = PromqlSource(spec := GpuSourceSpec.model_validate({**common, "url": server.url}), profiles.load(spec))

        async def rounds() -> tuple[Reading, Reading]:
            for number in range(ROUNDS):
                fleet.advance(1.0)
                page.text = page_of(fleet)
                await asyncio.to_thread(server.until_scraped, 1, number + 1, 30.0)
                scraped = await scrape.read(GPU_ROLES)
                await asyncio.sleep(1.0)
            await asyncio.sleep(1.2)
            asked = await promql.read(GPU_ROLES)
            scraped = await scrape.read(GPU_ROLES)
            await scrape.close()
            await promql.close()
            return asked, scraped

        return fleet, *asyncio.run(rounds())


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


@pytest.mark.parametrize(("nodes", "prefix"), [(64, ""), (13, "amd_")])
def test_agree_on_every_role_of_an_amd_page(nodes: int, prefix: str) -> None:
    fleet, asked, scraped = both(lambda fleet: amd_page(fleet, prefix=prefix), nodes, prefix)
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


@pytest.mark.parametrize(("nodes", "host_label"), [(64, "Hostname"), (3, "hostname")])
def test_agree_on_every_role_of_a_dcgm_page(nodes: int, host_label: str) -> None:
    """Shares of time are per second of two different sets of samples here, so they agree only roughly; see below."""
    fleet, asked, scraped = both(lambda fleet: dcgm_page(fleet, host_label=host_label), nodes)
    roles = check_agreement(asked, scraped, frozenset({"throttle_power", "throttle_thermal"}))
    assert roles == set(GPU_ROLES) - {"health", "link_down"}
    assert {key.host for key in scraped.roles["power"].keys} == {fleet.host(gpu) for gpu in range(fleet.count)}
    assert scraped.roles["hbm_total"].values[5] == (70_005 + 11_000) * 1048576
    assert scraped.roles["error_code"].values.tolist() == [48.0]


@pytest.mark.parametrize(
    ("function", "ours"), [("rate", growth_a_second), ("avg_over_time", mean_of_window)], ids=["growth", "mean"]
)
def test_a_window_is_what_prometheus_computes_from_the_same_samples(function: str, ours: Callable[..., np.ndarray]) -> None:
    """Growth, a restart from 0, and a counter that began a moment ago."""
    series = {"steady": [100, 110, 121, 133, 140], "restarted": [50, 60, 3, 9, 9], "young": [0, 2, 4, 6, 8]}
    lines = [[f'made_up{{kind="{kind}"}} {values[i]}' for kind, values in series.items()] for i in range(5)]
    with write_page("\n".join(lines[0]) + "\n") as page, prometheus(scraping([page.target])) as server:
        for part in lines:
            page.text = "\n".join(part) + "\n"
            time.sleep(0.9)
        now = time.time()
        for window_s in (2, 4, 30):
            raw = server.ask(f"made_up[{window_s + 5}s]", now)
            told = {one["metric"]["kind"]: float(one["value"][1]) for one in server.ask(f"{function}(made_up[{window_s}s])", now)}
            for one in raw:
                times, values = (np.array(column, float).reshape(-1, 1) for column in zip(*one["values"], strict=True))
                computed = float(ours(times, values, now - window_s, now)[0])
                assert computed == pytest.approx(told[one["metric"]["kind"]], rel=1e-3), (one["metric"], window_s)
