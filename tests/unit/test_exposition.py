"""Our own /metrics: what stands there, that its limits are exact, that it is bounded, and that it is served over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from exposition_kit import ShownHead, samples_of, value_of
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics

from harness.metrics.buckets import KNOWN_LIMITS_S, BucketCounts, bounds_s
from harness.metrics.exposition import Column, Page, Table, listen_address
from harness.metricspec import MetricsSpec
from harness.spec import ClusterSpec
from harness.wire.control import JournalEntry
from harness.wire.page import PageServer
from harness.worker.exposition import ProcessLine, SlotLine, WorkerMetrics

OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def test_every_known_limit_and_the_runs_own_is_a_bound() -> None:
    bounds = bounds_s(0.05, 16.0, (*KNOWN_LIMITS_S, 2.5))
    assert {0.08, 2.0, 2.5, 3.0} <= set(bounds)
    assert len(bounds) <= 36
    assert list(bounds) == sorted(set(bounds))


def test_a_sample_at_the_limit_counts_as_under_it_and_one_past_it_does_not() -> None:
    counts = BucketCounts(bounds_s(0.05, 16.0, (2.0,)))
    counts.add(np.array([2000.0, 2000.1, 60000.0, np.nan]))
    told = dict(counts.cumulative())
    assert told["2.0"] == 1
    assert told["+Inf"] == counts.total == 3
    assert counts.sum_s == pytest.approx(64.0001)


def test_the_page_tells_load_latencies_and_each_replica() -> None:
    head = ShownHead()
    head.fleet.ready()
    head.fleet.beat(1, running=7, waiting=2, kv_use=0.25)
    head.load([100.0, 2500.0, 2600.0, 90.0], failed=1)
    head.look()
    samples = samples_of(head.metrics.render("")[0])
    assert value_of(samples, "paceline_queries_issued_total") == 5
    assert value_of(samples, "paceline_queries_failed_total") == 1
    assert value_of(samples, "paceline_ttft_seconds_bucket", le="2.5") == 3
    assert value_of(samples, "paceline_ttft_seconds_count") == 4
    assert value_of(samples, "paceline_tpot_seconds_count") == 4
    assert value_of(samples, "paceline_limit_seconds", metric="ttft") == 2.5
    assert value_of(samples, "paceline_replicas", state="READY") == 4
    assert value_of(samples, "paceline_replica_state", replica="node000/gpu1", state="READY") == 1
    assert value_of(samples, "paceline_replica_queue_depth", replica="node000/gpu1") == 2
    assert value_of(samples, "paceline_replica_kv_use_ratio", replica="node000/gpu1") == 0.25
    assert value_of(samples, "paceline_tokens_generated_total", replica="node001/gpu1") == 11
    assert value_of(samples, "paceline_gpus_expected") == 4
    assert value_of(samples, "paceline_run_info", run_id="a-run", scenario="Server") == 1


def test_what_is_not_known_has_no_line() -> None:
    head = ShownHead()
    names = {sample.name for sample in samples_of(head.metrics.render("")[0])}
    assert "paceline_replica_queue_depth" not in names
    assert "paceline_replica_state" in names


def test_counters_go_on_over_attempts() -> None:
    head = ShownHead()
    head.load([100.0] * 8)
    head.live.end()
    head.live.begin(5.0, 2)
    samples = samples_of(head.metrics.render("")[0])
    assert value_of(samples, "paceline_queries_completed_total") == 8
    head.load([100.0] * 4)
    samples = samples_of(head.metrics.render("")[0])
    assert value_of(samples, "paceline_queries_completed_total") == 12
    assert value_of(samples, "paceline_ttft_seconds_count") == 12


def test_acts_and_journal_levels_are_counted() -> None:
    head = ShownHead()
    for what, who, level in (
        ("act.evict", "policy", "warn"),
        ("act.evict", "operator:ann", "warn"),
        ("act.set_rate", "x", "info"),
    ):
        head.metrics.note(JournalEntry(1, 1.0, who, what, level=level))
    samples = samples_of(head.metrics.render("")[0])
    assert value_of(samples, "paceline_evictions_total", by="operator") == 1
    assert value_of(samples, "paceline_target_qps_changes_total") == 1
    assert value_of(samples, "paceline_journal_entries_total", level="warn") == 2


def test_openmetrics_is_served_where_it_is_accepted() -> None:
    head = ShownHead()
    head.fleet.ready()
    head.load([100.0])
    head.look()
    body, kind = head.metrics.render(OPEN)
    assert kind.startswith("application/openmetrics-text")
    families = {family.name: family for family in open_metrics(body.decode())}  # type: ignore[no-untyped-call]
    assert families["paceline_tokens_generated"].type == "counter"
    assert len(families["paceline_replica_state"].samples) == 4


def test_a_name_with_quotes_cannot_break_a_line() -> None:
    class Nothing:
        def collect(self) -> list[object]:
            return []

    row = 'odd"name\\with\nall'
    table = Table("replica", [row], [Column("a_total", "A", "counter", [2.0]), Column("b", "B", "gauge", [float("nan")])])
    body, _ = Page(Nothing()).render("", [table])  # type: ignore[arg-type]
    assert [(sample.name, sample.labels, sample.value) for sample in samples_of(body)] == [
        ("paceline_a_total", {"replica": row}, 2.0)
    ]


def test_512_replicas_stay_within_600_kilobytes() -> None:
    head = ShownHead(64, 8)
    head.fleet.ready()
    head.load([100.0 + i for i in range(2048)])
    head.look()
    body, _ = head.metrics.render("")
    assert len(body) < 600_000
    assert sum(1 for sample in samples_of(body) if sample.name == "paceline_replica_state") == 512


def test_a_worker_tells_its_slots_and_processes(tmp_path: Path) -> None:
    lines = [SlotLine("node000/gpu0", "running", 2), SlotLine("node000/gpu1", "waiting", 1)]
    processes = [ProcessLine("node000-0", os.getpid()), ProcessLine("node000-1", 2**22 + 5)]
    page = WorkerMetrics("worker-0", lambda: lines, lambda: processes, lambda: 1.5)
    samples = samples_of(page.render("")[0])
    assert value_of(samples, "paceline_worker_slots", state="running") == 1
    assert value_of(samples, "paceline_worker_slot_lives_total", replica="node000/gpu0") == 2
    assert value_of(samples, "paceline_worker_head_silent_seconds") == 1.5
    assert value_of(samples, "paceline_worker_process_resident_bytes", process="node000-0") > 1e6
    assert not [sample for sample in samples if sample.labels.get("process") == "node000-1"]  # it has gone


async def test_the_page_is_served_and_nothing_else() -> None:
    server = PageServer(lambda accept: (f"accepts {accept}\n".encode(), "text/plain"))
    url = await server.start("127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            answer = await client.get(url, headers={"Accept": "text/x"})
            assert (answer.status_code, answer.text) == (200, "accepts text/x\n")
            assert (await client.head(url)).headers["content-length"] == str(len("accepts */*\n"))
            assert (await client.get(url + "x")).status_code == 404
            assert (await client.post(url)).status_code == 405
            many = await asyncio.gather(*(client.get(url) for _ in range(12)))
            assert {answer.status_code for answer in many} == {200}
    finally:
        await server.close()


async def test_who_speaks_no_http_or_nothing_at_all_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.wire.page._PATIENCE_S", 0.3)
    server = PageServer(lambda accept: (b"x", "text/plain"))
    url = await server.start("127.0.0.1", 0)
    port = httpx.URL(url).port
    try:
        for said in (b"", b"\x00" * 40_000, b"GET /metrics"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            began_s = time.monotonic()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 30) == b""
            assert time.monotonic() - began_s < 30
            writer.close()
    finally:
        await server.close()


async def test_a_page_that_cannot_be_made_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    def broken(accept: str) -> tuple[bytes, str]:
        raise RuntimeError("no")

    server = PageServer(broken)
    url = await server.start("127.0.0.1", 0)
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            assert (await client.get(url)).status_code == 500
    finally:
        await server.close()
    assert "the page could not be made" in caplog.text


@pytest.mark.parametrize(
    ("listen", "kind", "address"),
    [
        (None, "local", ("127.0.0.1", 0)),
        (None, "kubernetes", ("0.0.0.0", 9464)),
        ("off", "kubernetes", None),
        (":9000", "local", ("", 9000)),
        ("10.0.0.1:9001", "local", ("10.0.0.1", 9001)),
    ],
)
def test_where_it_listens(listen: str | None, kind: str, address: tuple[str, int] | None) -> None:
    assert listen_address(MetricsSpec(listen=listen), ClusterSpec.model_validate({"kind": kind})) == address


def test_a_port_that_cannot_be_is_refused_before_a_run() -> None:
    with pytest.raises(ValueError, match="at most 65535"):
        MetricsSpec(listen="127.0.0.1:99999")
