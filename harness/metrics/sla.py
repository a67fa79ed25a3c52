"""One limit watched live: windows, exact over-limit counts, early stopping and projection, as the SlaView that is sent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.metrics.early_stopping import needed
from harness.metrics.projection import project
from harness.metrics.shares import OverShares
from harness.metrics.windows import LatencyWindows, LimitWatch
from harness.wire.control import SlaView


class SlaWatch:
    def __init__(self, limit_ms: float | None, n_slots: int, window_s: float) -> None:
        self.limit = LimitWatch(limit_ms)
        self.windows = LatencyWindows(n_slots, window_s)
        self.shares = OverShares(limit_ms, n_slots, window_s)

    def add(self, slots: npt.NDArray[np.integer], values_ms: npt.NDArray[np.floating], now_s: float) -> None:
        self.windows.add(slots, values_ms, now_s)
        self.limit.add(values_ms)
        self.shares.add(slots, values_ms, now_s)

    def advance(self, now_s: float) -> None:
        """Let what is older than the window fall out."""
        self.windows.advance(now_s)
        self.shares.advance(now_s)

    def view(self, now_s: float, samples_left: float) -> SlaView:
        """`samples_left`: what the attempt will still complete; 0 at its end or when it has none."""
        self.advance(now_s)
        limited = self.limit.limit_ms is not None
        projected = project(self.windows.whole_counts, self.windows.window_counts, samples_left)
        return SlaView(
            limit_ms=self.limit.limit_ms,
            window=self.windows.window(),
            whole=self.windows.whole(),
            over=self.limit.over,
            over_allowed=max(0, self.limit.allowed) if limited else 0,
            needed=max(0, needed(0, self.limit.percentile) - self.limit.total) if limited else 0,
            projected_ms=projected.value_ms,
            projected_low_ms=projected.low_ms,
            projected_high_ms=projected.high_ms,
        )

    def reset(self) -> None:
        self.limit.reset()
        self.windows.reset()
        self.shares.reset()
