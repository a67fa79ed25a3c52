"""GPU metrics of a run that is over, from a real Prometheus into its record: whose, when, once, and what is missing and why."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
from pages import Fleet, Floats, amd_page
from past_kit import EACH, NODES, over, record_round, registered
from prometheus_kit import Page, PrometheusServer, prometheus, scraping, write_page

from console.cli import main
from harness.metrics.gpu.base import SourceError
from harness.metrics.gpu.postrun import Fetched, fetch, read_fetches, span_of
from harness.metrics.gpu.preflight import gpu_metrics
from harness.metricspec import GpuSourceSpec
from harness.records.fleetfile import FleetFile, GpusOf, read_fleet, write_fleet
from harness.records.layout import RunFolder
from harness.records.lock import FolderTaken, folder_lock
from harness.records.reader import Record
from harness.spec import slot_name
from harness.specfile import load_spec

SPAN_S = 12


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet(NODES, EACH)


@pytest.fixture(scope="module")
def page(fleet: Fleet) -> Iterator[Page]:
    with write_page(amd_page(fleet)) as made:
        yield made


@pytest.fixture(scope="module")
def scraped(fleet: Fleet, page: Page) -> Iterator[tuple[PrometheusServer, float]]:
    """A server that scrapes every second, and the end of SPAN_S in which it did; accumulated counts grow all the time."""
    with prometheus(scraping([page.target], interval_s=1.0)) as running:
        deadline_s = time.monotonic() + 90
        while (end_unix := end_of_span(running)) is None:
            assert time.monotonic() < deadline_s, f"no {SPAN_S} s in which it was scraped all the time; {running.log_tail()}"
            time.sleep(0.5)
            fleet.advance(0.5)
            page.text = amd_page(fleet)
        yield running, end_unix


def end_of_span(server: PrometheusServer) -> float | None:
    """Of SPAN_S in which a sample came every second, or every third while the machine was busy. It lies before the newest
    sample, so that all that will ever be of it is there."""
    unix = samples_of(server, "up == 1")
    gaps = np.flatnonzero(np.diff(unix) > 3.3)
    steady = unix[gaps[-1] + 1 :] if len(gaps) else unix
    return float(steady[-1]) - 0.5 if len(steady) and steady[-1] - steady[0] > SPAN_S + 2 else None


def samples_of(server: PrometheusServer, series: str, at_unix: float | None = None) -> Floats:
    """When they were taken, of the last SPAN_S and a little more."""
    selector, _, wanted = series.partition(" == ")
    found = server.ask(f"{selector}[{SPAN_S + 10}s]", at_unix)
    return np.array([float(at) for one in found for at, value in one["values"] if wanted in ("", value)])


@pytest.fixture(scope="module")
def server(scraped: tuple[PrometheusServer, float]) -> PrometheusServer:
    return scraped[0]


@pytest.fixture(scope="module")
def span(scraped: tuple[PrometheusServer, float]) -> tuple[float, float]:
    return scraped[1] - SPAN_S, scraped[1]


def asked(server: PrometheusServer, **settings: object) -> GpuSourceSpec:
    return GpuSourceSpec.model_validate({"url": server.url, "interval_s": 1, "profiles": ["amd-dme"], **settings})


def rows(folder: RunFolder) -> pl.DataFrame:
    return Record(folder).gpus().collect()


def test_every_role_of_every_gpu_is_in_the_record_afterwards(
    server: PrometheusServer, fleet: Fleet, span: tuple[float, float], tmp_path: Path
) -> None:
    folder = over(tmp_path / "run", *span, fleet=registered())
    server.until_scraped()  # a page that was too slow a moment ago would be told as down
    done = fetch(folder, asked(server), *span, who="kim")
    assert (done.matched, done.gpus_unmatched, done.series_unmatched) == (NODES * EACH, 0, 0)
    assert done.profiles == ["amd-dme"]
    assert done.problems == []
    found = rows(folder)
    assert found.height == done.rows == sum(done.found.values())
    last = found.filter(pl.col("role") == "power").group_by("slot").agg(pl.col("value").last())
    powers = dict(last.iter_rows())
    expected = {slot_name(gpu // EACH, gpu % EACH): (800 if gpu % 100 == 3 else 900) + gpu for gpu in range(fleet.count)}
    assert powers == expected
    capped = found.filter((pl.col("role") == "throttle_power") & (pl.col("unix") > span[1] - 4))
    shares = np.array([capped.filter(pl.col("slot") == slot)["value"].mean() for slot in expected])
    assert np.abs(shares - fleet.capped).max() < 0.2, "a share of the last minute, by the counts' growth"
    assert found["attempt"].unique().to_list() == [1]


def test_samples_have_the_time_at_which_they_were_scraped_and_come_once_each(
    server: PrometheusServer, fleet: Fleet, span: tuple[float, float], tmp_path: Path
) -> None:
    folder = over(tmp_path / "run", *span, fleet=registered())
    fetch(folder, asked(server), *span)
    of_one = rows(folder).filter((pl.col("slot") == "node001/gpu2") & (pl.col("role") == "junction_temp")).sort("sampled_unix")
    scraped = samples_of(server, f'gpu_junction_temperature{{gpu_uuid="{fleet.uuid(EACH + 2)}"}}', span[1])
    newest = {scraped[scraped <= second].max() for second in range(math.floor(span[0]), math.floor(span[1]) + 1)}
    expected = sorted(unix for unix in newest if span[0] <= unix <= span[1])
    assert len(expected) >= SPAN_S // 3 - 1
    assert of_one["sampled_unix"].to_list() == pytest.approx(expected, abs=2e-3)
    assert (of_one["sampled_unix"] <= of_one["unix"]).all()


def test_a_second_fetch_adds_nothing_and_live_rows_are_not_doubled(
    server: PrometheusServer, span: tuple[float, float], tmp_path: Path
) -> None:
    folder = over(tmp_path / "run", *span, fleet=registered())
    live_from = span[0] + SPAN_S / 2
    for second in range(SPAN_S // 2 + 1):  # the head recorded power for the second half of the run
        record_round(folder, live_from + second, {"power": np.full(NODES * EACH, 777.0)})
    first = fetch(folder, asked(server), *span)
    power = rows(folder).filter((pl.col("role") == "power") & (pl.col("slot") == "node000/gpu0"))
    live, fetched = power.filter(pl.col("value") == 777.0), power.filter(pl.col("value") != 777.0)
    assert live.height == SPAN_S // 2 + 1
    assert 0 < fetched.height <= SPAN_S // 2 + 1
    assert fetched["sampled_unix"].max() < live_from  # type: ignore[operator]
    assert first.added["junction_temp"] > first.added["power"]
    assert fetch(folder, asked(server), *span).rows == 0
    assert [line.rows for line in read_fetches(folder)] == [first.rows, 0]


def test_only_an_attempt_may_be_fetched_and_rows_bear_their_attempts_number(
    server: PrometheusServer, span: tuple[float, float], tmp_path: Path
) -> None:
    middle = span[0] + SPAN_S / 2
    attempts = {1: (span[0], middle - 2), 2: (middle + 2, span[1])}
    folder = over(tmp_path / "run", *span, fleet=registered(), attempts=attempts)
    run = Record(folder).run
    assert span_of(run, None) == span
    assert span_of(run, 2) == attempts[2]
    with pytest.raises(ValueError, match="no attempt 3; it has 1, 2"):
        span_of(run, 3)
    fetch(folder, asked(server), *span_of(run, 2))
    assert rows(folder)["attempt"].unique().to_list() == [2]
    fetch(folder, asked(server), *span_of(run, None))
    assert sorted(rows(folder)["attempt"].unique().to_list()) == [0, 1, 2]


def test_a_replica_that_moved_has_the_metrics_of_both_of_its_gpus(
    server: PrometheusServer, span: tuple[float, float], tmp_path: Path
) -> None:
    moved_unix = span[0] + SPAN_S / 2
    told = registered()
    told.note("node000/gpu0", GpusOf(moved_unix, ["gpu-node-003"], gpus=["7"]))
    del told.slots["node003/gpu7"]
    folder = over(tmp_path / "run", *span, fleet=told)
    fetch(folder, asked(server), *span)
    power = rows(folder).filter((pl.col("role") == "power") & (pl.col("slot") == "node000/gpu0"))
    before, after = power.filter(pl.col("unix") < moved_unix), power.filter(pl.col("unix") >= moved_unix)
    assert (before["value"].unique().to_list(), after["value"].unique().to_list()) == ([900.0], [931.0])
    assert rows(folder).filter(pl.col("slot") == "node003/gpu7").height == 0


def test_an_old_record_that_does_not_say_where_its_gpus_were_is_joined_by_node_and_number(
    server: PrometheusServer, span: tuple[float, float], tmp_path: Path
) -> None:
    folder = over(tmp_path / "run", *span)
    hosts = {f"gpu-node-{node:03d}": f"node{node:03d}" for node in range(NODES)}
    assert fetch(folder, asked(server, hosts=hosts), *span).matched == NODES * EACH
    lonely = fetch(over(tmp_path / "other", *span), asked(server), *span)
    assert (lonely.matched, lonely.gpus_unmatched, lonely.series_unmatched) == (0, NODES * EACH, NODES * EACH)
    assert any("that host is not in the fleet" in example for example in lonely.examples)


def test_roles_that_nobody_collected_are_named_with_the_reason(
    server: PrometheusServer, span: tuple[float, float], tmp_path: Path
) -> None:
    done = fetch(over(tmp_path / "run", *span, fleet=registered()), asked(server), *span)
    assert "nic_port_status_link_down_count" in done.not_collected["link_down"]
    assert "junction_temp" not in done.not_collected
    assert "error_code" not in done.not_collected, "one GPU has one"


def test_a_span_of_which_the_server_has_nothing_is_told_as_that(server: PrometheusServer, tmp_path: Path) -> None:
    long_ago = time.time() - 40 * 86_400
    folder = over(tmp_path / "run", long_ago, long_ago + 60, fleet=registered())
    done = fetch(folder, asked(server), long_ago, long_ago + 60)
    assert (done.rows, done.profiles) == (0, [])
    assert "has nothing at all between" in done.problems[0]
    assert not folder.gpus.exists(), "nothing was written"


def test_metrics_of_no_known_exporter_are_named(server: PrometheusServer, span: tuple[float, float], tmp_path: Path) -> None:
    folder = over(tmp_path / "run", *span, fleet=registered())
    done = fetch(folder, asked(server, prefix="amd_"), *span)
    assert "none of a known exporter (it has gpu_afid_errors, " in done.problems[0]


def test_no_longer_steps_than_the_server_allows_and_long_spans_in_windows(
    server: PrometheusServer, span: tuple[float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.metrics.gpu.postrun.POINTS", 4 * NODES * EACH)
    parts: list[str] = []
    folder, whole = over(tmp_path / "run", *span, fleet=registered()), over(tmp_path / "whole", *span, fleet=registered())
    in_parts = fetch(folder, asked(server), *span, tell=parts.append)
    assert len(parts) == -(-(SPAN_S + 1) // 4)
    monkeypatch.undo()
    at_once = fetch(whole, asked(server), *span)
    assert in_parts.found == at_once.found
    key = ["role", "slot", "sampled_unix"]
    assert rows(folder).select(*key, "value").sort(key).equals(rows(whole).select(*key, "value").sort(key))
    a_month = fetch(over(tmp_path / "month", span[1] - 30 * 86_400, span[1]), asked(server), span[1] - 30 * 86_400, span[1])
    assert a_month.step_s == 236


def test_a_head_that_lives_keeps_its_record_to_itself(
    server: PrometheusServer, span: tuple[float, float], tmp_path: Path
) -> None:
    folder = over(tmp_path / "run", *span, fleet=registered())
    with folder_lock(folder), pytest.raises(FolderTaken, match=str(os.getpid())):
        fetch(folder, asked(server), *span)


def test_a_server_that_is_gone_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    folder = over(tmp_path / "run", 1000.0, 1060.0, fleet=registered())
    with pytest.raises(SourceError) as caught:
        fetch(folder, GpuSourceSpec.model_validate({"url": "http://127.0.0.1:9"}), 1000, 1060)
    assert caught.value.trouble == "unreachable"
    assert not folder.gpus.exists()


def test_what_512_gpus_cost(tmp_path: Path) -> None:
    """The whole way of every role and GPU: asked for, joined, written."""
    big = Fleet(64, 8)
    with write_page(amd_page(big)) as page, prometheus(scraping([page.target], interval_s=3.0)) as running:
        running.until_scraped(times=2)
        (newest,) = running.until_found("max(timestamp(gpu_gfx_activity))")
        end = math.ceil(float(newest["value"][1]))
        time.sleep(max(0.0, end - time.time()))
        folder = over(tmp_path / "run", end - 600, end, fleet=registered(nodes=64), nodes=64)
        began_s = time.process_time()
        done: Fetched = fetch(folder, asked(running, interval_s=10), end - 600, end)
        cpu_s = time.process_time() - began_s
    assert done.matched == 512
    assert rows(folder).height == done.rows > 512 * 10
    assert cpu_s < 5, f"{cpu_s:.1f} s for {done.rows} rows"


# --- fleet.json --------------------------------------------------------------------------------------------------------


def test_the_fleets_file_grows_only_by_what_changed(tmp_path: Path) -> None:
    fleet = FleetFile(1)
    life = GpusOf(10.0, ["a", "node000"], gpus=["0"], uuids=["GPU-1"])
    assert fleet.note("node000/gpu0", life)
    assert not fleet.note("node000/gpu0", msgspec.structs.replace(life, since_unix=20.0)), "a recycle keeps its GPU"
    assert fleet.note("node000/gpu0", msgspec.structs.replace(life, since_unix=30.0, hosts=["b"]))
    write_fleet(tmp_path / "fleet.json", fleet)
    assert read_fleet(tmp_path / "fleet.json") == fleet
    assert read_fleet(tmp_path / "none") is None


# --- the command -------------------------------------------------------------------------------------------------------


def test_the_command_fetches_queries_and_writes_files(
    server: PrometheusServer, span: tuple[float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    over(tmp_path / "last-week", *span, fleet=registered())
    assert main(["metrics", "last-week", "--fetch", "--url", server.url, "-s", "profiles=['amd-dme']"]) == 0
    out = capsys.readouterr().out
    assert "32 of 32 GPUs have series" in out
    assert "from Prometheus 127.0.0.1" in out
    table = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert table["power"][1:3] == ["W", "916"]
    assert main(["metrics", "last-week", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["sources"][0]["kind"], told["sources"][0]["matched"]) == ("fetched", 32)
    asked = ["metrics", "last-week", "--url", server.url, "--query", "sum by (hostname) (gpu_power_usage)"]
    assert main([*asked, "--start", "+2s", "--end", "+8s", "--step", "2"]) == 0
    assert "hostname=gpu-node-003.example.net" in capsys.readouterr().out
    for suffix in ("csv", "parquet", "json"):
        assert main([*asked, "--out", str(tmp_path / f"power.{suffix}")]) == 0
    frame = pl.read_csv(tmp_path / "power.csv")
    assert frame.columns == ["unix", "value", "hostname"]
    assert frame.equals(pl.read_parquet(tmp_path / "power.parquet"))
    written = json.loads((tmp_path / "power.json").read_text())
    assert len(written["series"]) == NODES
    assert main([*asked, "--out", str(tmp_path / "power.csv")]) == 2, "nothing is written over"
    assert main(["metrics", "last-week", "--url", server.url, "--query", "sum(("]) == 2
    assert "cannot read the query at character" in capsys.readouterr().err


def test_the_preflight_counts_gpus_against_the_fleet(server: PrometheusServer) -> None:
    server.until_scraped()
    enough = gpu_metrics(load_spec("demo", [f"metrics.gpu.url={server.url}", "fleet.nodes=4"]))
    assert (enough.ok, "32 GPUs by amd-dme, 32 in this fleet" in enough.detail) == (True, True), enough
    short = gpu_metrics(load_spec("demo", [f"metrics.gpu.url={server.url}"]))
    assert (short.ok, "32 GPUs have no metrics" in short.detail) == (None, True), short
