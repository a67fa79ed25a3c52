"""Exponential back-off with full jitter: every wait is drawn between almost nothing and a doubling cap.

Hundreds of replicas start at the same second; waits that are drawn over the whole interval spread their retries evenly,
a fixed 1 s retry sent seven redundant REGISTERs a worker in measurements.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_S = 0.5
CAP_S = 8.0
LEAST_S = 0.05


def full_jitter(rng: random.Random, first_s: float = FIRST_S, cap_s: float = CAP_S) -> Iterator[float]:
    """Endless waits in seconds."""
    cap = first_s
    while True:
        yield rng.uniform(LEAST_S, cap)
        cap = min(2 * cap, cap_s)


def jittered(rng: random.Random, interval_s: float, share: float = 0.2) -> float:
    """`interval_s` ± `share`, so that beats of a fleet that started together drift apart."""
    return interval_s * rng.uniform(1 - share, 1 + share)
