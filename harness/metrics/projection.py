"""Where the attempt's p99 will end, if the rest of it looks like the last minute.

The attempt's final distribution is a mixture: what is measured (n samples, known) and what is still to come (m samples,
assumed to be distributed like the recent window). The projected p99 is that mixture's quantile.

The interval (95 %) is of order-statistic kind: how far the final share of samples above a point can stray from the
mixture's. Two things vary: the tail share of the recent window is itself counted from r samples (variance p q / r), and
the m samples to come are a draw (p q / m); both weigh m / (n + m). That gives ranks q ± d, read off the same mixture.
At the end of the attempt m is 0 and the interval closes on the measured value. It assumes independent samples: bursts
and a fleet that is still getting slower make the truth wider, never narrower.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.metrics.histogram import Counts, enough_for, value_at

_Z95 = 1.96
#: With fewer recent samples than this the whole attempt stands in for the recent window.
_MIN_RECENT = 200


@dataclass(frozen=True, slots=True)
class Projection:
    """Milliseconds; NaN while there are too few samples for the quantile at all."""

    value_ms: float = math.nan
    low_ms: float = math.nan
    high_ms: float = math.nan


def project(whole: Counts, recent: Counts, samples_left: float, q: float = 0.99) -> Projection:
    """Project the q-quantile at the end of the attempt. `samples_left` 0: the attempt is over (or has no end)."""
    n = float(whole.sum())
    if not enough_for(n, q):
        return Projection()
    left = max(0.0, samples_left)
    basis = recent if float(recent.sum()) >= _MIN_RECENT else whole
    recent_n = float(basis.sum())
    to_come = basis.astype(np.float64) * (left / recent_n)
    cumulative = np.cumsum(whole + to_come)
    share_left = left / (n + left)
    spread = _Z95 * share_left * math.sqrt(q * (1.0 - q) * (1.0 / recent_n + (1.0 / left if left else 0.0)))
    return Projection(
        value_ms=value_at(cumulative, q),
        low_ms=value_at(cumulative, max(0.0, q - spread)),
        high_ms=value_at(cumulative, min(1.0, q + spread)),
    )
