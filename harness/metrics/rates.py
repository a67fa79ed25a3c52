"""Rates over a moving window of (time, value) readings: queries a second from a counter, growth of a backlog."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

#: Over which the head tells rates (offered, scheduled, completed, tokens) and issue lag: shorter than the SLA's window,
#: because an operator who changed the rate waits for it.
RATE_WINDOW_S: Final = 10.0


class RateWindow:
    """Readings of one number. `rate` suits a counter that only grows; `slope` suits a gauge that goes both ways."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._readings: deque[tuple[float, float]] = deque()

    def add(self, t_s: float, value: float) -> None:
        readings = self._readings
        readings.append((t_s, value))
        # One reading at or before the window's start stays, so that the window is covered in full.
        while len(readings) > 2 and readings[1][0] <= t_s - self.window_s:
            readings.popleft()

    def rate(self) -> float:
        """Change a second between the window's ends; NaN before two readings."""
        if len(self._readings) < 2:
            return math.nan
        (t0, v0), (t1, v1) = self._readings[0], self._readings[-1]
        return (v1 - v0) / (t1 - t0) if t1 > t0 else math.nan

    def slope(self) -> float:
        """Least-squares change a second: one odd reading at an end moves it little. NaN before three readings."""
        n = len(self._readings)
        if n < 3:
            return math.nan
        mean_t = sum(t for t, _ in self._readings) / n
        mean_v = sum(v for _, v in self._readings) / n
        spread = sum((t - mean_t) ** 2 for t, _ in self._readings)
        if spread <= 0:
            return math.nan
        return sum((t - mean_t) * (v - mean_v) for t, v in self._readings) / spread

    def reset(self) -> None:
        self._readings.clear()
