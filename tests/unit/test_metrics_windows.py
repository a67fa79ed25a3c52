"""Histograms, windows, exact limits and rates: what is shown is what was measured, within the grid's error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.metrics.histogram import CELLS, EDGES_MS, FIRST_MS, cells_of, exact_percentile, histogram_of, percentiles, value_at
from harness.metrics.rates import RateWindow
from harness.metrics.sla import SlaWatch
from harness.metrics.windows import LatencyWindows, LimitWatch


def lognormal(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(5.0, 0.8, n)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99, 0.999])
def test_a_quantile_is_within_one_per_cent_of_the_sorted_one(q: float) -> None:
    values = lognormal(50_000)
    assert value_at(np.cumsum(histogram_of(values)), q) == pytest.approx(float(np.quantile(values, q)), rel=0.011)


def test_an_exact_percentile_is_the_sample_that_loadgen_picks() -> None:
    values = lognormal(1000)
    assert exact_percentile(np.append(values, np.nan), 0.99) == sorted(values)[990]
    assert exact_percentile(values[:1], 0.99) == values[0]
    assert math.isnan(exact_percentile(values[:0], 0.99))


def test_values_lie_in_the_cell_whose_edges_enclose_them() -> None:
    values = lognormal(2_000)
    cells = cells_of(values)
    assert (EDGES_MS[cells] <= values * (1 + 1e-12)).all()
    assert (values <= EDGES_MS[cells + 1] * (1 + 1e-12)).all()


def test_values_outside_the_grid_fall_into_its_ends() -> None:
    cells = cells_of(np.array([0.0, -5.0, FIRST_MS / 10, 1e12]))
    assert cells.tolist() == [0, 0, 0, CELLS - 1]


@pytest.mark.parametrize(("n", "shown"), [(19, 0), (20, 1), (99, 1), (100, 2), (999, 2), (1000, 3), (9999, 3), (10000, 4)])
def test_a_quantile_needs_ten_samples_beyond_it(n: int, shown: int) -> None:
    p = percentiles(histogram_of(lognormal(n)))
    values = [p.p50, p.p90, p.p99, p.p99_9]
    assert p.n == n
    assert [not math.isnan(value) for value in values] == [True] * shown + [False] * (4 - shown)


def test_the_window_forgets_and_the_whole_attempt_does_not() -> None:
    windows = LatencyWindows(4, window_s=60.0)
    slots = np.arange(1000) % 4
    windows.add(slots, np.full(1000, 10.0), now_s=3.0)
    windows.add(slots, np.full(1000, 1000.0), now_s=50.0)
    assert windows.window().n == 2000
    windows.advance(70.0)
    assert windows.window().n == 1000
    assert windows.window().p50 == pytest.approx(1000.0, rel=0.02)
    assert windows.whole().n == 2000
    windows.advance(10_000.0)
    assert windows.window().n == 0
    assert windows.whole().n == int(windows.whole_counts.sum()) == 2000


def test_window_sums_equal_a_recount_after_any_order_of_adds_and_gaps() -> None:
    rng, windows = np.random.default_rng(3), LatencyWindows(8, window_s=12.0)
    kept: list[tuple[float, np.ndarray]] = []
    now_s = 0.0
    for _ in range(60):
        now_s += float(rng.choice([0.1, 0.9, 3.0, 20.0]))
        values = rng.lognormal(3, 1, 30)
        windows.add(rng.integers(0, 8, 30), values, now_s)
        kept.append((now_s, values))
    recent = np.concatenate([values for at, values in kept if math.floor(at) > math.floor(now_s) - 12])
    assert windows.window_counts.tolist() == histogram_of(recent).tolist()
    assert int(windows.replica_counts().sum()) == len(recent)


def test_replica_quantiles_tell_replicas_apart_and_are_nan_without_samples() -> None:
    rng, windows = np.random.default_rng(5), LatencyWindows(5, window_s=60.0)
    by_slot = {0: rng.lognormal(4, 0.5, 2000), 1: rng.lognormal(5, 0.5, 2000), 3: np.array([7.0])}
    for slot, values in by_slot.items():
        windows.add(np.full(len(values), slot), values, 1.0)
    for q in (0.5, 0.99):
        quantiles = windows.replica_quantile(q)
        assert quantiles.dtype == np.float32
        for slot, values in by_slot.items():
            assert quantiles[slot] == pytest.approx(float(np.quantile(values, q)), rel=0.03)
        assert np.isnan(quantiles[[2, 4]]).all()


def test_samples_without_a_value_or_a_replica_are_left_out() -> None:
    windows = LatencyWindows(2, window_s=60.0)
    windows.add(np.array([0, 1, -1]), np.array([1.0, np.nan, 2.0]), 0.0)
    windows.add(np.array([], dtype=np.int32), np.array([]), 0.0)
    assert windows.whole().n == 1


def test_reset_starts_a_new_attempt() -> None:
    windows = LatencyWindows(2, window_s=60.0)
    windows.add(np.array([0]), np.array([1.0]), 500.0)
    windows.reset()
    windows.add(np.array([1]), np.array([1.0]), 2.0)  # its clock may start again
    assert windows.window().n == windows.whole().n == 1


def test_over_limit_counts_are_exact_and_the_limit_itself_is_not_over() -> None:
    watch = LimitWatch(80.0)
    watch.add(np.array([79.999999, 80.0, 80.000001, 500.0, np.nan]))
    assert (watch.over, watch.total) == (2, 4)


def test_a_limit_watch_says_what_early_stopping_still_allows() -> None:
    watch = LimitWatch(80.0)
    assert (watch.allowed, watch.missing) == (-1, 459)
    watch.add(np.full(600, 10.0))
    assert (watch.allowed, watch.missing) == (0, 0)
    watch.add(np.array([99.0]))
    assert (watch.allowed, watch.missing) == (0, 61)
    watch.add(np.full(61, 10.0))
    assert (watch.allowed, watch.missing) == (1, 0)


def test_without_a_limit_nothing_is_over() -> None:
    watch = LimitWatch(None)
    watch.add(np.full(1000, 1e9))
    assert (watch.over, watch.total) == (0, 1000)


def test_an_sla_view_carries_limit_budget_and_projection() -> None:
    watch = SlaWatch(500.0, n_slots=4, window_s=60.0)
    assert watch.view(0.0, 1000.0).needed == 459
    values = lognormal(3000)
    watch.add(np.arange(3000) % 4, values, 10.0)
    view = watch.view(11.0, samples_left=3000.0)
    assert view.over == int((values > 500.0).sum())
    assert view.over_allowed == 17
    assert view.needed == 0
    assert view.projected_low_ms < view.projected_ms < view.projected_high_ms
    watch.reset()
    assert watch.view(12.0, 0.0).whole.n == 0


def test_a_rate_is_taken_over_the_window_only() -> None:
    rate = RateWindow(10.0)
    assert math.isnan(rate.rate())
    for t in range(20):
        rate.add(float(t), 100.0 * t)
    for t in range(20, 40):
        rate.add(float(t), 2000.0 + 300.0 * (t - 20))
    assert rate.rate() == pytest.approx(300.0)


def test_slope_follows_a_gauge_through_noise() -> None:
    rng, backlog = np.random.default_rng(2), RateWindow(60.0)
    for t in range(60):
        backlog.add(float(t), 50.0 + 4.0 * t + float(rng.normal(0, 5)))
    assert backlog.slope() == pytest.approx(4.0, abs=0.2)
    backlog.reset()
    assert math.isnan(backlog.slope())
