"""Which source of GPU metrics a spec means, why there is none, and what a run starts and ends for it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from harness.metrics.gpu import choose
from harness.metrics.gpu.base import SourceError
from harness.metrics.gpu.child import VARIABLE
from harness.metrics.gpu.simgpus import FleetLoad, SlotLoad
from harness.spec import RunSpec
from tests.metrics.prometheus_kit import prometheus_binary

URL = "http://prom.example:9090"
UUIDS = {f"synthetic-node00{node}-{gpu}" for node in (0, 1) for gpu in (0, 1)}
TARGETS = ["http://{host}:5000/metrics"]


def spec_of(engine: str = "synthetic", **gpu: Any) -> RunSpec:
    fleet = {"engine": engine, "nodes": 2, "replicas_per_node": 2}
    return RunSpec.model_validate({"fleet": fleet, "metrics": {"gpu": gpu}})


@pytest.mark.parametrize(
    ("engine", "gpu", "kind"),
    [
        ("synthetic", {}, "simulated"),
        ("vllm", {}, "none"),
        ("vllm", {"url": URL}, "promql"),
        ("synthetic", {"url": URL}, "promql"),
        ("vllm", {"targets": TARGETS}, "scrape"),
        ("vllm", {"targets": TARGETS, "url": URL}, "promql"),
        ("vllm", {"targets": TARGETS, "url": URL, "source": "scrape"}, "scrape"),
        ("vllm", {"targets": TARGETS, "with_prometheus": True}, "promql"),
        ("vllm", {"targets": TARGETS, "with_prometheus": True, "source": "scrape"}, "promql"),
        ("synthetic", {"with_prometheus": True}, "promql"),
        ("synthetic", {"source": "none", "with_prometheus": True}, "none"),
    ],
)
def test_what_is_configured_decides_the_kind(engine: str, gpu: dict[str, Any], kind: str) -> None:
    spec = spec_of(engine, **gpu)
    assert choose.kind_of(spec) == kind
    assert bool(choose.why_none(spec)) == (kind == "none")


@pytest.mark.parametrize(
    ("gpu", "wanted"),
    [
        ({}, True),
        ({"with_prometheus": True}, True),
        ({"with_prometheus": True, "targets": TARGETS}, False),
        ({"with_prometheus": True, "targets": TARGETS, "source": "simulated"}, True),
        ({"url": URL}, False),
        ({"source": "none"}, False),
    ],
)
def test_the_simulated_page_is_wanted_where_nothing_else_is_read(gpu: dict[str, Any], wanted: bool) -> None:
    assert choose.wants_page(spec_of(**gpu)) == wanted
    assert not choose.wants_page(spec_of("vllm", **gpu))


def test_targets_stand_for_each_host_once() -> None:
    spec = spec_of("vllm", targets=["http://{host}:5000/metrics", "http://head:9000", "https://{host}:1/x?a={host}"])
    assert choose.targets_of(spec, ["a", "b", "a", "fd00::1"], None) == [
        "http://a:5000/metrics",
        "http://b:5000/metrics",
        "http://[fd00::1]:5000/metrics",
        "http://head:9000",
        "https://a:1/x?a=a",
        "https://b:1/x?a=b",
        "https://[fd00::1]:1/x?a=[fd00::1]",
    ]


@pytest.mark.parametrize(
    ("engine", "gpu", "said"),
    [
        ("vllm", {}, "no source of GPU metrics is configured: set metrics.gpu.url"),
        ("synthetic", {"source": "none"}, "metrics.gpu.source = none"),
        ("vllm", {"source": "simulated"}, "is for synthetic fleets, and fleet.engine = vllm measures"),
        ("vllm", {"with_prometheus": True}, "with_prometheus has nothing to scrape: set metrics.gpu.url"),
        ("vllm", {"targets": TARGETS}, "no machine of the fleet is known yet"),
    ],
)
def test_without_a_source_the_reason_and_the_next_step_are_told(engine: str, gpu: dict[str, Any], said: str) -> None:
    spec = spec_of(engine, **gpu)
    assert said in choose.why_none(spec, [])
    assert choose.choose_source(spec, [], None) is None


async def test_sources_are_made_with_what_the_spec_says() -> None:
    asked = choose.choose_source(spec_of("vllm", url=URL), [], None)
    scraped = choose.choose_source(spec_of("vllm", targets=TARGETS), ["a", "b"], None)
    simulated = choose.choose_source(spec_of(), [], "http://127.0.0.1:1/metrics")
    assert asked is not None and scraped is not None and simulated is not None  # noqa: PT018
    assert [asked.kind, scraped.kind, simulated.kind] == ["promql", "scrape", "simulated"]
    assert "prom.example:9090" in asked.name
    assert "simulated" in simulated.name
    for source in (asked, scraped, simulated):
        await source.close()


def test_a_profile_that_does_not_exist_is_told_as_a_matter_of_configuration() -> None:
    with pytest.raises(SourceError, match="nonsense") as caught:
        choose.choose_source(spec_of(profiles=["nonsense"]), [], "http://127.0.0.1:1/metrics")
    assert caught.value.trouble == "setup"


# --- what a run starts -------------------------------------------------------------------------------------------


def load() -> FleetLoad:
    return FleetLoad(1.0, [SlotLoad("inc", 0.0, 8.0, 20.0, 400.0, 8)] * 4)


async def test_a_synthetic_fleet_is_read_from_its_simulated_page(tmp_path: Path) -> None:
    supply = choose.Supply(spec_of(), tmp_path, load)
    try:
        source = await supply.open([])
        assert source is not None
        assert await supply.open(["other"]) is source, "nothing has changed for it"
        reading = await source.read(["power", "hbm_used"])
        assert len(reading.roles["power"].keys) == 4
        assert {key.uuid for key in reading.roles["power"].keys} == UUIDS
    finally:
        await supply.close()
    assert not (tmp_path / "prometheus").exists()


async def test_a_source_that_fails_to_close_keeps_nothing_else_open(tmp_path: Path) -> None:
    supply = choose.Supply(spec_of(), tmp_path, load)
    assert await supply.open([]) is not None
    assert supply._exporter is not None
    host, _, port = supply._exporter.url.removeprefix("http://").partition("/")[0].partition(":")
    before = supply.source

    async def fails() -> None:
        raise RuntimeError("no more")

    supply.source.close = fails  # type: ignore[method-assign,union-attr]
    with pytest.raises(RuntimeError, match="no more"):
        await supply.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    del before.close  # type: ignore[union-attr]
    await before.close()  # type: ignore[union-attr]


async def test_new_hosts_bring_a_new_scrape(tmp_path: Path) -> None:
    supply = choose.Supply(spec_of("vllm", targets=TARGETS), tmp_path, load)
    try:
        assert await supply.open([]) is None
        assert "no machine" in supply.why
        first = await supply.open(["127.0.0.1"])
        assert first is not None
        assert supply.why == ""
        assert await supply.open(["127.0.0.1"]) is first
        assert await supply.open(["127.0.0.1", "127.0.0.2"]) is not first
    finally:
        await supply.close()


async def test_with_prometheus_the_page_is_read_through_it_and_another_is_started_when_it_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(prometheus_binary()))
    supply = choose.Supply(spec_of(with_prometheus=True, interval_s=2), tmp_path, load)
    deadline_s = time.monotonic() + 60
    try:
        source = await supply.open([])
        assert source is not None
        assert source.kind == "promql"
        while "power" not in (reading := await source.read(["power"])).roles:
            assert time.monotonic() < deadline_s, reading
            await asyncio.sleep(0.5)
        assert {key.uuid for key in reading.roles["power"].keys} == UUIDS
        assert supply._child is not None
        os.kill(supply._child.pid, signal.SIGKILL)
        while not supply.problem:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
        again = await supply.open([])
        assert again is not source
        assert supply.problem == ""
    finally:
        await supply.close()
