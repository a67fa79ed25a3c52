"""The reproduced Server schedule by itself; test_mlperf_loadgen compares it with the real one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.mlperf.rules import SEEDS_V61
from harness.mlperf.schedule import ServerSchedule


def test_due_times_do_not_depend_on_how_they_are_asked_for() -> None:
    whole = ServerSchedule(7, 1000.0).due_ns(0, 150_000)
    other = ServerSchedule(7, 1000.0)
    pieces = [other.due_ns(n, n + 10_000) for n in range(0, 150_000, 10_000)]
    assert np.concatenate(pieces).tolist() == whole.tolist()
    assert ServerSchedule(7, 1000.0).due_ns(149_999, 150_000)[0] == whole[-1]


def test_due_by_counts_the_queries_due_until_then() -> None:
    schedule = ServerSchedule(7, 1000.0)
    due = schedule.due_ns(0, 70_000)
    assert schedule.due_by(-1) == 0
    assert schedule.due_by(0) == 1
    for n in (1, 500, 65_535, 65_536, 69_000):
        assert schedule.due_by(int(due[n])) == n + 1
        assert schedule.due_by(int(due[n]) - 1) == n


def test_another_rate_is_the_same_pattern_scaled() -> None:
    slow, fast = ServerSchedule(7, 100.0).due_ns(0, 1000), ServerSchedule(7, 1000.0).due_ns(0, 1000)
    assert np.abs(slow / 10.0 - fast).max() < 2000  # one ns of rounding a query


def test_only_the_low_half_of_a_seed_counts_as_in_the_library() -> None:
    low = SEEDS_V61.schedule & 0xFFFFFFFF
    assert ServerSchedule(low, 10.0).due_ns(0, 50).tolist() == ServerSchedule(SEEDS_V61.schedule, 10.0).due_ns(0, 50).tolist()


def test_gaps_are_exponential_with_the_rate_asked() -> None:
    gaps_s = np.diff(ServerSchedule(3, 4000.0).due_ns(0, 400_001)) / 1e9
    assert float(gaps_s.mean()) == pytest.approx(1 / 4000.0, rel=0.01)
    assert float((gaps_s > math.log(2) / 4000.0).mean()) == pytest.approx(0.5, abs=0.005)


def test_minima_and_padding_decide_how_many_are_generated() -> None:
    schedule = ServerSchedule(7, 1000.0)
    by_time = schedule.generated(min_duration_ms=2000)
    assert int(schedule.due_ns(by_time - 1, by_time)[0]) >= 2_000_000_000 > int(schedule.due_ns(by_time - 2, by_time - 1)[0])
    assert schedule.generated(2000, min_queries=5000) == 5000
    assert schedule.generated(2000, multiple_of=4388) == 4388


@pytest.mark.parametrize("qps", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(qps: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        ServerSchedule(1, qps)
