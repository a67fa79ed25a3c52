"""Intervals cover what they say: against known values, and by drawing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.analysis.intervals import (
    difference_interval,
    percentile_interval,
    percentile_intervals,
    percentile_ranks,
    rate_interval,
    share_interval,
    student_t,
)


@pytest.mark.parametrize(
    ("n", "q", "places"),
    [
        (5, 0.5, None),  # 2 x 0.5^5 is more than 0.05
        (6, 0.5, (0, 5)),
        (10, 0.5, (1, 8)),  # the 2nd and the 9th
        (20, 0.5, (5, 14)),
        (100, 0.5, (39, 60)),  # the 40th and the 61st
        (367, 0.99, None),
        (3_687, 0.999, None),
    ],
)
def test_a_percentiles_ranks_are_those_of_the_tables(n: int, q: float, places: tuple[int, int] | None) -> None:
    assert percentile_ranks(n, q) == places


@pytest.mark.parametrize("n", [368, 1_000, 12_000])
def test_a_p99s_ranks_leave_at_most_half_of_the_error_on_each_side(n: int) -> None:
    ranks = percentile_ranks(n, 0.99)
    assert ranks is not None
    low, high = ranks[0] + 1, ranks[1] + 1

    def at_most(k: int) -> float:
        logs = [
            math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(0.99) + (n - i) * math.log(0.01)
            for i in range(k + 1)
        ]
        return math.fsum(map(math.exp, logs))

    assert at_most(low - 1) <= 0.025 < at_most(low)
    assert at_most(high - 2) < 0.975 <= at_most(high - 1)


def test_ranks_of_millions_are_those_of_the_normal_approximation() -> None:
    n = 2_400_000
    ranks = percentile_ranks(n, 0.99)
    assert ranks is not None
    sd = math.sqrt(n * 0.99 * 0.01)
    assert ranks[0] == pytest.approx(n * 0.99 - 1.96 * sd, abs=3)
    assert ranks[1] == pytest.approx(n * 0.99 + 1.96 * sd, abs=3)


@pytest.mark.parametrize(("q", "n"), [(0.5, 40), (0.9, 200), (0.99, 1_000)])
def test_a_percentiles_interval_covers_the_true_one_at_least_as_often_as_it_says(q: float, n: int) -> None:
    rng = np.random.default_rng(11)
    true = -math.log(1 - q)  # of the exponential
    hits = 0
    for _ in range(500):
        interval = percentile_interval(rng.exponential(size=n), q)
        assert interval is not None
        hits += interval[0] <= true <= interval[1]
    assert hits / 500 >= 0.93
    assert hits < 500


def test_values_that_do_not_exist_are_left_out() -> None:
    values = [*map(float, range(20)), math.nan, math.nan]
    assert percentile_interval(values, 0.5) == (5.0, 14.0)
    assert percentile_intervals([], [0.5, 0.99]) == [None, None]


@pytest.mark.parametrize(
    ("p", "degrees", "value"),
    [
        (0.975, 1, 12.7062047), (0.975, 2, 4.30265273), (0.975, 3, 3.18244631), (0.975, 4, 2.77644511), (0.975, 9, 2.26215716),
        (0.975, 19, 2.09302405), (0.995, 10, 3.16927267), (0.95, 30, 1.69726089), (0.975, 120, 1.97993041),
        (0.975, 121, 1.97976376), (0.975, 1_000, 1.96233908), (0.5, 7, 0.0), (0.025, 4, -2.77644511),
    ],
)  # fmt: skip
def test_students_t_is_that_of_the_tables(p: float, degrees: int, value: float) -> None:
    assert student_t(p, degrees) == pytest.approx(value, abs=2e-7)


def test_a_rates_interval_covers_the_true_rate() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(500):
        interval = rate_interval(rng.poisson(200.0, 20).astype(float))
        assert interval is not None
        hits += interval[0] <= 200.0 <= interval[1]
    assert 0.92 <= hits / 500 <= 0.98
    assert rate_interval([5.0]) is None
    assert rate_interval([5.0, 5.0, 5.0]) == (5.0, 5.0)


def test_a_differences_interval_keeps_the_uneven_sides_and_covers() -> None:
    assert difference_interval(10.0, (7.0, 11.0), 20.0, (16.0, 23.0)) == pytest.approx(
        (10 - math.hypot(4, 1), 10 + math.hypot(3, 3))
    )
    assert difference_interval(1.0, None, 2.0, (1.5, 2.5)) is None
    assert difference_interval(None, (1.0, 2.0), 2.0, (1.5, 2.5)) is None
    rng = np.random.default_rng(5)
    true, hits = -math.log(0.1) * (1.2 - 1.0), 0
    for _ in range(400):
        sets = rng.exponential(1.0, 600), rng.exponential(1.2, 900)
        (a, b) = (float(np.sort(one)[int(len(one) * 0.9)]) for one in sets)
        interval = difference_interval(a, percentile_interval(sets[0], 0.9), b, percentile_interval(sets[1], 0.9))
        assert interval is not None
        hits += interval[0] <= true <= interval[1]
    assert hits / 400 >= 0.93


def test_a_shares_interval_is_wilsons() -> None:
    assert share_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)  # Newcombe 1998, table I
    assert share_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert share_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert share_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert share_interval(0, 0) is None


def test_what_is_no_quantile_confidence_or_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"quantile 1\.0"):
        percentile_ranks(100, 1.0)
    with pytest.raises(ValueError, match="confidence 95"):
        percentile_interval([1.0, 2.0], 0.5, 95)
    with pytest.raises(ValueError, match="5 of 3"):
        share_interval(5, 3)
