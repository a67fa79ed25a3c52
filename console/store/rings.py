"""Bounded memory of how numbers went: per-replica throughput for sparklines, and the fleet's series for charts.

Both tick at 1 Hz and hold a fixed number of points, so an hour of watching costs no more than a minute. Rows are kept
oldest → newest in plain numpy, shifted on every push: 512 x 60 floats move in about 20 µs, cheaper than the index
arithmetic of a circular buffer would be for every reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from harness.wire.control import FleetSeries, FleetSnapshot

HISTORY_POINTS = 60
SERIES_POINTS = 1800  # half an hour at 1 Hz

SERIES_FIELDS: tuple[str, ...] = FleetSeries.__struct_fields__


class History:
    """The last HISTORY_POINTS seconds of one float column, a row per slot; NaN where nothing is known."""

    def __init__(self, slots: int, points: int = HISTORY_POINTS) -> None:
        self.values: NDArray[np.float32] = np.full((slots, points), np.nan, dtype=np.float32)
        self._second = 0

    def push(self, unix: float, column: NDArray[np.float32]) -> bool:
        """Takes at most one point a second of the sender's clock; a gap of several seconds leaves NaN behind."""
        second = int(unix)
        if second == self._second:
            return False
        gap = second - self._second if self._second else 1
        self._second = second
        steps = min(max(gap, 1), self.values.shape[1])
        self.values[:, :-steps] = self.values[:, steps:].copy()
        self.values[:, -steps:] = np.nan
        self.values[:, -1] = column
        return True


class Series:
    """The fleet's series at 1 Hz: seeded from what the head remembers, then grown from snapshots."""

    def __init__(self, points: int = SERIES_POINTS) -> None:
        self._columns: dict[str, deque[float]] = {name: deque(maxlen=points) for name in SERIES_FIELDS}

    def __len__(self) -> int:
        return len(self._columns["unix"])

    def seed(self, series: FleetSeries) -> None:
        length = min(len(getattr(series, name)) for name in SERIES_FIELDS)
        for name, column in self._columns.items():
            column.clear()
            values: Iterable[float] = getattr(series, name)[-length:] if length else ()
            column.extend(float(value) for value in values)

    def push(self, snap: FleetSnapshot) -> bool:
        if len(self) and int(snap.unix) <= int(self._columns["unix"][-1]):
            return False
        point = {
            "unix": snap.unix,
            "target_qps": snap.target_qps,
            "offered_qps": snap.offered_qps,
            "completed_qps": snap.completed_qps,
            "in_flight": snap.in_flight,
            "backlog": snap.backlog,
            "tokens_per_s": snap.tokens_per_s,
            "ttft_p50_ms": snap.ttft.window.p50,
            "ttft_p99_ms": snap.ttft.window.p99,
            "tpot_p50_ms": snap.tpot.window.p50,
            "tpot_p99_ms": snap.tpot.window.p99,
            "ready": snap.counts.get("READY", 0),
        }
        for name, column in self._columns.items():
            column.append(float(point[name]))
        return True

    def column(self, name: str) -> NDArray[np.float64]:
        return np.fromiter(self._columns[name], dtype=np.float64, count=len(self))
