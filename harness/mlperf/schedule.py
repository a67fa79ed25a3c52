"""LoadGen's Server schedule, reproduced: when each query is due, without LoadGen.

LoadGen draws its whole schedule before the first query from std::mt19937(schedule_rng_seed) and an exponential distribution
(libstdc++: u = (r0 + r1 * 2^32) / 2^64, gap_ns = int(-ln(1 - u) / qps * 1e9)). Query 0 is due at 0, query n at the sum of
the first n gaps. The same draws in numpy give the same nanoseconds: the log key `generated_query_duration` (the due time
of the query after the last) is matched exactly, which a test checks against the real library.

With it the lag of an issue is measured against the schedule instead of guessed, and "due by now" is exact. The realised
rate differs from the target by chance (about 1,005/s for 1,000 in the first 5 s): compare with this, not with the target.

Only for one block of queries, as in performance mode: an accuracy attempt over a QSL larger than its performance count
starts a fresh schedule for every part. Drawn in chunks as far as was asked; 8 bytes a query (2.4 million: 19 MB, 0.2 s).
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

_CHUNK = 65_536

Ns = npt.NDArray[np.int64]


class ServerSchedule:
    def __init__(self, seed: int, qps: float) -> None:
        if not qps > 0:
            raise ValueError(f"qps must be positive, not {qps!r}")
        self.seed = seed
        self.qps = qps
        # std::mt19937 takes 32 bits of the seed and spreads them as RandomState does; MT19937 alone would hash it.
        self._draws = np.random.MT19937()
        self._draws.state = cast(Any, np.random.RandomState(seed & 0xFFFFFFFF).get_state(legacy=False))
        self._due = np.zeros(1, dtype=np.int64)

    def due_ns(self, n0: int, n1: int) -> Ns:
        """Due times of queries n0 … n1 - 1, in ns from the attempt's start."""
        if not 0 <= n0 <= n1:
            raise ValueError(f"queries {n0} to {n1} are not a range")
        while len(self._due) < n1:
            self._grow(n1 - len(self._due))
        return self._due[n0:n1].copy()

    def due_by(self, elapsed_ns: int) -> int:
        """How many queries the schedule wanted issued by then, the end of the attempt not considered."""
        if elapsed_ns < 0:
            return 0
        while self._due[-1] <= elapsed_ns:
            self._grow(_CHUNK)
        return int(np.searchsorted(self._due, elapsed_ns, side="right"))

    def generated(self, min_duration_ms: int, min_queries: int = 1, multiple_of: int = 1) -> int:
        """How many queries LoadGen generates: up to both minima, padded to a multiple (equal issue: the performance count)."""
        by_time = self._first_at_or_after(min_duration_ms * 1_000_000) + 1
        count = max(by_time, min_queries, 1)
        return math.ceil(count / multiple_of) * multiple_of

    def _first_at_or_after(self, ns: int) -> int:
        while self._due[-1] < ns:
            self._grow(_CHUNK)
        return int(np.searchsorted(self._due, ns, side="left"))

    def _grow(self, at_least: int) -> None:
        n = math.ceil(at_least / _CHUNK) * _CHUNK
        raw = self._draws.random_raw(2 * n).astype(np.float64)
        uniform = (raw[0::2] + raw[1::2] * 2.0**32) / 2.0**64
        uniform = np.minimum(uniform, math.nextafter(1.0, 0.0))  # as std::generate_canonical does
        gaps_ns = (-np.log(1.0 - uniform) / self.qps * 1e9).astype(np.int64)
        self._due = np.concatenate([self._due, self._due[-1] + np.cumsum(gaps_ns)])
