"""Numbers of the running attempt, from the driver's batches: SLA windows, rates, backlog, issue lag, 1 Hz series.

After an attempt has ended its latencies stay as they were at its last batch, window included, until the next one begins;
its rates and queues are over with it, and the series gets no latency for a second without an attempt.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.metrics.buckets import KNOWN_LIMITS_S, BucketCounts, bounds_s
from harness.metrics.histogram import enough_for
from harness.metrics.parts import TtftParts
from harness.metrics.rates import RATE_WINDOW_S, RateWindow
from harness.metrics.sla import SlaWatch
from harness.spec import RunSpec
from harness.wire.attempt import SAMPLE_DTYPE, Batch
from harness.wire.control import FleetSeries, Percentiles

Rows = np.ndarray[Any, np.dtype[np.void]]
_SERIES_LENGTH = 1800
_NOTHING = Percentiles()


@dataclass(frozen=True, slots=True)
class RoleFlow:
    """What one role does where prefill and decode are split."""

    waiting: int
    samples_per_s: float
    tokens_per_s: float
    transfer_ms: tuple[float, float] = (math.nan, math.nan)  # p50 and p99 of the last seconds; NaN with too few


class RunTotals:
    """What only grows, over all attempts of this head: for whoever scrapes, who cannot follow a reset."""

    def __init__(self, limits_s: Iterable[float], n_slots: int) -> None:
        limits_s = (*KNOWN_LIMITS_S, *limits_s)
        self.ttft = BucketCounts(bounds_s(0.05, 16.0, limits_s))
        self.tpot = BucketCounts(bounds_s(0.002, 0.6, limits_s))
        self.latency = BucketCounts(bounds_s(0.5, 600.0, ()))
        self.tokens: npt.NDArray[np.int64] = np.zeros(n_slots, np.int64)
        self._closed: Counter[str] = Counter()

    @classmethod
    def of(cls, spec: RunSpec, n_slots: int) -> RunTotals:
        given = (spec.limits.ttft_p99_ms, spec.limits.tpot_p99_ms)
        return cls([limit / 1e3 for limit in given if limit is not None], n_slots)

    def add(self, rows: Rows, tpot_ms: npt.NDArray[np.float64]) -> None:
        self.tpot.add(tpot_ms)
        self.latency.add(np.where(rows["done_ns"] >= 0, (rows["done_ns"] - rows["scheduled_ns"]) / 1e6, np.nan))
        served = rows[rows["slot"] >= 0]
        self.tokens += np.bincount(served["slot"], served["n_tokens"], self.tokens.size).astype(np.int64)

    def close(self, batch: Batch) -> None:
        self._closed.update(_counts(batch))

    def counts(self, running: Batch | None) -> dict[str, int]:
        """issued, completed, failed, redispatched, stale."""
        totals = Counter(self._closed)
        totals.update(_counts(running) if running is not None else {})
        return dict(totals)


class Live:
    def __init__(self, spec: RunSpec, n_slots: int) -> None:
        self.window_s = spec.metrics.window_s
        self.ttft = SlaWatch(spec.limits.ttft_p99_ms, n_slots, self.window_s)
        self.tpot = SlaWatch(spec.limits.tpot_p99_ms, n_slots, self.window_s)
        self._split = spec.fleet.split
        self.parts = TtftParts(self.window_s, split=self._split)
        self.series = FleetSeries()
        self._n_slots = n_slots
        self.run = RunTotals.of(spec, n_slots)
        self.batch: Batch | None = None
        self.begin(0.0)

    def begin(self, target_qps: float, attempt: int = 0) -> None:
        """A new attempt: forget the last one's numbers (the series goes on)."""
        self.attempt = attempt  # whose latencies these are
        self.ttft.reset()
        self.tpot.reset()
        self.parts.reset()
        self._heard_s = 0.0
        self.end()
        self.target_qps = target_qps

    def end(self) -> None:
        """The attempt is over: its rates and queues are nobody's present. Its latencies stay for the last screen."""
        if self.batch is not None:
            self.run.close(self.batch)
        self.batch = None
        self.target_qps = 0.0
        self.tokens = 0
        self._offered = RateWindow(RATE_WINDOW_S)
        self._scheduled = RateWindow(RATE_WINDOW_S)
        self._completed = RateWindow(RATE_WINDOW_S)
        self._tokens = RateWindow(RATE_WINDOW_S)
        self._prefilled = RateWindow(RATE_WINDOW_S)
        self._prefilled_tokens = RateWindow(RATE_WINDOW_S)
        self._backlog = RateWindow(self.window_s)
        self._transfers: deque[npt.NDArray[np.int32]] = deque(maxlen=int(RATE_WINDOW_S * 10))
        self._lags: deque[npt.NDArray[np.int64]] = deque(maxlen=int(RATE_WINDOW_S * 10))
        self.outstanding: npt.NDArray[np.int32] = np.zeros(self._n_slots, np.int32)
        self.oldest_ms: npt.NDArray[np.int32] = np.zeros(self._n_slots, np.int32)

    def take(self, batch: Batch, now_s: float) -> Rows:
        """Returns the batch's sample rows."""
        self.batch, self._heard_s = batch, now_s
        self.target_qps = batch.target_qps or self.target_qps
        rows: Rows = np.frombuffer(batch.rows, SAMPLE_DTYPE)
        self.outstanding = np.frombuffer(batch.outstanding, "<i4")
        self.oldest_ms = np.frombuffer(batch.oldest_ms, "<i4")
        # TTFT is known at the first token: with outputs of minutes, waiting for the sample would hide it for minutes,
        # and would show only the short outputs at first.
        ttfts = np.frombuffer(batch.ttfts, "<i4").reshape(-1, 2)
        if len(ttfts):
            self.ttft.add(ttfts[:, 0], ttfts[:, 1] / 1e3, now_s)
            self.run.ttft.add(ttfts[:, 1] / 1e3)
        if len(rows):
            first, done, tokens = rows["first_ns"], rows["done_ns"], rows["n_tokens"]
            with np.errstate(divide="ignore", invalid="ignore"):
                tpot = np.where((first >= 0) & (tokens > 1), (done - first) / 1e6 / np.maximum(tokens - 1, 1), np.nan)
            self.tpot.add(rows["slot"], tpot, now_s)
            self.run.add(rows, tpot)
            self.tokens += int(tokens.sum())
            self._lags.append(rows["issued_ns"] - rows["scheduled_ns"])
            if self._split:
                self._transfers.append(rows["transfer_us"][rows["transfer_us"] >= 0])
            self.parts.add(rows, now_s)
        elapsed_s = batch.now_ns / 1e9
        if elapsed_s >= 0:
            self._offered.add(elapsed_s, batch.issued)
            self._scheduled.add(elapsed_s, batch.scheduled)
            self._completed.add(elapsed_s, batch.completed)
            self._tokens.add(elapsed_s, self.tokens)
            self._prefilled.add(elapsed_s, batch.prefilled)
            self._prefilled_tokens.add(elapsed_s, batch.prefilled_tokens)
            self._backlog.add(elapsed_s, batch.held)
        return rows

    def latency_now_s(self, now_s: float) -> float:
        """Where latency windows end: now, and once the attempt is over at its last batch."""
        return now_s if self.batch is not None else self._heard_s

    @property
    def elapsed_s(self) -> float:
        return max(0.0, self.batch.now_ns / 1e9) if self.batch else 0.0

    @property
    def offered_qps(self) -> float:
        return _number(self._offered.rate())

    @property
    def scheduled_qps(self) -> float:
        return _number(self._scheduled.rate())

    @property
    def completed_qps(self) -> float:
        return _number(self._completed.rate())

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of samples that completed: what the verdict counts. The replicas' own rates see every token."""
        return _number(self._tokens.rate())

    @property
    def prefills(self) -> RoleFlow:
        waiting = self.batch.held if self.batch else 0
        return RoleFlow(waiting, _number(self._prefilled.rate()), _number(self._prefilled_tokens.rate()))

    @property
    def decodes(self) -> RoleFlow:
        waiting = self.batch.held_decode if self.batch else 0
        return RoleFlow(waiting, self.completed_qps, self.tokens_per_s, self._transfer_ms())

    def _transfer_ms(self) -> tuple[float, float]:
        times_us = np.concatenate(self._transfers) if self._transfers else np.zeros(0, np.int32)
        p50, p99 = (
            float(np.percentile(times_us, 100 * q)) / 1e3 if enough_for(len(times_us), q) else math.nan for q in (0.5, 0.99)
        )
        return p50, p99

    @property
    def backlog_slope(self) -> float:
        return _number(self._backlog.slope())

    def lag_ms(self) -> tuple[float, float]:
        """p50 and p99 of issue lag over the last seconds."""
        if not self._lags:
            return 0.0, 0.0
        p50, p99 = np.percentile(np.concatenate(self._lags), (50, 99))
        return float(p50) / 1e6, float(p99) / 1e6

    def counted(self) -> dict[str, int]:
        """The driver's counts as of its last batch; empty before the first."""
        return _counts(self.batch) if self.batch is not None else {}

    def tick_series(self, unix: float, ready: int) -> None:
        """Once a second."""
        batch, series = self.batch, self.series
        ttft, tpot = (self.ttft.windows.window(), self.tpot.windows.window()) if batch else (_NOTHING, _NOTHING)
        reading: dict[str, float] = {
            "unix": unix,
            "target_qps": self.target_qps if batch else 0.0,
            "offered_qps": self.offered_qps,
            "completed_qps": self.completed_qps,
            "in_flight": batch.in_flight if batch else 0,
            "backlog": batch.held if batch else 0,
            "tokens_per_s": self.tokens_per_s,
            "ttft_p50_ms": ttft.p50,
            "ttft_p99_ms": ttft.p99,
            "tpot_p50_ms": tpot.p50,
            "tpot_p99_ms": tpot.p99,
            "ready": ready,
        }
        for name, value in reading.items():
            column: list[float] = getattr(series, name)
            column.append(value)
            if len(column) > _SERIES_LENGTH:
                del column[0]


def _counts(batch: Batch) -> dict[str, int]:
    return {name: getattr(batch, name) for name in ("issued", "completed", "failed", "redispatched", "stale")}


def _number(value: float) -> float:
    return value if value == value else 0.0
