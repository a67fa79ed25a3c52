"""How slow this machine is: limits of CPU time are of the core on which they were measured, and others may be slower."""

from __future__ import annotations

import time

import numpy as np

_THERE_S = 0.009


def times_slower() -> float:
    """What a fixed piece of work takes here, the best of a few, by what it took there; at least 1."""
    numbers = np.random.default_rng(1).random(100_000)
    took_s = []
    for _ in range(7):
        began_s = time.process_time()
        sum(number * number for number in range(100_000))
        np.sort(numbers)
        took_s.append(time.process_time() - began_s)
    return max(1.0, min(took_s) / _THERE_S)
