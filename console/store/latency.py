"""What the SLA screen computes from a head's answer: histograms on a screen's columns, shares over the limit, the tail's
origin. Pure numbers; nothing here knows how they are drawn.

The head's cells are 2 % wide and their number changes with the data; a screen has some 50 columns. Counts are moved
from one grid to the other along their cumulative sum on a log axis, so a cell that straddles two columns is split and the
sum of all columns is the sum of all cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from console.store.fleet import FleetStore
from harness.wire.inquiry import LatencyDetail, PartTimes, SlaDetail

Span = Literal["window", "whole"]
Metric = Literal["ttft", "tpot"]
QUANTILES: Final = ("p50", "p90", "p95", "p99", "p99.9")


def latency(detail: SlaDetail, metric: Metric) -> LatencyDetail:
    return detail.ttft if metric == "ttft" else detail.tpot


def samples(view: LatencyDetail, span: Span) -> int:
    return view.window_n if span == "window" else view.whole_n


def over_counts(view: LatencyDetail, span: Span) -> NDArray[np.int32]:
    """Samples over the limit, by roster position."""
    return np.frombuffer(view.over_window if span == "window" else view.over_whole, dtype="<i4")


def over_share(view: LatencyDetail, span: Span) -> float:
    """Of all samples; NaN without samples or a limit. Counted by the head, not read off the histogram."""
    n = samples(view, span)
    return float(over_counts(view, span).sum()) / n if n and view.limit_ms is not None else math.nan


# --- histogram ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """Counts per column between `low_ms` and `high_ms`, log-spaced."""

    counts: NDArray[np.float64]
    low_ms: float
    high_ms: float

    def column_of(self, value_ms: float) -> int:
        """May lie outside: negative, or beyond the last."""
        if value_ms <= 0:
            return -1
        share = math.log(value_ms / self.low_ms) / math.log(self.high_ms / self.low_ms)
        return math.floor(share * len(self.counts))

    def start_ms(self, column: int) -> float:
        return float(self.low_ms * (self.high_ms / self.low_ms) ** (column / len(self.counts)))


def columns_of(view: LatencyDetail, span: Span, width: int) -> Columns | None:
    """None without samples. The axis reaches from the first to the last cell in use and always past the limit, whose
    place is the start of a column: what is left of it is within, what is right of it beyond."""
    counts = np.asarray(view.window if span == "window" else view.whole, dtype=np.float64)
    edges = np.asarray(view.edges_ms, dtype=np.float64)
    used = np.flatnonzero(counts)
    if not len(used) or len(edges) != len(counts) + 1 or width < 4:
        return None
    low, high = math.log(max(edges[used[0]], 1e-6)), math.log(edges[used[-1] + 1])
    if view.limit_ms:
        low, high = _with_limit(low, high, math.log(view.limit_ms), width)
    ranks = np.concatenate([[0.0], np.cumsum(counts)])
    grid = np.linspace(low, high, width + 1)
    at_edges = np.interp(grid, np.log(np.maximum(edges, 1e-6)), ranks)
    return Columns(np.diff(at_edges), math.exp(low), math.exp(high))


def _with_limit(low: float, high: float, limit: float, width: int) -> tuple[float, float]:
    """The axis widened until the limit is an edge of a column, with at least one column beyond it."""
    low, high = min(low, limit - 0.2), max(high, limit + 0.1)
    below = min(width - 1, max(1, math.floor((limit - low) / (high - low) * width)))
    step = max((limit - low) / below, (high - limit) / (width - below))
    return limit - below * step, limit + (width - below) * step


def ticks(columns: Columns) -> list[float]:
    """Round values on the axis: 1, 2 and 5 of every decade."""
    first, last = math.floor(math.log10(columns.low_ms)), math.ceil(math.log10(columns.high_ms))
    values = [mantissa * 10.0**decade for decade in range(first, last + 1) for mantissa in (1, 2, 5)]
    return [value for value in values if columns.low_ms <= value < columns.high_ms]


# --- where the tail comes from -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TailRow:
    name: str
    over: int
    share: float  # of all samples over the limit
    expected: float  # were all replicas alike
    replicas: int
    own_share: float  # of its own samples, whole attempt; NaN for the window, whose samples per replica are not told

    @property
    def times(self) -> float:
        """How many times what is expected."""
        return self.share / self.expected if self.expected else math.nan


@dataclass(frozen=True, slots=True)
class Tail:
    rows: list[TailRow]  # largest share first; without those that have none
    total: int
    limit_ms: float | None  # None: the slowest 1 %

    def share_of_first(self, count: int) -> float:
        return sum(row.share for row in self.rows[:count])


def tail_of(store: FleetStore, view: LatencyDetail, span: Span, *, by_node: bool) -> Tail | None:
    """None when the head's roster is another than ours: its numbers would stand beside wrong names."""
    over = over_counts(view, span)
    taken = np.frombuffer(view.samples_whole, dtype="<i4")
    if len(over) != len(store.slots) or not len(over):
        return None
    if len(taken) != len(over):
        taken = np.zeros(len(over), dtype=np.int32)
    total, names = int(over.sum()), [info.slot for info in store.slots]
    # Who never got a sample (still starting, waived) could not have been late.
    served: NDArray[np.int64] = ((taken > 0) | (over > 0)).astype(np.int64)
    if by_node:
        nodes = len(store.node_names)
        over, taken, served = (np.bincount(store.node_of, weights=each, minlength=nodes) for each in (over, taken, served))  # type: ignore[assignment]
        names = store.node_names
    fleet = float(served.sum())
    order = [int(at) for at in np.argsort(-over, kind="stable") if over[at] > 0]
    rows = []
    for at in order:
        own = float(over[at] / taken[at]) if span == "whole" and taken[at] else math.nan
        rows.append(TailRow(names[at], int(over[at]), float(over[at]) / total, float(served[at]) / fleet, int(served[at]), own))
    return Tail(rows, total, view.limit_ms)


def tail_shares(parts: Sequence[PartTimes]) -> list[float]:
    """Each part's share of the tail's TTFT; NaN where it is not known."""
    known = [part.tail_ms for part in parts if not math.isnan(part.tail_ms)]
    total = sum(known)
    return [part.tail_ms / total if total else math.nan for part in parts]
