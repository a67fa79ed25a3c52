"""Lengths-only datasets: prompts of made-up token ids whose lengths follow a stated distribution.

For engines that only look at lengths, and for load on a fleet without a licensed dataset. Everything follows from
dataset.seed. Ids are uniform in [3, vocab_size): below 3 stand the usual special tokens (unknown, start, end).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.datasets.dataset import Dataset, edges
from harness.spec import DatasetSpec, LengthSpec

#: When dataset.samples is not given: enough for stable tails, and 8 MB of prompts at 1,000 tokens each.
SAMPLES = 2000


def make_lengths(spec: DatasetSpec, vocab_size: int) -> Dataset:
    count = spec.samples or SAMPLES
    rng = np.random.default_rng(spec.seed)
    inputs = draw_lengths(spec.input_tokens, count, rng)
    outputs = draw_lengths(spec.output_tokens, count, rng)
    offsets = edges(inputs)
    prompts = rng.integers(3, vocab_size, int(offsets[-1]), dtype=np.int32)
    return Dataset(f"lengths ({count} samples, seed {spec.seed})", prompts, offsets, outputs.astype(np.int32))


def draw_lengths(spec: LengthSpec, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Lognormal with shape `sigma`, clipped to [min, max] and scaled until the mean of these very lengths is `mean`."""
    shape = np.exp(spec.sigma * rng.standard_normal(count))

    def scaled(log_scale: float) -> npt.NDArray[np.float64]:
        return np.asarray(np.clip(np.exp(log_scale) * shape, spec.min, spec.max), np.float64)

    # the clipped mean grows with the scale; ±60 in the logarithm reaches both ends of any shape that fits a float
    low, high = -60.0, 60.0
    for _ in range(80):
        middle = (low + high) / 2
        if scaled(middle).mean() < spec.mean:
            low = middle
        else:
            high = middle
    return np.clip(_round_keeping_sum(scaled(high)), spec.min, spec.max)


def _round_keeping_sum(lengths: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Whole tokens whose sum is off by less than one: round where the running sum crosses the next whole number."""
    total = np.floor(np.cumsum(lengths) + 0.5)
    return np.diff(total, prepend=0.0).astype(np.int64)
