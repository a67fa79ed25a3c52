"""How sure a figure is: intervals for percentiles, rates, means, shares and differences. 95 % unless asked otherwise.

Percentiles and shares take samples as independent of each other. In a run that drifts, or whose samples wait in one queue, they
are not quite, and the true interval is wider; rates and means, which compare stretches of time, have less of that fault the
longer a stretch is beside a sample.
Each function names the source of its formula. None always means: too little was measured for an interval at that confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Values = Sequence[float] | npt.NDArray[np.floating[Any]]
Interval = tuple[float, float]

CONFIDENCE: Final = 0.95
#: From this many degrees of freedom on an expansion about the normal quantile is as good as the exact sum.
_MANY: Final = 120


def percentile_interval(values: Values, q: float, confidence: float = CONFIDENCE) -> Interval | None:
    """Of the q-quantile, whatever the distribution: two order statistics (see `percentile_ranks`). NaN values are left out."""
    return percentile_intervals(values, [q], confidence)[0]


def percentile_intervals(values: Values, qs: Sequence[float], confidence: float = CONFIDENCE) -> list[Interval | None]:
    """Several at once, for one partition of the values: 2.4 million cost some 60 ms."""
    known = np.asarray(values, dtype=np.float64)
    missing = np.isnan(known)
    if missing.any():
        known = known[~missing]
    ranks = [percentile_ranks(len(known), q, confidence) for q in qs]
    positions = sorted({place for pair in ranks if pair for place in pair})
    placed = np.partition(known, positions) if positions else known
    return [(float(placed[pair[0]]), float(placed[pair[1]])) if pair else None for pair in ranks]


@lru_cache(maxsize=1024)
def percentile_ranks(n: int, q: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Positions, from 0, of the sorted values between which the q-quantile lies.

    The number of n values at or below the true quantile is binomial (n, q), so that X(l) … X(u) covers it with probability
    P(l <= B < u): l and u are the narrowest with at most half of the error on each side. Source: David and Nagaraja, Order
    Statistics, 3rd edition, section 7.1. At 95 %, a p50 needs 6 values, a p99 368, a p99.9 3,688.
    """
    _checked(confidence)
    if not 0.0 < q < 1.0:
        raise ValueError(f"quantile {q!r} must lie between 0 and 1, such as 0.99")
    if n < 1:
        return None
    half = (1.0 - confidence) / 2.0
    first, below = _binomial(n, q)  # below[i] = P(B <= first + i)
    low = first + int(np.searchsorted(below, half, side="right"))  # the largest l with P(B <= l - 1) <= half
    high = first + int(np.searchsorted(below, 1.0 - half, side="left")) + 1  # the smallest u with P(B <= u - 1) >= 1 - half
    return (low - 1, high - 1) if low >= 1 and high <= n else None


def _binomial(n: int, p: float) -> tuple[int, npt.NDArray[np.float64]]:
    """The distribution function of Binomial(n, p) over the stretch in which it counts, and where that stretch begins."""
    mean, reach = n * p, 10.0 * math.sqrt(n * p * (1.0 - p)) + 40.0
    first, last = max(0, math.floor(mean - reach)), min(n, math.ceil(mean + reach))
    k = np.arange(first, last + 1, dtype=np.float64)
    mode = min(last, max(first, int((n + 1) * p)))
    # logarithms of P(k) / P(k - 1), summed from the first on, and then set right at the mode
    steps = np.log((n - k[1:] + 1.0) * p / (k[1:] * (1.0 - p)))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    at_mode = (
        math.lgamma(n + 1) - math.lgamma(mode + 1) - math.lgamma(n - mode + 1) + mode * math.log(p) + (n - mode) * math.log1p(-p)
    )
    return first, np.cumsum(np.exp(logs - logs[mode - first] + at_mode))


def rate_interval(per_block: Values, confidence: float = CONFIDENCE) -> Interval | None:
    """Of a rate (or a mean) from its values in stretches of equal length: their mean ± t s / sqrt(blocks).

    Stretches much longer than a sample takes are nearly independent even where samples are not. Source: batch means, Law,
    Simulation Modeling and Analysis, 5th edition, section 9.5.3. 10 to 30 blocks are usual; one has no interval.
    """
    _checked(confidence)
    blocks = np.asarray(per_block, dtype=np.float64)
    blocks = blocks[~np.isnan(blocks)]
    if len(blocks) < 2:
        return None
    mean = float(blocks.mean())
    half = student_t((1.0 + confidence) / 2.0, len(blocks) - 1) * float(blocks.std(ddof=1)) / math.sqrt(len(blocks))
    return mean - half, mean + half


def difference_interval(
    a: float | None, a_interval: Interval | None, b: float | None, b_interval: Interval | None
) -> Interval | None:
    """Of b - a, from the figures and their own intervals (of one confidence, measured apart from each other).

    Source: MOVER, Zou and Donner, Statistics in Medicine 27 (2008) 1693-1702. It needs neither a distribution nor equal
    variances; intervals of percentiles, which lie unevenly about their figure, keep their sides.
    """
    if a is None or b is None or a_interval is None or b_interval is None:
        return None
    down = math.hypot(b - b_interval[0], a_interval[1] - a)
    up = math.hypot(b_interval[1] - b, a - a_interval[0])
    return b - a - down, b - a + up


def share_interval(count: int, n: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Of a share, `count` of n. Source: Wilson, JASA 22 (1927) 209-212; never outside 0 to 1, and not empty at 0 of n."""
    _checked(confidence)
    if n < 1:
        return None
    if not 0 <= count <= n:
        raise ValueError(f"{count} of {n} is no share")
    z = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    share, grown = count / n, 1.0 + z * z / n
    middle = (share + z * z / (2 * n)) / grown
    half = z / grown * math.sqrt(share * (1.0 - share) / n + z * z / (4 * n * n))
    return (0.0 if count == 0 else max(0.0, middle - half)), (1.0 if count == n else min(1.0, middle + half))


@lru_cache(maxsize=256)
def student_t(p: float, degrees: int) -> float:
    """The p-quantile of Student's t with a whole number of degrees of freedom.

    Up to 120 degrees the exact finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4, bisected; above, their expansion 26.7.5,
    which then errs by less than 1e-7.
    """
    if degrees < 1 or not 0.0 < p < 1.0:
        raise ValueError(f"Student's t has no quantile {p!r} at {degrees} degrees of freedom")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -student_t(1.0 - p, degrees)
    if degrees > _MANY:
        return _expanded(NormalDist().inv_cdf(p), degrees)
    wanted, low, high = 2.0 * p - 1.0, 0.0, math.pi / 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _between(middle, degrees) < wanted else (low, middle)
    return math.tan((low + high) / 2.0) * math.sqrt(degrees)


def _between(angle: float, degrees: int) -> float:
    """P(|T| <= t) for t = tan(angle) sqrt(degrees)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees - 1, 2):  # 2/3, 4/5 … for odd degrees, 1/2, 3/4 … for even ones
        term *= (k - 1) / k * cosine * cosine
        total += term
    return 2.0 / math.pi * (angle + sine * total) if odd else sine * total


def _expanded(x: float, v: int) -> float:
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / float(v) ** power for power, term in enumerate(terms, 1))


def _checked(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence!r} must lie between 0 and 1, such as 0.95")
