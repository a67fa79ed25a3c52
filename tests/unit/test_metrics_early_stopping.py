"""LoadGen's early-stopping rule, against its published table, a direct sum of the binomial, and the clock."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from harness.metrics.early_stopping import allowed_over, needed
from harness.metrics.histogram import histogram_of
from harness.metrics.projection import project

PERCENTILES = (0.90, 0.95, 0.97, 0.99, 0.999)
TABLE = {
    0: (44, 90, 152, 459, 4603),
    1: (64, 130, 219, 662, 6636),
    2: (81, 165, 277, 838, 8403),
    5: (127, 259, 433, 1307, 13105),
    10: (197, 398, 667, 2010, 20140),
}


def probability_of_at_most(t: int, n: int, p: float) -> float:
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(t + 1))


@pytest.mark.parametrize("over", TABLE)
def test_samples_needed_match_the_table_of_loadgen(over: int) -> None:
    assert tuple(needed(over, p) for p in PERCENTILES) == TABLE[over]


@pytest.mark.parametrize("over", TABLE)
def test_the_allowance_changes_exactly_where_the_table_says(over: int) -> None:
    for percentile, n in zip(PERCENTILES, TABLE[over], strict=True):
        assert allowed_over(n, percentile) == over
        assert allowed_over(n - 1, percentile) == over - 1


@pytest.mark.parametrize("n", [44, 100, 457, 700, 900])
@pytest.mark.parametrize("percentile", [0.9, 0.97, 0.99])
def test_the_allowance_is_the_largest_that_the_binomial_permits(n: int, percentile: float) -> None:
    t = allowed_over(n, percentile)
    assert t < 0 or probability_of_at_most(t, n, 1 - percentile) <= 0.01
    assert probability_of_at_most(t + 1, n, 1 - percentile) > 0.01


@pytest.mark.parametrize("n", [5_000, 123_456, 2_400_000, 10_000_000])
def test_needed_and_allowed_are_inverse_to_each_other(n: int) -> None:
    t = allowed_over(n)
    assert needed(t) <= n < needed(t + 1)


def test_no_samples_allow_nothing() -> None:
    assert allowed_over(0) == -1
    assert allowed_over(458) == -1


def test_a_percentile_in_per_cent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"such as 0\.99"):
        allowed_over(1000, 99.0)


def test_ten_million_samples_are_judged_within_milliseconds() -> None:
    def best_ms(calls: int) -> float:
        took = []
        for _ in range(calls):
            start = time.perf_counter()
            allowed_over(10_000_000)
            took.append((time.perf_counter() - start) * 1e3)
        return min(took)

    assert best_ms(20) < 1.0


def stationary(n: int, seed: int, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(5.0, 0.8, n) * scale


def test_a_projection_interval_covers_the_final_p99_about_as_often_as_it_claims() -> None:
    covered = 0
    for seed in range(100):
        values = stationary(12_000, seed)
        projection = project(histogram_of(values[:4_000]), histogram_of(values[2_000:4_000]), samples_left=8_000)
        covered += projection.low_ms <= float(np.quantile(values, 0.99)) <= projection.high_ms
    assert covered >= 88


def test_a_fleet_that_has_become_slower_moves_the_projection_beyond_the_measured_p99() -> None:
    early, late = stationary(8_000, 1), stationary(2_000, 2, scale=2.0)
    whole = histogram_of(np.concatenate([early, late]))
    measured = project(whole, histogram_of(late), samples_left=0)
    projected = project(whole, histogram_of(late), samples_left=10_000)
    final = float(np.quantile(np.concatenate([early, late, stationary(10_000, 3, scale=2.0)]), 0.99))
    assert projected.value_ms > measured.value_ms * 1.15
    assert projected.value_ms == pytest.approx(final, rel=0.08)


def test_at_the_end_the_interval_closes_on_the_measured_value() -> None:
    counts = histogram_of(stationary(5_000, 4))
    projection = project(counts, counts, samples_left=0)
    assert projection.low_ms == projection.value_ms == projection.high_ms


def test_too_few_samples_project_nothing() -> None:
    counts = histogram_of(stationary(999, 4))
    assert math.isnan(project(counts, counts, samples_left=1000).value_ms)


def test_an_almost_empty_window_falls_back_on_the_whole_attempt() -> None:
    whole = histogram_of(stationary(5_000, 4))
    projection = project(whole, histogram_of(np.array([9_000.0])), samples_left=5_000)
    assert projection.value_ms == pytest.approx(project(whole, whole, 0).value_ms, rel=0.001)
