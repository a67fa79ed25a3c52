"""Histograms for Prometheus: fixed bounds with every SLA limit among them, counted exactly and never reset.

The bounds are about 32, each 1.2 times the one before; a limit takes the place of its nearest neighbour, so that the share
of samples under it is a count and no interpolation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

#: The limits of MLPerf's LLM benchmarks: TTFT 2 s (DeepSeek-R1) and 3 s (gpt-oss-120b), TPOT 80 ms; always exact bounds.
KNOWN_LIMITS_S = (0.080, 2.0, 3.0)
_GROWTH = 1.2


def bounds_s(low_s: float, high_s: float, limits_s: Iterable[float]) -> tuple[float, ...]:
    """From low to high by 20 % steps; of the limits those that lie between."""
    steps = int(np.ceil(np.log(high_s / low_s) / np.log(_GROWTH)))
    grid = [float(f"{low_s * _GROWTH**step:.3g}") for step in range(steps + 1)]
    wanted = sorted({limit for limit in limits_s if low_s < limit < high_s})
    for limit in wanted:
        nearest = min((bound for bound in grid if bound not in wanted), key=lambda bound: abs(np.log(bound / limit)))
        grid[grid.index(nearest)] = limit
    return tuple(sorted(grid))


class BucketCounts:
    """One histogram in seconds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum_s = 0.0
        self._edges_ms = np.array(bounds) * 1e3
        self._counts = np.zeros(len(bounds) + 1, np.int64)

    def add(self, values_ms: npt.NDArray[np.floating]) -> None:
        """Values that are not finite are left out."""
        good = values_ms[np.isfinite(values_ms)]
        if len(good):
            # A bound is inclusive, as in Prometheus ("le").
            cells = np.searchsorted(self._edges_ms, good, side="left")
            self._counts += np.bincount(cells, minlength=len(self._counts))
            self.sum_s += float(good.sum()) / 1e3

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    def cumulative(self) -> list[tuple[str, float]]:
        """`le` and count, +Inf last."""
        counts = np.cumsum(self._counts)
        return [*zip(map(_le, self.bounds), map(float, counts), strict=False), ("+Inf", float(counts[-1]))]


def _le(bound: float) -> str:
    return repr(float(bound))
