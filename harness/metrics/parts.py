"""What TTFT is made of, over the samples of the moving window: the parts side by side, and what fills the tail.

Rows come when a sample completes, so these are the samples that ended in the window: their first tokens came an output
length earlier, and a sample that is still decoding is not among them. TTFT itself is watched at the first token
(LatencyWindows); the two agree once the load stands. The rows lie in a ring of float32 columns; figures are computed when
somebody asks, and kept for a second. Parts, in the order in which a sample meets them:

- schedule lag: scheduled until issued;
- head queue: issued until its last dispatch, so the time that lost tries took is in it;
- replica queue, prefill: the replica's own durations, of the try that counted;
- other: what is left of TTFT, never below zero: the network, the drain of replies, tokens on their way.

Where prefill and decode are split, the replica's two are those of the prefill replica, and two more follow:

- decode wait: from the word that the prompt is computed until the first token, without the transfer: in the head for a decode
  replica, there for a place, and the step that gives the token;
- KV transfer: as the decode replica tells it.

A sample whose first token came from an earlier try than the one that completed it has no such split and is left out.

A p99, and the tail, need as many samples as any p99 here (1,000); below that they are NaN.

Measured (one slow shared core): taking 400 rows in, 0.08 ms; the figures of 240,000 rows (4,000 samples a second for 60 s),
22 to 33 ms. Memory: 28 bytes a row (36 with roles split), 7.3 MB when full; a window of more rows than the ring keeps the newest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.metrics.histogram import enough_for
from harness.wire.inquiry import PartTimes

NAMES = ("schedule lag", "head queue", "replica queue", "prefill", "other")
SPLIT_NAMES = ("schedule lag", "head queue", "prefill queue", "prefill", "decode wait", "KV transfer", "other")
CAPACITY = 1 << 18
_TAIL = 0.01
_KEPT_S = 1.0

Rows = np.ndarray[Any, np.dtype[np.void]]
Figures = tuple[list[PartTimes], int, int]


class TtftParts:
    def __init__(self, window_s: float, capacity: int = CAPACITY, *, split: bool = False) -> None:
        self._window_s = window_s
        self.names = SPLIT_NAMES if split else NAMES
        self._split = split
        self._columns = np.zeros((len(self.names), capacity), np.float32)  # TTFT and its parts but the last, ms
        self._at_s = np.zeros(capacity, np.float64)
        self.reset()

    def reset(self) -> None:
        self._next = 0
        self._held = 0
        self._told: tuple[float, Figures] | None = None

    def add(self, rows: Rows, now_s: float) -> None:
        first = rows["first_ns"]
        known = (first >= 0) & (rows["dispatched_ns"] <= first) & (rows["dispatched_ns"] >= 0)
        if self._split:
            known &= (rows["prefilled_ns"] >= 0) & (rows["prefilled_ns"] <= first)
        rows = rows[known]
        n, capacity = len(rows), len(self._at_s)
        if not n:
            return
        if n > capacity:
            rows, n = rows[-capacity:], capacity
        place = np.arange(self._next, self._next + n) % capacity
        scheduled, issued = rows["scheduled_ns"], rows["issued_ns"]
        columns = self._columns
        columns[0, place] = (rows["first_ns"] - scheduled) / 1e6
        columns[1, place] = np.maximum(issued - scheduled, 0) / 1e6
        columns[2, place] = np.maximum(rows["dispatched_ns"] - issued, 0) / 1e6
        columns[3, place] = np.maximum(rows["queue_us"], 0) / 1e3
        columns[4, place] = np.maximum(rows["prefill_us"], 0) / 1e3
        if self._split:
            transfer_ms = np.maximum(rows["transfer_us"], 0) / 1e3
            columns[5, place] = np.maximum((rows["first_ns"] - rows["prefilled_ns"]) / 1e6 - transfer_ms, 0)
            columns[6, place] = transfer_ms
        self._at_s[place] = now_s
        self._next = (self._next + n) % capacity
        self._held = min(self._held + n, capacity)

    def figures(self, now_s: float) -> Figures:
        """The parts, how many samples are behind them, and how many of those are the tail."""
        if self._told is not None and 0 <= now_s - self._told[0] < _KEPT_S:
            return self._told[1]
        figures = self._compute(now_s)
        self._told = (now_s, figures)
        return figures

    def _compute(self, now_s: float) -> Figures:
        kept = self._in_window(now_s)
        n = kept.shape[1]
        if not n:
            return [PartTimes(name) for name in self.names], 0, 0
        ttft = kept[0]
        tail_n = math.ceil(n * _TAIL) if enough_for(n, 1 - _TAIL) else 0
        slowest = np.argpartition(ttft, n - tail_n - 1)[n - tail_n :]
        other = np.maximum(ttft - sum(kept[1:]), 0)
        return [_part(name, ms, slowest) for name, ms in zip(self.names, (*kept[1:], other), strict=True)], n, tail_n

    def _in_window(self, now_s: float) -> npt.NDArray[np.float32]:
        """Rows arrive in order of time, so the window is the newest stretch of the ring."""
        capacity, held = len(self._at_s), self._held
        order = np.arange(self._next - held, self._next) % capacity
        begin = int(np.searchsorted(self._at_s[order], now_s - self._window_s))
        kept: npt.NDArray[np.float32] = self._columns[:, order[begin:]]
        return kept


def _part(name: str, ms: npt.NDArray[np.float32], slowest: npt.NDArray[np.intp]) -> PartTimes:
    n = len(ms)
    p50, p99 = n // 2, int(n * 0.99)
    ordered = np.partition(ms, (p50, p99))
    return PartTimes(
        name=name,
        mean_ms=float(ms.mean(dtype=np.float64)),
        p50_ms=float(ordered[p50]) if enough_for(n, 0.5) else math.nan,
        p99_ms=float(ordered[p99]) if enough_for(n, 0.99) else math.nan,
        tail_ms=float(ms[slowest].mean(dtype=np.float64)) if len(slowest) else math.nan,
    )
