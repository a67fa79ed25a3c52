"""How a metric's values lie: figures, a histogram, the distribution function, and what is over the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from harness.analysis.intervals import percentile_ranks
from harness.analysis.views import Distribution, Figures, Interval, Margin, Metric
from harness.metrics.early_stopping import allowed_over

if TYPE_CHECKING:
    from harness.analysis.table import AttemptTable

Floats = npt.NDArray[np.floating[Any]]

PERCENTILES: Final = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
FIGURES: Final = ("min", "avg", *PERCENTILES, "max")
BINS: Final = 60
#: A scale whose ends are further apart than this has equal ratios instead of equal steps.
_WIDE: Final = 20.0
_SHARES: Final = np.unique(
    np.concatenate(
        [np.arange(0, 0.9, 0.02), np.arange(0.9, 0.99, 0.005), np.arange(0.99, 0.999, 0.0005), np.arange(0.999, 1, 0.0001)]
    )
)


def distribution(table: AttemptTable, metric: Metric, limit_ms: float | None) -> Distribution:
    ordered = table.ordered(metric)
    edges = _edges(ordered)
    counts = np.histogram(ordered, edges)[0] if len(edges) else np.zeros(0, np.int64)
    over, allowed = over_limit(ordered, limit_ms)
    return Distribution(
        metric=metric, n=len(ordered), figures=figures_of(ordered), p99_interval_ms=interval_of(ordered, 0.99), limit_ms=limit_ms,
        over=over, allowed_over=allowed, edges_ms=edges.tolist(), counts=counts.tolist(), cdf=_cdf(ordered),
    )  # fmt: skip


def margin(table: AttemptTable, metric: Metric, limit_ms: float) -> Margin:
    placed = table.placed(metric)
    p99_ms = at(placed, 0.99)
    over, allowed = over_limit(placed, limit_ms)
    head_room = None if p99_ms is None else 1.0 - p99_ms / limit_ms
    return Margin(metric, limit_ms, p99_ms, interval_of(placed, 0.99), head_room, over, allowed)


def figures_of(ordered: Floats) -> Figures:
    """Of values in ascending order; percentiles as LoadGen takes them."""
    if not len(ordered):
        return dict.fromkeys(FIGURES)
    return {
        "min": float(ordered[0]),
        "avg": float(ordered.mean(dtype=np.float64)),
        **{name: float(ordered[int(len(ordered) * q)]) for name, q in PERCENTILES.items()},
        "max": float(ordered[-1]),
    }


def at(ordered: Floats, q: float) -> float | None:
    """The q-quantile of ascending (or `placed`) values, as LoadGen takes it."""
    return float(ordered[min(int(len(ordered) * q), len(ordered) - 1)]) if len(ordered) else None


def short(value: float | None) -> str:
    """`1.234`, `272.6`, `14,010`: four digits, never as a power of ten."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1e-3 else "0"


def interval_of(ordered: Floats, q: float) -> Interval:
    ranks = percentile_ranks(len(ordered), q)
    return (float(ordered[ranks[0]]), float(ordered[ranks[1]])) if ranks is not None else None


def over_limit(values: Floats, limit_ms: float | None) -> tuple[int, int | None]:
    """How many, and how many early stopping would allow; None: too few samples for any."""
    if limit_ms is None:
        return 0, None
    allowed = allowed_over(len(values))
    return int(np.count_nonzero(values > limit_ms)), None if allowed < 0 else allowed


def _edges(ordered: Floats) -> Floats:
    """One more than there are bins; the outermost are the smallest and the largest value."""
    if not len(ordered):
        return np.zeros(0)
    low, high = float(ordered[0]), float(ordered[-1])
    if low >= high:
        return np.array([low, np.nextafter(low, np.inf)])
    if 0 < low < high / _WIDE:
        edges = np.geomspace(low, high, BINS + 1)
        edges[0], edges[-1] = low, high  # exact in spite of rounding
        return edges
    edges = np.linspace(low, high, BINS + 1)
    return edges if (np.diff(edges) > 0).all() else np.array([low, high])


def _cdf(ordered: Floats) -> list[tuple[float, float]]:
    n = len(ordered)
    if not n:
        return []
    values = np.unique(ordered[np.append(np.minimum((_SHARES * n).astype(np.int64), n - 1), n - 1)])
    shares = np.searchsorted(ordered, values, side="right") / n
    return list(zip(values.tolist(), shares.tolist(), strict=True))
