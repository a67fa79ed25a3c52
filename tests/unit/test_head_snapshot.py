"""The snapshot that crosses to screens: every column decodes to one entry a slot, with what the head knows of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from head_kit import Fleet, a_spec

from harness.head.live import Live
from harness.head.snapshot import SnapshotBuilder, View, timeline_columns
from harness.metrics.stragglers import Judgement, SlowReplica
from harness.wire import control, states
from harness.wire.attempt import SAMPLE_DTYPE, Batch
from harness.wire.frames import encode

N = 6


def a_view(**changes: Any) -> View:
    fields: dict[str, Any] = {
        "seq": 1, "head_epoch": 2, "phase": "READY", "phase_since_unix": 5.0, "attempt": None, "barrier": None,
        "judgement": None, "straggler_note": "",
        "mechanism": "", "paused": False, "policy": "flag", "controller": "", "synthetic": True,
        "head_cpu_percent": 1.0, "driver_cpu_percent": 2.0, "target_qps": 10.0,
    }  # fmt: skip
    return View(**{**fields, **changes})


class Bridge:
    def __init__(self) -> None:
        spec = a_spec(3, 2, limits={"ttft_p99_ms": 2000, "tpot_p99_ms": 80})
        self.fleet = Fleet(spec)
        self.live = Live(spec, N)
        self.builder = SnapshotBuilder(self.fleet.roster, self.live)

    def snapshot(self, **view: Any) -> control.FleetSnapshot:
        """As a console gets it: over the wire."""
        built = self.builder.build(a_view(**view), self.fleet.clock())
        received = control.TO_CONSOLE.decode(encode(built))
        assert isinstance(received, control.FleetSnapshot)
        return received


@pytest.fixture
def bridge() -> Bridge:
    return Bridge()


def floats(column: bytes) -> np.ndarray:
    return np.frombuffer(column, "<f4")


def ints(column: bytes) -> list[int]:
    return np.frombuffer(column, "<i4").tolist()


def ttfts_of(rows: np.ndarray) -> bytes:
    """First tokens are told as they come; here together with their samples."""
    return np.column_stack([rows["slot"], (rows["first_ns"] - rows["scheduled_ns"]) // 1000]).astype("<i4").tobytes()


def a_batch(rows: np.ndarray, **changes: Any) -> Batch:
    fields: dict[str, Any] = {
        "now_ns": 20_000_000_000, "started_unix": 1.0, "issued": 9, "scheduled": 10, "completed": 5, "failed": 0,
        "redispatched": 1, "held": 2, "in_flight": 4, "stale": 0, "target_qps": 10.0, "cpu_s": 1.0, "planned": 0,
        "ttfts": ttfts_of(rows), "rows": rows.tobytes(),
        "outstanding": np.arange(N, dtype="<i4").tobytes(), "oldest_ms": (500 * np.arange(N, dtype="<i4")).tobytes(),
    }  # fmt: skip
    return Batch(**{**fields, **changes})


def rows_of(slot: int, ttft_ms: float, tpot_ms: float, count: int) -> np.ndarray:
    rows = np.zeros(count, SAMPLE_DTYPE)
    rows["slot"] = slot
    rows["n_tokens"] = 11
    rows["first_ns"] = int(ttft_ms * 1e6)
    rows["done_ns"] = rows["first_ns"] + int(10 * tpot_ms * 1e6)
    return rows


def test_every_column_has_one_entry_of_its_type_for_every_slot(bridge: Bridge) -> None:
    snapshot = bridge.snapshot()
    for name in control.FLOAT_COLUMNS:
        assert len(floats(getattr(snapshot, name))) == N, name
    for name in control.INT_COLUMNS:
        assert len(ints(getattr(snapshot, name))) == N, name
    assert len(snapshot.state_code) == N


def test_states_travel_as_codes_in_roster_order(bridge: Bridge) -> None:
    bridge.fleet.ready(0, 1, 4)
    bridge.fleet.roster.move(bridge.fleet[1], states.DRAINING, "")
    snapshot = bridge.snapshot()
    assert [states.REPLICA_STATES[code] for code in snapshot.state_code] == bridge.fleet.states()
    assert snapshot.counts == {"READY": 2, "DRAINING": 1, "NEW": 3}
    assert snapshot.roster_version == bridge.fleet.roster.version


def test_what_a_replica_said_is_in_its_columns_and_what_nobody_said_is_unknown(bridge: Bridge) -> None:
    bridge.fleet.ready(2)
    bridge.fleet.clock.passes(4)
    bridge.fleet.beat(2, running=7, waiting=3, kv_use=0.5, tokens_out=800, steps=40, step_ms=25.0, batch=6.5)
    bridge.fleet.clock.passes(1.5)
    snapshot = bridge.snapshot()
    assert ints(snapshot.running) == [0, 0, 7, 0, 0, 0]
    assert ints(snapshot.waiting) == [0, 0, 3, 0, 0, 0]
    for name, value in {"kv_use": 0.5, "tokens_s": 800, "step_ms": 25, "batch": 6.5, "beat_age_s": 1.5}.items():
        column = floats(getattr(snapshot, name))
        assert column[2] == pytest.approx(value), name
        assert np.isnan(np.delete(column, 2)).all(), name
    assert floats(snapshot.state_age_s)[2] == pytest.approx(5.5)


def test_a_replica_without_steps_has_no_step_time(bridge: Bridge) -> None:
    bridge.fleet.ready(0)
    bridge.fleet.beat(0, steps=0, step_ms=0.0)
    assert np.isnan(floats(bridge.snapshot().step_ms)[0])


def test_restarts_count_lives_after_the_first(bridge: Bridge) -> None:
    for life in "abc":
        bridge.fleet.ready(3, incarnation=life)
    bridge.fleet.ready(4)
    assert ints(bridge.snapshot().restarts) == [0, 0, 0, 2, 0, 0]


def test_latencies_outstanding_and_ages_come_from_the_drivers_batches(bridge: Bridge) -> None:
    now_s = bridge.fleet.clock()
    bridge.live.begin(10.0)
    bridge.live.take(a_batch(rows_of(1, ttft_ms=400, tpot_ms=20, count=200)), now_s)
    bridge.live.take(a_batch(rows_of(5, ttft_ms=3000, tpot_ms=90, count=100)), now_s)
    snapshot = bridge.snapshot()
    assert ints(snapshot.outstanding) == [0, 1, 2, 3, 4, 5]
    assert floats(snapshot.oldest_s).tolist() == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])
    ttft = floats(snapshot.ttft_p99_ms)
    assert ttft[[1, 5]].tolist() == pytest.approx([400, 3000], rel=0.05)
    assert np.isnan(ttft[[0, 2, 3, 4]]).all()
    assert floats(snapshot.tpot_p99_ms)[[1, 5]].tolist() == pytest.approx([20, 90], rel=0.05)
    assert (snapshot.ttft.limit_ms, snapshot.ttft.whole.n, snapshot.ttft.over) == (2000, 300, 100)
    assert (snapshot.tpot.limit_ms, snapshot.tpot.over) == (80, 100)


def test_between_attempts_the_loads_numbers_are_zero_and_latencies_stay(bridge: Bridge) -> None:
    bridge.live.take(a_batch(rows_of(1, 400, 20, 200)), bridge.fleet.clock())
    snapshot = bridge.snapshot()
    assert (snapshot.attempt, snapshot.issued, snapshot.in_flight, snapshot.backlog) == (0, 0, 0, 0)
    assert snapshot.ttft.whole.n == 200


def test_the_window_of_an_attempt_that_ended_stands_and_the_series_has_no_latency_then(bridge: Bridge) -> None:
    bridge.live.begin(10.0, 1)
    bridge.live.take(a_batch(rows_of(1, 400, 20, 2000)), bridge.fleet.clock())
    bridge.snapshot()
    bridge.live.tick_series(5.0, 6)
    bridge.live.end()
    bridge.fleet.clock.passes(600)
    snapshot = bridge.snapshot()
    assert snapshot.ttft.window.n == 2000
    assert floats(snapshot.ttft_p99_ms)[1] == pytest.approx(400, rel=0.05)
    bridge.live.tick_series(6.0, 6)
    assert np.isnan(bridge.live.series.ttft_p99_ms).tolist() == [False, True]
    bridge.live.begin(10.0, 2)
    bridge.fleet.clock.passes(1)
    assert bridge.snapshot().ttft.window.n == 0


def test_ramp_and_evictions_reach_the_screen(bridge: Bridge) -> None:
    snapshot = bridge.snapshot(evictions=2, ramp_to_qps=60.0, ramp_left_s=7.5)
    assert (snapshot.evictions, snapshot.ramp_to_qps, snapshot.ramp_left_s) == (2, 60.0, 7.5)
    assert bridge.snapshot().ramp_to_qps == 0


def test_the_slow_are_named_and_their_ratios_are_columns(bridge: Bridge) -> None:
    ratio, z = np.full(N, np.nan, np.float32), np.full(N, np.nan, np.float32)
    ratio[:4], z[:4] = [1, 1.25, 1, 1.1], [0, 9, 0, 4]
    bridge.fleet.ready(0, 1, 2, 3)
    bridge.fleet.clock.passes(60)
    slow = [SlowReplica(1, 1.25, 9, 0, "slow"), SlowReplica(3, 1.1, 4, 0, "slow")]
    snapshot = bridge.snapshot(judgement=Judgement(ratio, z, slow, slow_nodes=["node001"]))
    assert snapshot.slow == ["node000/gpu1", "node001/gpu1"]
    assert snapshot.slow_nodes == ["node001"]
    assert floats(snapshot.ratio)[1] == pytest.approx(1.25)
    assert np.isnan(floats(snapshot.z)[4:]).all()


def test_a_new_incarnation_is_not_shown_with_the_ratio_of_the_one_before(bridge: Bridge) -> None:
    ratio = np.ones(N, np.float32)
    bridge.fleet.ready(0, 1)
    bridge.fleet.clock.passes(60)
    bridge.fleet.roster.move(bridge.fleet[1], states.LOST, "recycled")
    bridge.fleet.ready(1)
    snapshot = bridge.snapshot(judgement=Judgement(ratio, ratio))
    assert np.isnan(floats(snapshot.ratio)[1])
    assert floats(snapshot.ratio)[0] == 1


def test_of_many_missing_twenty_are_named_and_all_are_counted() -> None:
    from harness.head.barrier import look

    spec = a_spec(8, 8)
    fleet = Fleet(spec)
    barrier = look(fleet.roster, spec.fleet.barrier, waited_s=0, why_no_node=lambda node: "no pod")
    snapshot = SnapshotBuilder(fleet.roster, Live(spec, 64)).build(a_view(barrier=barrier), fleet.clock())
    assert (len(snapshot.missing), snapshot.missing_total) == (20, 64)
    assert snapshot.missing[0] == "node000/gpu0: no pod"


def test_the_records_timeline_is_what_screens_got(bridge: Bridge) -> None:
    bridge.fleet.ready()
    bridge.fleet.beat(2, running=7, kv_use=0.25)
    snapshot = bridge.snapshot()
    columns = timeline_columns(snapshot)
    assert columns["running"].tolist() == ints(snapshot.running)
    assert columns["kv_use"][2] == pytest.approx(0.25)
    assert columns["state"].tolist() == list(snapshot.state_code)
    assert {len(column) for column in columns.values()} == {N}
