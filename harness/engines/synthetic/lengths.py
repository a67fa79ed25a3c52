"""Clipped lognormal lengths whose mean holds after clipping: the output lengths a synthetic replica draws.

The location is solved once, on a closed form of the clipped mean; a draw for a sample is a pure function of the
sample's index and a seed, so every replica and every try gives the same sample the same length.
"""

from __future__ import annotations

from functools import lru_cache
from math import erf, exp, log, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from harness.engines.synthetic.tokens import mix64
from harness.spec import LengthSpec

_NORMAL = NormalDist()


def _cdf(z: float) -> float:
    return 0.5 * (1 + erf(z / sqrt(2)))


def clipped_mean(location: float, sigma: float, low: float, high: float) -> float:
    """Mean of exp(location + sigma*Z) clipped to [low, high]."""
    if sigma == 0:
        return min(max(exp(location), low), high)
    a, b = (log(low) - location) / sigma, (log(high) - location) / sigma
    inside = exp(location + sigma * sigma / 2) * (_cdf(b - sigma) - _cdf(a - sigma))
    return low * _cdf(a) + inside + high * (1 - _cdf(b))


@lru_cache(maxsize=64)
def location_of(spec: LengthSpec) -> float:
    """The lognormal's location for which the clipped mean is `spec.mean`."""
    low, high = log(spec.min) - 12 * spec.sigma - 1, log(spec.max) + 12 * spec.sigma + 1
    for _ in range(100):
        middle = (low + high) / 2
        if clipped_mean(middle, spec.sigma, spec.min, spec.max) < spec.mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def length_of(spec: LengthSpec, index: int, seed: int) -> int:
    """The length of sample `index`: the same wherever it is asked for."""
    uniform = ((mix64(mix64(seed) ^ index) >> 11) + 0.5) / 2**53
    tokens = round(exp(location_of(spec) + spec.sigma * _NORMAL.inv_cdf(uniform)))
    return min(max(tokens, spec.min), spec.max)


def draw_lengths(spec: LengthSpec, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` independent lengths, for virtual-time runs."""
    tokens = np.rint(np.exp(location_of(spec) + spec.sigma * rng.standard_normal(count)))
    return np.clip(tokens, spec.min, spec.max).astype(np.int64)
