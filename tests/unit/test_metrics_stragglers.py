"""The straggler verdict on simulated fleets: found when slow, silent when healthy, and never a whole fleet accused."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from harness.metrics.stragglers import Judgement, StragglerWatch
from harness.spec import StragglersSpec

SPEC = StragglersSpec()
BEAT_S = 1.5
BASE_MS, PER_SEQUENCE_MS, PER_PREFILL_MS = 15.0, 0.048, 0.016


@dataclass
class Fleet:
    """A toy fleet: step = (c0 + cd * batch + cp * prefill) * factor, with noise per beat and a little per replica.

    balance "equal": every replica gets the same share, so a slow one piles up a larger batch (Little's law).
    balance "least": least outstanding, all batches within a few of each other.
    """

    nodes: int = 64
    per_node: int = 8
    balance: str = "least"
    seed: int = 1
    factor: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.slots = [f"node{n:03d}/gpu{g}" for n in range(self.nodes) for g in range(self.per_node)]
        self.factor = np.ones(len(self.slots))
        self.silicon = self.rng.normal(1.0, 0.006, len(self.slots))
        self.mute = np.zeros(len(self.slots), dtype=bool)

    @property
    def n(self) -> int:
        return len(self.slots)

    def beats(self, watch: StragglerWatch, now_s: float) -> None:
        mean = 310.0
        if self.balance == "equal":
            # batch = rate * tokens * step(batch): the fixed point grows faster than the factor.
            load = mean / (BASE_MS + PER_SEQUENCE_MS * mean)
            pressed = np.minimum(self.factor * load, 0.9 / PER_SEQUENCE_MS)
            mean_batch = pressed * BASE_MS / (1 - np.minimum(pressed * PER_SEQUENCE_MS, 0.95))
            batch = np.minimum(self.rng.normal(mean_batch, np.sqrt(mean_batch)), 760.0)
        else:
            batch = mean + self.rng.normal(0, 3.0, self.n)
        prefill = np.maximum(self.rng.normal(260, 60, self.n), 0)
        step_ms = BASE_MS + PER_SEQUENCE_MS * batch + PER_PREFILL_MS * prefill
        step_ms = step_ms * self.factor * self.silicon * self.rng.normal(1.0, 0.02, self.n)
        for i in np.flatnonzero(~self.mute):
            steps = int(BEAT_S * 1000 / step_ms[i])
            watch.observe(int(i), now_s, steps, float(step_ms[i]), float(batch[i]), float(prefill[i]))

    def run(self, watch: StragglerWatch, windows: int, start_s: float = 0.0, grace_s: float = 0.0) -> list[Judgement]:
        """Heartbeats and a judgement each 1.5 s; one entry a closed window."""
        eligible = np.ones(self.n, dtype=bool)
        seen: list[Judgement] = []
        now_s, closed = start_s, watch.judge(start_s, eligible, grace_s > 0).windows
        while len(seen) < windows:
            now_s += BEAT_S
            judgement = watch.judge(now_s, eligible, now_s - start_s < grace_s)
            if judgement.windows > closed:
                closed = judgement.windows
                seen.append(judgement)
            self.beats(watch, now_s)
        self.now_s = now_s
        return seen


def flagged(judgement: Judgement) -> set[int]:
    return {replica.slot_index for replica in judgement.slow}


@pytest.mark.parametrize("balance", ["equal", "least"])
@pytest.mark.parametrize("slower", [1.10, 1.25, 1.60])
def test_two_slow_of_512_are_found_with_at_most_one_false_accusation(balance: str, slower: float) -> None:
    fleet = Fleet(balance=balance, seed=int(slower * 100))
    bad = {37, 402}
    fleet.factor[list(bad)] = slower
    last = fleet.run(StragglerWatch(SPEC, fleet.slots), windows=7)[-1]
    assert bad <= flagged(last)
    assert len(flagged(last) - bad) <= 1
    assert not last.fleet_slow
    for replica in last.slow[:2]:
        assert replica.ratio == pytest.approx(slower, rel=0.05)


@pytest.mark.parametrize("balance", ["equal", "least"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_healthy_fleet_accuses_nobody(balance: str, seed: int) -> None:
    fleet = Fleet(balance=balance, seed=seed)
    for judgement in fleet.run(StragglerWatch(SPEC, fleet.slots), windows=8):
        assert not judgement.slow
        assert not judgement.fleet_slow


def test_the_demo_fleet_flags_its_planted_straggler_as_soon_as_the_windows_allow() -> None:
    fleet = Fleet(nodes=8, balance="least")
    fleet.factor[19] = 1.25
    seen = fleet.run(StragglerWatch(SPEC, fleet.slots), windows=SPEC.windows_slow + 1)
    assert flagged(seen[-1]) == {19}
    slow = seen[-1].slow[0]
    assert "1.2" in slow.reason
    assert slow.node == ""


def test_a_slow_node_is_reported_as_one_node() -> None:
    fleet = Fleet(nodes=8)
    fleet.factor[16:24] = 1.3
    last = fleet.run(StragglerWatch(SPEC, fleet.slots), windows=6)[-1]
    assert last.slow_nodes == ["node002"]
    assert {replica.node for replica in last.slow} == {"node002"}
    assert flagged(last) == set(range(16, 24))
    assert not last.fleet_slow


def test_more_suspects_than_the_fraction_blame_the_fleet_and_accuse_nobody() -> None:
    fleet = Fleet(nodes=64)
    fleet.factor[::20] = 1.5  # 26 of 512, over 2 %
    last = fleet.run(StragglerWatch(SPEC, fleet.slots), windows=6)[-1]
    assert last.fleet_slow
    assert "26 of 512" in last.fleet_reason
    assert not last.slow


def test_a_fleet_that_slows_down_together_is_the_fleet() -> None:
    fleet = Fleet(nodes=8)
    watch = StragglerWatch(SPEC, fleet.slots)
    assert not fleet.run(watch, windows=5)[-1].fleet_slow
    fleet.factor[:] = 1.4
    last = fleet.run(watch, windows=5, start_s=fleet.now_s)[-1]
    assert last.fleet_slow
    assert not last.slow


def test_a_fleet_that_slows_down_together_does_not_hide_a_straggler_in_it() -> None:
    fleet = Fleet(nodes=8)
    watch = StragglerWatch(SPEC, fleet.slots)
    fleet.run(watch, windows=5)
    fleet.factor[:] = 1.4
    fleet.factor[5] = 1.4 * 1.3
    last = fleet.run(watch, windows=5, start_s=fleet.now_s)[-1]
    assert last.fleet_slow
    assert flagged(last) == {5}


def test_a_replica_without_heartbeats_is_not_judged_and_the_others_are() -> None:
    fleet = Fleet(nodes=8)
    fleet.factor[19] = 1.25
    fleet.mute[[3, 4, 50]] = True
    last = fleet.run(StragglerWatch(SPEC, fleet.slots), windows=5)[-1]
    assert np.isnan(last.ratio[[3, 4, 50]]).all()
    assert flagged(last) == {19}


def test_grace_is_shown_but_not_judged() -> None:
    fleet = Fleet(nodes=8)
    fleet.factor[19] = 1.5
    watch = StragglerWatch(SPEC, fleet.slots)
    seen = fleet.run(watch, windows=9, grace_s=60.0)
    assert seen[4].ratio[19] == pytest.approx(1.5, rel=0.05)
    assert not any(judgement.slow for judgement in seen[: 6 + SPEC.windows_slow - 1])
    assert flagged(seen[-1]) == {19}


def test_a_replica_that_speeds_up_recovers_once_and_says_so_once() -> None:
    fleet = Fleet(nodes=8)
    fleet.factor[19] = 1.4
    watch = StragglerWatch(SPEC, fleet.slots)
    fleet.run(watch, windows=5)
    fleet.factor[19] = 1.0
    seen = fleet.run(watch, windows=5, start_s=fleet.now_s)
    assert [judgement.recovered for judgement in seen].count([19]) == 1
    assert not seen[-1].slow
    assert watch.judge(fleet.now_s + 0.1, np.ones(fleet.n, dtype=bool), False).recovered == []


def test_a_drained_straggler_leaves_the_list_and_its_successor_starts_clean() -> None:
    fleet = Fleet(nodes=8)
    fleet.factor[19] = 1.4
    watch = StragglerWatch(SPEC, fleet.slots)
    fleet.run(watch, windows=5)
    serving = np.ones(fleet.n, dtype=bool)
    serving[19] = False
    drained = watch.judge(fleet.now_s + 0.1, serving, False)
    assert not drained.slow
    assert drained.recovered == []
    fleet.factor[19] = 1.0
    assert not any(judgement.slow for judgement in fleet.run(watch, windows=4, start_s=fleet.now_s))


def test_fewer_than_four_replicas_have_no_verdict() -> None:
    fleet = Fleet(nodes=1, per_node=3)
    fleet.factor[0] = 2.0
    last = fleet.run(StragglerWatch(SPEC, fleet.slots), windows=5)[-1]
    assert np.isnan(last.ratio).all()
    assert not last.slow


def test_too_few_steps_in_a_window_do_not_count() -> None:
    slots = [f"node000/gpu{g}" for g in range(8)]
    watch = StragglerWatch(SPEC, slots)
    for window in range(5):
        for i in range(8):
            watch.observe(i, window * 10.0 + 1, 5 if i == 3 else 200, 90.0 if i == 3 else 30.0, 100, 50)
        last = watch.judge(window * 10.0 + 10.0, np.ones(8, dtype=bool), False)
    assert np.isnan(last.ratio[3])
    assert last.ratio[0] == pytest.approx(1.0)
    assert not last.slow


def test_a_rate_change_does_not_make_the_fleet_look_slow() -> None:
    """More work means a larger batch and longer steps: that is the curve, not a fault."""
    slots = [f"node{n:03d}/gpu{g}" for n in range(8) for g in range(8)]
    watch, rng = StragglerWatch(SPEC, slots), np.random.default_rng(4)
    serving = np.ones(64, dtype=bool)
    for window in range(12):
        mean_batch = 60.0 if window < 6 else 380.0
        for i in range(64):
            batch = mean_batch + rng.normal(0, 4)
            step_ms = (BASE_MS + PER_SEQUENCE_MS * batch) * rng.normal(1, 0.01)
            watch.observe(i, window * 10.0 + 5, 300, step_ms, batch, mean_batch * 0.8)
        last = watch.judge(window * 10.0 + 10.0, serving, False)
        assert not last.slow
        assert not last.fleet_slow
