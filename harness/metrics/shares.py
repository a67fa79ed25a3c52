"""Who holds the samples over a limit: exact counts per roster position, over the moving window and the whole attempt.

Counted from the values as they arrive, never read off a histogram's cell. The window is a ring of count rows like that
of LatencyWindows, give or take one ring slot; a sample belongs to the replica that gave its first token (TTFT) or that
completed it (TPOT). Without a limit nothing is over anything, and only the samples are counted.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


class OverShares:
    def __init__(self, limit_ms: float | None, n_slots: int, window_s: float, ring: int = 12) -> None:
        self.limit_ms = limit_ms
        self._tick_s = window_s / ring
        self._ring = np.zeros((ring, n_slots), np.int32)
        self._tick: int | None = None
        self.whole = np.zeros(n_slots, np.int32)
        self.samples = np.zeros(n_slots, np.int32)

    def add(self, slots: npt.NDArray[np.integer], values_ms: npt.NDArray[np.floating], now_s: float) -> None:
        self.advance(now_s)
        assert self._tick is not None
        good = np.isfinite(values_ms) & (slots >= 0)
        n = len(self.samples)
        self.samples += np.bincount(slots[good], minlength=n).astype(np.int32)
        if self.limit_ms is None:
            return
        over = slots[good & (values_ms > self.limit_ms)]
        if len(over):
            counts = np.bincount(over, minlength=n).astype(np.int32)
            self._ring[self._tick % len(self._ring)] += counts
            self.whole += counts

    def advance(self, now_s: float) -> None:
        tick = math.floor(now_s / self._tick_s)
        if self._tick is None:
            self._tick = tick
        steps = tick - self._tick
        for step in range(1, min(steps, len(self._ring)) + 1):
            self._ring[(self._tick + step) % len(self._ring)].fill(0)
        self._tick = max(tick, self._tick)

    @property
    def window(self) -> npt.NDArray[np.int32]:
        counts: npt.NDArray[np.int32] = self._ring.sum(axis=0, dtype=np.int32)
        return counts

    def reset(self) -> None:
        for array in (self._ring, self.whole, self.samples):
            array.fill(0)
        self._tick = None
