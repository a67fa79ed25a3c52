"""Numbers to eight heat levels. Quantised with hysteresis: noise around a threshold is the largest share of what a
truecolor heat map writes to the terminal (17 KB a tick without), and flicker hides the one cell that matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from console.store.fleet import FleetStore

LEVELS: Final = 8
MARGIN: Final = 0.25  # of a level: how far past a threshold a value must go to change its level
UNKNOWN: Final = 255


@dataclass(frozen=True, slots=True)
class HeatMetric:
    name: str
    label: str
    low_text: str
    high_text: str
    high_is_bad: bool = True


#: The first one is shown at the start: it names a slow replica whatever the load, where tok/s is noisy below saturation.
METRICS: Final = (
    HeatMetric("ratio", "step-time ratio", "0.9", "1.3"),
    HeatMetric("tok", "tok/s vs median", "50%", "115%", high_is_bad=False),
    HeatMetric("ttft", "TTFT p99", "0", "limit"),
    HeatMetric("batch", "batch", "0", "fleet max"),
    HeatMetric("waiting", "waiting", "0", "fleet max"),
)


def scaled(store: FleetStore, metric: HeatMetric) -> NDArray[np.float32]:
    """The metric as 0..1 on its scale, NaN where unknown."""
    if metric.name == "tok":
        return (store.floats("tokens_s") / (store.median("tokens_s") or math.nan) - 0.5) / 0.65
    if metric.name == "ratio":
        return (store.floats("ratio") - 0.9) / 0.4
    if metric.name == "ttft":
        limit_ms = store.snapshot.ttft.limit_ms if store.snapshot else None
        values = store.floats("ttft_p99_ms")
        return values / (limit_ms or _peak(values))
    values = store.floats("batch") if metric.name == "batch" else store.ints("waiting").astype(np.float32)
    return values / _peak(values)


def _peak(values: NDArray[np.float32]) -> float:
    known = values[~np.isnan(values)]
    return max(1.0, float(known.max())) if len(known) else 1.0


class HeatLevels:
    def __init__(self) -> None:
        self._levels: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._metric = ""

    def update(self, store: FleetStore, metric: HeatMetric) -> NDArray[np.uint8]:
        """Level of each slot, UNKNOWN where there is no value."""
        raw = scaled(store, metric) * LEVELS
        known = ~np.isnan(raw)
        fresh = np.full(len(raw), UNKNOWN, dtype=np.uint8)
        fresh[known] = np.clip(raw[known], 0, LEVELS - 1).astype(np.uint8)
        if len(self._levels) == len(raw) and self._metric == metric.name:
            old = self._levels.astype(np.float32)
            near = known & (self._levels != UNKNOWN) & (raw > old - MARGIN) & (raw < old + 1 + MARGIN)
            fresh[near] = self._levels[near]
        self._levels, self._metric = fresh, metric.name
        return fresh
