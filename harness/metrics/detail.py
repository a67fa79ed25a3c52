"""One watched metric in full, for whoever asks: both histograms, percentiles with the snapshot's rule, shares of the tail.

Exact, because counted from the values: samples over the limit and samples a replica. Good to a cell of the grid (2 %):
the percentiles, and, where there is no limit, who holds the window's samples above the cell of its p99; the whole
attempt has no such column then, its histograms are not kept a replica.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.metrics.histogram import EDGES_MS, cells_of, quantiles
from harness.metrics.sla import SlaWatch
from harness.wire.inquiry import LatencyDetail


def latency_detail(watch: SlaWatch, now_s: float, without: list[int]) -> LatencyDetail:
    """`without`: roster positions whose samples `without_p99_ms` leaves out; none of them, no such figure."""
    watch.advance(now_s)
    windows, shares, limited = watch.windows, watch.shares, watch.limit.limit_ms is not None
    window, whole = windows.window_counts, windows.whole_counts
    first, end = _used(whole)
    window_ms = quantiles(window)
    return LatencyDetail(
        limit_ms=watch.limit.limit_ms,
        edges_ms=EDGES_MS[first : end + 1].tolist() if end > first else [],
        window=window[first:end].tolist(),
        whole=whole[first:end].tolist(),
        window_ms=window_ms,
        whole_ms=quantiles(whole),
        window_n=int(window.sum()),
        whole_n=int(whole.sum()),
        over_window=_column(shares.window) if limited else _above_p99(watch, window_ms),
        over_whole=_column(shares.whole) if limited else b"",
        samples_whole=_column(shares.samples),
        without_p99_ms=quantiles(windows.window_without(without)).get("p99", math.nan) if without else math.nan,
    )


def _used(counts: npt.NDArray[np.int64]) -> tuple[int, int]:
    """First cell in use and the one after the last; whatever is in the window is in the whole attempt too."""
    used = np.flatnonzero(counts)
    return (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)


def _above_p99(watch: SlaWatch, window_ms: dict[str, float]) -> bytes:
    """Empty as long as the window has too few samples for a p99."""
    p99_ms = window_ms.get("p99")
    if p99_ms is None:
        return b""
    return _column(watch.windows.replica_counts_from(int(cells_of(np.array([p99_ms]))[0]) + 1))


def _column(counts: npt.NDArray[np.integer]) -> bytes:
    return counts.astype("<i4").tobytes()
