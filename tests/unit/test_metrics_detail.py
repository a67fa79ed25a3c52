"""The SLA in full: shares counted exactly, percentiles as the snapshot shows them, and TTFT taken apart sample by sample."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from pace_kit import times_slower

from harness.metrics.detail import latency_detail
from harness.metrics.parts import NAMES, SPLIT_NAMES, TtftParts
from harness.metrics.shares import OverShares
from harness.metrics.sla import SlaWatch
from harness.wire.attempt import SAMPLE_DTYPE


def ints(column: bytes) -> list[int]:
    return np.frombuffer(column, "<i4").tolist()


def watched(limit_ms: float | None = 2000.0, n_slots: int = 4) -> SlaWatch:
    """Replica 3 gives 2 % of its 2,500 samples at 5 s, all else takes 1 s."""
    watch = SlaWatch(limit_ms, n_slots, 60.0)
    slots = np.arange(10_000) % n_slots
    values = np.full(10_000, 1000.0)
    values[np.flatnonzero(slots == 3)[:50]] = 5000.0
    watch.add(slots, values, 100.0)
    return watch


# --- histograms, percentiles, shares -----------------------------------------------------------------------


def test_histograms_are_trimmed_to_their_cells_and_hold_every_sample() -> None:
    detail = latency_detail(watched(), 100.0, [])
    assert len(detail.edges_ms) == len(detail.window) + 1 == len(detail.whole) + 1
    assert sum(detail.window) == sum(detail.whole) == detail.window_n == detail.whole_n == 10_000
    assert detail.window[0] == 9950
    assert detail.window[-1] == 50
    assert detail.edges_ms[0] <= 1000 < detail.edges_ms[1]
    assert detail.edges_ms[-2] <= 5000 < detail.edges_ms[-1]


def test_a_percentile_with_too_few_samples_is_missing() -> None:
    watch = SlaWatch(None, 2, 60.0)
    nothing = latency_detail(watch, 0.0, [])
    assert (nothing.edges_ms, nothing.window_ms, nothing.whole_n, nothing.over_window) == ([], {}, 0, b"")
    for n, shown in ((19, []), (81, ["p50", "p90"]), (900, ["p50", "p90", "p95", "p99"])):
        watch.add(np.zeros(n, int), np.full(n, 7.0), 1.0)
        assert list(latency_detail(watch, 1.0, []).window_ms) == shown
    assert latency_detail(watch, 1.0, []).whole_ms["p99"] == pytest.approx(7.0, rel=0.02)


def test_samples_over_the_limit_are_told_per_replica_in_the_window_and_in_the_attempt() -> None:
    watch = watched()
    watch.add(np.array([0, 3]), np.array([2000.0, 2000.1]), 140.0)
    detail = latency_detail(watch, 140.0, [])
    assert ints(detail.over_window) == ints(detail.over_whole) == [0, 0, 0, 51]  # the limit itself holds
    assert ints(detail.samples_whole) == [2501, 2500, 2500, 2501]
    later = latency_detail(watch, 170.0, [])
    assert ints(later.over_window) == [0, 0, 0, 1]
    assert ints(later.over_whole) == [0, 0, 0, 51]
    assert (later.window_n, later.whole_n) == (2, 10_002)


def test_without_a_limit_the_tail_is_what_lies_above_the_windows_p99() -> None:
    watch = SlaWatch(None, 2, 60.0)
    watch.add(np.zeros(2000, int), np.full(2000, 10.0), 1.0)
    watch.add(np.ones(10, int), np.full(10, 300.0), 1.0)
    detail = latency_detail(watch, 1.0, [])
    assert ints(detail.over_window) == [0, 10]
    assert detail.over_whole == b""


def test_p99_without_a_replica_is_that_of_the_others() -> None:
    watch = SlaWatch(2000.0, 4, 60.0)
    slots = np.arange(20_000) % 4
    watch.add(slots, np.where(slots == 3, 3000.0, 1000.0), 1.0)
    detail = latency_detail(watch, 1.0, [3])
    assert detail.window_ms["p99"] == pytest.approx(3000, rel=0.02)
    assert detail.without_p99_ms == pytest.approx(1000, rel=0.02)
    assert math.isnan(latency_detail(watch, 1.0, []).without_p99_ms)
    assert math.isnan(latency_detail(watch, 1.0, [0, 1, 2, 3]).without_p99_ms)


def test_shares_count_neither_what_was_never_dispatched_nor_what_has_no_time() -> None:
    shares = OverShares(10.0, 2, 60.0)
    shares.add(np.array([-1, 0, 1]), np.array([99.0, np.nan, 99.0]), 0.0)
    assert shares.samples.tolist() == shares.whole.tolist() == shares.window.tolist() == [0, 1]
    shares.reset()
    assert shares.samples.tolist() == shares.window.tolist() == [0, 0]


# --- the parts of TTFT -------------------------------------------------------------------------------------


def rows(n: int, **fields: Any) -> np.ndarray:
    """Scheduled at 0, issued at 1 ms, dispatched at 3 ms, 5 ms in the queue, 20 ms of prefill, the first token at 30 ms."""
    made = np.zeros(n, SAMPLE_DTYPE)
    told = {"issued_ns": 1_000_000, "dispatched_ns": 3_000_000, "first_ns": 30_000_000, "queue_us": 5000, "prefill_us": 20_000}
    for name, value in (told | fields).items():
        made[name] = value
    return made


def test_the_parts_add_up_to_ttft() -> None:
    parts = TtftParts(60.0)
    parts.add(rows(1000), 1.0)
    told, n, tail_n = parts.figures(1.0)
    assert (n, tail_n) == (1000, 10)
    assert [part.name for part in told] == list(NAMES)
    for part, ms in zip(told, (1, 2, 5, 20, 2), strict=True):
        assert (part.mean_ms, part.p50_ms, part.p99_ms, part.tail_ms) == pytest.approx((ms, ms, ms, ms), abs=1e-4)


#: Prefilled at 28 ms; then 4 ms until a decode replica has a place, 2 ms of transfer and 9 ms for the step.
SPLIT = {"prefilled_ns": 28_000_000, "first_ns": 43_000_000, "transfer_us": 2000}


def test_with_split_roles_the_parts_add_up_too() -> None:
    parts = TtftParts(60.0, split=True)
    parts.add(rows(1000, **SPLIT), 1.0)
    told, n, _ = parts.figures(1.0)
    assert n == 1000
    assert [part.name for part in told] == list(SPLIT_NAMES)
    assert [part.mean_ms for part in told] == pytest.approx([1, 2, 5, 20, 13, 2, 0], abs=1e-4)
    assert sum(part.mean_ms for part in told) == pytest.approx(43, abs=1e-3)


def test_with_split_roles_samples_that_were_prefilled_again_after_their_first_token_are_left_out() -> None:
    parts = TtftParts(60.0, split=True)
    parts.add(rows(5, **(SPLIT | {"prefilled_ns": 50_000_000})), 1.0)
    parts.add(rows(5, **(SPLIT | {"prefilled_ns": -1})), 1.0)
    assert parts.figures(1.0)[1] == 0


def test_the_tail_is_what_the_slowest_one_per_cent_spent() -> None:
    parts = TtftParts(60.0)
    parts.add(rows(1980), 1.0)
    parts.add(rows(20, dispatched_ns=400_000_000, first_ns=430_000_000), 2.0)
    told, n, tail_n = parts.figures(2.0)
    head_queue = told[1]
    assert (n, tail_n) == (2000, 20)
    assert head_queue.tail_ms == pytest.approx(399, abs=0.01)
    assert head_queue.p50_ms == pytest.approx(2, abs=0.01)
    assert told[3].tail_ms == pytest.approx(20, abs=0.01)


def test_few_samples_have_no_tail_and_none_have_no_figures() -> None:
    parts = TtftParts(60.0)
    told, n, tail_n = parts.figures(0.0)
    assert (n, tail_n) == (0, 0)
    assert math.isnan(told[0].mean_ms)
    parts.add(rows(999), 5.0)
    told, n, tail_n = parts.figures(5.0)
    assert (n, tail_n) == (999, 0)
    assert told[0].p50_ms == pytest.approx(1, abs=1e-4)
    assert math.isnan(told[0].p99_ms)
    assert math.isnan(told[0].tail_ms)


def test_durations_that_a_replica_did_not_tell_or_told_too_long_leave_other_at_zero_or_more() -> None:
    parts = TtftParts(60.0)
    parts.add(rows(10, queue_us=-1, prefill_us=-1), 1.0)
    assert parts.figures(1.0)[0][4].mean_ms == pytest.approx(27, abs=1e-3)
    parts.add(rows(10, prefill_us=900_000), 3.0)
    assert parts.figures(3.0)[0][4].mean_ms == pytest.approx(27 / 2, abs=1e-3)


def test_samples_without_a_split_are_left_out() -> None:
    parts = TtftParts(60.0)
    parts.add(rows(5, first_ns=-1), 1.0)
    parts.add(rows(5, dispatched_ns=40_000_000), 1.0)  # dispatched again after its first token
    parts.add(rows(5, dispatched_ns=-1), 1.0)
    assert parts.figures(1.0)[1] == 0


def test_the_ring_keeps_the_window_and_beyond_its_size_the_newest() -> None:
    parts = TtftParts(60.0, capacity=1000)
    for second in range(100):
        parts.add(rows(7, issued_ns=second * 10_000, dispatched_ns=3_000_000), float(second))
    assert parts.figures(99.0)[1] == 7 * 61
    assert parts.figures(1000.0)[1] == 0
    for second in range(1000, 1010):
        parts.add(rows(300), float(second))
    assert parts.figures(1009.0)[1] == 1000
    parts.add(rows(2500), 1010.0)
    assert parts.figures(1010.0)[1] == 1000


def test_figures_are_kept_for_a_second() -> None:
    parts = TtftParts(60.0)
    parts.add(rows(10), 1.0)
    first = parts.figures(1.0)
    parts.add(rows(10), 1.5)
    assert parts.figures(1.5) is first
    assert parts.figures(2.1)[1] == 20


def test_a_window_of_240_000_samples_is_taken_apart_in_well_under_the_50_ms_an_answer_may_take() -> None:
    random = np.random.default_rng(1)
    parts = TtftParts(60.0)
    for tick in range(600):
        some = rows(400)
        some["first_ns"] += random.integers(0, 10**9, 400)
        some["queue_us"] = random.integers(0, 10**4, 400)
        parts.add(some, tick / 10)
    spent = []
    for asked_s in (59.9, 61.0, 62.1):
        began = time.process_time()
        assert parts.figures(asked_s)[1] > 230_000
        spent.append(time.process_time() - began)
    assert min(spent) < 0.05 * times_slower()
