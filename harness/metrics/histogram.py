"""Log-spaced latency cells: one fixed grid for every histogram, so that a merge is an addition.

Growth is 2 % a cell from 0.02 ms to about 1,000 s (896 cells, int32: 3.6 kB a histogram). A quantile is interpolated
inside its cell by rank, so its error stays below half a cell (1 %; measured .4 % at p50, .2 % at p99). Values outside
the grid fall into the first or last cell. Whatever needs exact counts (samples over a limit) does not come from here.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.wire.control import Percentiles

CELLS = 896
GROWTH = 1.02
FIRST_MS = 0.02
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}

_LOG_GROWTH = math.log(GROWTH)
_LOG_FIRST = math.log(FIRST_MS)

#: CELLS + 1 edges in ms; cell i covers [EDGES_MS[i], EDGES_MS[i + 1]).
EDGES_MS: npt.NDArray[np.float64] = np.exp(_LOG_FIRST + _LOG_GROWTH * np.arange(CELLS + 1))

Counts = npt.NDArray[np.integer]


def cells_of(values_ms: npt.NDArray[np.floating]) -> npt.NDArray[np.intp]:
    """The cell of each (finite) value."""
    logs = np.log(np.maximum(values_ms, FIRST_MS).astype(np.float64, copy=False))
    cells: npt.NDArray[np.intp] = ((logs - _LOG_FIRST) * (1.0 / _LOG_GROWTH)).astype(np.intp)
    return np.minimum(cells, CELLS - 1, out=cells)


def histogram_of(values_ms: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Counts per cell; values that are not finite are left out."""
    finite = values_ms[np.isfinite(values_ms)]
    return np.bincount(cells_of(finite), minlength=CELLS).astype(np.int64, copy=False)


def ms_at(position: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """The value at a position on the grid: 3.5 lies in the middle of cell 3."""
    return np.exp(_LOG_FIRST + _LOG_GROWTH * position.astype(np.float64, copy=False))


def value_at(cumulative: npt.NDArray[np.number], q: float) -> float:
    """The q-quantile in ms of a cumulative histogram (last entry: how many samples); NaN when it is empty."""
    total = float(cumulative[-1])
    if total <= 0:
        return math.nan
    rank = min(max(q, 0.0), 1.0) * total
    cell = int(np.searchsorted(cumulative, rank, side="left"))
    below = float(cumulative[cell - 1]) if cell else 0.0
    inside = float(cumulative[cell]) - below
    fraction = (rank - below) / inside if inside > 0 else 0.5
    return math.exp(_LOG_FIRST + _LOG_GROWTH * (cell + fraction))


def enough_for(n: float, q: float) -> bool:
    """A quantile is shown from n = 10 / (1 - q) samples on: p99 from 1,000, p99.9 from 10,000."""
    return n >= round(10.0 / (1.0 - q))


def exact_percentile(values_ms: npt.NDArray[np.floating], q: float) -> float:
    """The q-quantile as LoadGen takes it (sorted[int(n * q)]), for verdicts; NaN without values. 2.4 million: 20 ms."""
    finite = values_ms[np.isfinite(values_ms)]
    if not len(finite):
        return math.nan
    rank = min(int(len(finite) * q), len(finite) - 1)
    return float(np.partition(finite, rank)[rank])


def quantiles(counts: Counts) -> dict[str, float]:
    """p50 to p99.9 by name, those for which there are enough samples."""
    cumulative = np.cumsum(counts, dtype=np.int64)
    n = int(cumulative[-1])
    return {name: value_at(cumulative, q) for name, q in QUANTILES.items() if enough_for(n, q)}


def percentiles(counts: Counts) -> Percentiles:
    cumulative = np.cumsum(counts, dtype=np.int64)
    n = int(cumulative[-1])

    def shown(q: float) -> float:
        return value_at(cumulative, q) if enough_for(n, q) else math.nan

    return Percentiles(n=n, p50=shown(0.5), p90=shown(0.9), p99=shown(0.99), p99_9=shown(0.999))
