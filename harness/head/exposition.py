"""The head's own /metrics: load, latencies with the SLA limits as exact bounds, and a line a replica for what its beats say.

Cardinality is bounded: histograms are of the fleet, replicas have gauges and counters only (11 lines each). Everything is
read from the supervisor's state when somebody asks; nothing is kept for it but counts that must never go back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harness.head.live import Live
from harness.head.operations import Operations
from harness.head.roster import Roster
from harness.metrics.buckets import BucketCounts
from harness.metrics.exposition import Column, Page, Table
from harness.spec import RunSpec
from harness.wire.control import FleetSnapshot, JournalEntry

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_NAN = float("nan")


class Head(Protocol):
    spec: RunSpec
    roster: Roster
    live: Live
    ops: Operations
    synthetic: bool

    @property
    def name(self) -> str: ...

    @property
    def snapshot(self) -> FleetSnapshot | None: ...


class HeadMetrics:
    def __init__(self, head: Head) -> None:
        self._head = head
        self._page = Page(self)
        self._evictions: Counter[str] = Counter()
        self._rate_changes = 0
        self._entries: Counter[str] = Counter()

    def note(self, entry: JournalEntry) -> None:
        self._entries[entry.level] += 1
        if entry.what == "act.evict":
            self._evictions[entry.who.partition(":")[0]] += 1
        elif entry.what == "act.set_rate":
            self._rate_changes += 1

    def render(self, accept: str) -> tuple[bytes, str]:
        return self._page.render(accept, [self._replicas()])

    # --- of the fleet ------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        head, live, snap = self._head, self._head.live, self._head.snapshot
        about = {
            "run_id": head.name,
            "scenario": head.spec.load.scenario,
            "model": head.spec.model.name,
            "engine": head.spec.fleet.engine,
            "synthetic": "yes" if head.synthetic else "no",
        }
        yield InfoMetricFamily("paceline_run", "The run that this head supervises", about)
        counts = live.run.counts(live.batch)
        for name, key, help in _COUNTED:
            yield CounterMetricFamily(f"paceline_{name}", help, counts.get(key, 0))
        changes = CounterMetricFamily("paceline_target_qps_changes", "Changes of the target rate while a load ran")
        changes.add_metric([], self._rate_changes)
        yield changes
        yield _labelled(CounterMetricFamily, "paceline_evictions", "Evictions by who asked", "by", dict(self._evictions))
        yield _labelled(CounterMetricFamily, "paceline_journal_entries", "Journal entries by level", "level", dict(self._entries))
        gauges = {**self._rates(snap), **self._fleet(snap)}
        for name, (help, value) in gauges.items():
            if value == value:
                yield GaugeMetricFamily(f"paceline_{name}", help, value)
        yield _labelled(GaugeMetricFamily, "paceline_replicas", "Replicas by state", "state", head.roster.count())
        limits = {"ttft": head.spec.limits.ttft_p99_ms, "tpot": head.spec.limits.tpot_p99_ms}
        limits_s = {name: limit / 1e3 for name, limit in limits.items() if limit is not None}
        yield _labelled(GaugeMetricFamily, "paceline_limit_seconds", "p99 limit of the SLA", "metric", limits_s)
        yield _histogram("ttft", "TTFT from the scheduled time (Server) of samples with a first token", live.run.ttft)
        yield _histogram("tpot", "TPOT of completed samples", live.run.tpot)
        yield _histogram("e2e", "Latency from the scheduled time of completed samples", live.run.latency)

    def _rates(self, snap: FleetSnapshot | None) -> dict[str, tuple[str, float]]:
        live = self._head.live
        lag_p50_ms, lag_p99_ms = live.lag_ms()
        return {
            "target_qps": ("Target rate of the load; 0 without one", live.target_qps),
            "offered_qps": ("Samples issued a second, last 10 s", live.offered_qps),
            "completed_qps": ("Samples completed a second, last 10 s", live.completed_qps),
            "output_tokens_per_second": (
                "Output tokens that replicas generate, by their beats",
                snap.tokens_per_s if snap else _NAN,
            ),
            "scheduler_lag_seconds": ("p99 of issued against scheduled, last 10 s", lag_p99_ms / 1e3),
            "scheduler_lag_median_seconds": ("p50 of issued against scheduled, last 10 s", lag_p50_ms / 1e3),
        }

    def _fleet(self, snap: FleetSnapshot | None) -> dict[str, tuple[str, float]]:
        head, batch = self._head, self._head.live.batch
        expected = head.spec.expected_replicas * max(1, head.spec.fleet.layout.devices)
        return {
            "in_flight": ("Samples dispatched and not completed", batch.in_flight if batch else 0),
            "backlog": ("Samples held in the head, no replica below its cap", batch.held if batch else 0),
            "attempt": ("Number of the running attempt; 0 between attempts", snap.attempt if snap else 0),
            "gpus_expected": ("GPUs that the fleet should have", 0 if head.spec.fleet.layout.device == "cpu" else expected),
            "stragglers": ("Replicas that are called slow", len(snap.slow) if snap else 0),
            "head_cpu_percent": ("CPU of the head's process, percent of a core", snap.head_cpu_percent if snap else _NAN),
            "driver_cpu_percent": ("CPU of the driver's process, percent of a core", snap.driver_cpu_percent if snap else _NAN),
        }

    # --- of each replica ---------------------------------------------------------------------------------

    def _replicas(self) -> Table:
        head, snap, now_s = self._head, self._head.snapshot, time.monotonic()
        replicas = head.roster.replicas
        n = len(replicas)

        def column(name: str, kind: str = "<f4") -> list[float]:
            return np.frombuffer(getattr(snap, name), kind).tolist() if snap is not None else [_NAN] * n

        beats = [replica.beat for replica in replicas]
        ms = {name: (np.array(column(name)) / 1e3).tolist() for name in ("step_ms", "ttft_p99_ms", "tpot_p99_ms")}
        columns = [
            Column("replica_state", "1 for the state it is in", "gauge", [1] * n, [f'state="{r.state}"' for r in replicas]),
            Column("replica_inflight", "Samples dispatched to it", "gauge", column("outstanding", "<i4")),
            Column("replica_running", "Requests in its batch", "gauge", [beat.running if beat else _NAN for beat in beats]),
            Column("replica_queue_depth", "Requests waiting in it", "gauge", [beat.waiting if beat else _NAN for beat in beats]),
            Column("replica_kv_use_ratio", "KV cache in use, 0 to 1", "gauge", [beat.kv_use if beat else _NAN for beat in beats]),
            Column("replica_step_seconds", "Mean step time of its last beat", "gauge", ms["step_ms"]),
            Column("replica_step_ratio", "Step time against the fleet's curve at its batch", "gauge", column("ratio")),
            Column("replica_ttft_p99_seconds", "TTFT p99 of the moving window", "gauge", ms["ttft_p99_ms"]),
            Column("heartbeat_age_seconds", "Since its last beat", "gauge", [_since(now_s, r.beat_s, r.beat) for r in replicas]),
            Column("tokens_generated_total", "Output tokens of its completed samples", "counter", head.live.run.tokens.tolist()),
            Column("replica_restarts_total", "Lives after its first", "counter", [max(0, r.nth - 1) for r in replicas]),
        ]
        return Table("replica", [replica.slot for replica in replicas], columns)


_COUNTED = (
    ("queries_issued", "issued", "Samples issued, over all attempts of this head"),
    ("queries_completed", "completed", "Samples completed"),
    ("queries_failed", "failed", "Samples that failed for good"),
    ("queries_redispatched", "redispatched", "Dispatches after the first of a sample"),
    ("replies_stale", "stale", "Replies dropped because another try had counted"),
)


def _since(now_s: float, then_s: float, beat: object) -> float:
    return round(now_s - then_s, 3) if beat is not None else _NAN


def _labelled(family: type[Metric], name: str, help: str, label: str, values: dict[str, float] | dict[str, int]) -> Metric:
    metric = family(name, help, labels=[label])  # type: ignore[call-arg]
    for value, number in values.items():
        metric.add_metric([value], number)  # type: ignore[attr-defined]
    return metric


def _histogram(name: str, help: str, counts: BucketCounts) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(f"paceline_{name}_seconds", help, counts.cumulative(), counts.sum_s)
