"""Drain, recycle, evict: nothing is taken before the drain is over or its deadline has passed."""

from __future__ import annotations

import math

import pytest
from head_kit import Fleet

from harness.head.drains import Drains, Then
from harness.head.roster import Replica
from harness.wire import states


class Yard:
    """A READY fleet with drains whose ends are kept."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.fleet.ready()
        self.done: list[tuple[str, ...]] = []
        self.drains = Drains(self.fleet.roster, self.fleet.clock, self._recycle, self._evict, {}, set())

    def _recycle(self, replica: Replica, why: str) -> None:
        self.done.append(("recycle", replica.slot, why))
        self.fleet.roster.move(replica, states.LOST, why)

    def _evict(self, replica: Replica, who: str, why: str) -> None:
        self.done.append(("evict", replica.slot, who, why))
        self.fleet.roster.move(replica, states.EVICTED, why, who)

    def start(self, number: int, then: Then, within_s: float = 60.0, why: str = "slow", holds_samples: bool = True) -> None:
        self.drains.start(self.fleet[number], then, within_s=within_s, who="operator:ann", why=why, holds_samples=holds_samples)

    def drained(self, number: int, incarnation: str = "a") -> None:
        self.drains.note_drained(self.fleet[number].slot, incarnation)

    def state(self, number: int) -> str:
        return self.fleet[number].state


@pytest.fixture
def yard() -> Yard:
    return Yard()


def test_a_drain_waits_for_the_last_sample_however_long_and_keeps_the_replica(yard: Yard) -> None:
    yard.start(0, "stay", within_s=math.inf)
    assert yard.state(0) == "DRAINING"
    assert yard.fleet.moves[-1] == ("node000/gpu0", "READY", "DRAINING", "slow", "operator:ann")
    yard.fleet.clock.passes(1e6)
    yard.drains.tick()
    assert yard.state(0) == "DRAINING"
    yard.drained(0)
    yard.drains.tick()
    assert yard.state(0) == "DRAINED"
    assert yard.done == []
    assert not yard.drains.pending


def test_a_recycle_restarts_only_after_its_drain(yard: Yard) -> None:
    yard.start(1, "recycle")
    yard.drains.tick()
    assert (yard.state(1), yard.done) == ("DRAINING", [])
    yard.drained(1)
    yard.drains.tick()
    assert yard.done == [("recycle", "node000/gpu1", "slow")]
    assert [(before, after) for slot, before, after, _, _ in yard.fleet.moves if slot == "node000/gpu1"][-3:] == [
        ("READY", "DRAINING"),
        ("DRAINING", "DRAINED"),
        ("DRAINED", "LOST"),
    ]


def test_an_eviction_takes_what_is_left_at_its_deadline_and_not_before(yard: Yard) -> None:
    yard.start(2, "evict", within_s=30)
    yard.fleet.clock.passes(29.9)
    yard.drains.tick()
    assert yard.done == []
    yard.fleet.clock.passes(0.1)
    yard.drains.tick()
    assert yard.done == [("evict", "node001/gpu0", "operator:ann", "slow")]
    yard.drains.tick()
    assert len(yard.done) == 1


@pytest.mark.parametrize(("within_s", "holds_samples"), [(0.0, True), (60.0, False)])
def test_without_time_or_without_an_attempt_there_is_nothing_to_wait_for(
    yard: Yard, within_s: float, holds_samples: bool
) -> None:
    yard.start(0, "recycle", within_s=within_s, holds_samples=holds_samples)
    yard.start(1, "evict", within_s=within_s, holds_samples=holds_samples)
    assert [act[0] for act in yard.done] == ["recycle", "evict"]
    assert not yard.drains.pending


def test_a_drain_without_an_attempt_is_over_at_the_next_tick(yard: Yard) -> None:
    yard.start(0, "stay", within_s=math.inf, holds_samples=False)
    yard.drains.tick()
    assert yard.state(0) == "DRAINED"


def test_news_of_another_incarnation_or_of_a_slot_that_is_not_draining_counts_for_nothing(yard: Yard) -> None:
    yard.start(0, "recycle")
    yard.drained(0, "an earlier life")
    yard.drained(1)
    yard.drains.note_drained("node099/gpu0", "a")
    yard.drains.tick()
    assert (yard.state(0), yard.state(1), yard.done) == ("DRAINING", "READY", [])


def test_a_drain_dies_with_its_incarnation_and_never_hits_the_next_one(yard: Yard) -> None:
    yard.start(0, "evict", within_s=10)
    yard.fleet.roster.move(yard.fleet[0], states.LOST, "crashed while draining")
    yard.fleet.ready(0, incarnation="b")
    yard.fleet.clock.passes(11)
    yard.drains.tick()
    assert (yard.state(0), yard.done) == ("READY", [])
    assert not yard.drains.pending


def test_a_cancelled_drain_ends_nothing(yard: Yard) -> None:
    yard.start(0, "evict", within_s=10)
    yard.drained(0)
    yard.drains.cancel("node000/gpu0")
    yard.drains.cancel("node000/gpu0")
    yard.fleet.clock.passes(11)
    yard.drains.tick()
    assert (yard.state(0), yard.done) == ("DRAINING", [])


def test_a_harder_end_replaces_a_gentler_one(yard: Yard) -> None:
    yard.start(0, "stay", within_s=math.inf)
    yard.start(0, "evict", within_s=5)
    yard.fleet.clock.passes(6)
    yard.drains.tick()
    assert [act[0] for act in yard.done] == ["evict"]


def test_what_is_drained_already_is_recycled_at_once(yard: Yard) -> None:
    yard.start(0, "stay", within_s=math.inf)
    yard.drained(0)
    yard.drains.tick()
    yard.start(0, "recycle")
    assert yard.done == [("recycle", "node000/gpu0", "slow")]


def test_the_end_of_an_attempt_ends_every_drain(yard: Yard) -> None:
    yard.start(0, "stay", within_s=math.inf)
    yard.start(1, "recycle")
    yard.drains.attempt_over()
    yard.drains.tick()
    assert (yard.state(0), yard.state(1)) == ("DRAINED", "LOST")
    assert yard.state(2) == "READY"


def test_a_suspect_replica_can_be_drained(yard: Yard) -> None:
    yard.fleet.roster.move(yard.fleet[0], states.SUSPECT, "no beat")
    yard.start(0, "recycle")
    assert yard.state(0) == "DRAINING"
    yard.drained(0)
    yard.drains.tick()
    assert yard.done


def test_an_act_without_a_reason_still_gets_one(yard: Yard) -> None:
    yard.start(0, "recycle", within_s=0, why="")
    yard.start(1, "evict", within_s=0, why="")
    assert [act[-1] for act in yard.done] == ["recycle asked for", "evict asked for"]
