"""The rules of one slot's life: back-off, limits, and which commands count."""

from __future__ import annotations

import re

import pytest

from harness.spec import FleetSpec
from harness.worker.slots import HEALTHY_AFTER_S, Act, Slot, SlotState

FLEET = FleetSpec(restart_backoff_s=1, restart_backoff_max_s=5, max_restarts=4)


@pytest.fixture
def slot() -> Slot:
    slot = Slot("node000/gpu0", 0, 0, 0)
    assert slot.start() is Act.BEGIN
    slot.begin("first", 0.0)
    return slot


def test_delays_double_up_to_their_limit_and_then_the_slot_stays_down(slot: Slot) -> None:
    delays = []
    for life in range(5):
        exit_ = slot.ended("crash", 1.0 + life, FLEET)
        delays.append(exit_.restart_in_s)
        if exit_.restart_in_s is not None:
            slot.begin(f"life{life}", 1.0 + life)
    assert delays == [1, 2, 4, 5, None]
    assert slot.state is SlotState.DOWN
    assert re.search(r"; failed \d+ times?$", exit_.reason)


def test_a_long_life_makes_the_next_delay_the_first_again(slot: Slot) -> None:
    for now_s in (1.0, 2.0, 3.0):
        slot.ended("crash", now_s, FLEET)
        slot.begin("next", now_s)
    assert slot.ended("crash", 3.0 + HEALTHY_AFTER_S, FLEET).restart_in_s == 1
    assert slot.restarts == 1


def test_a_final_end_is_not_restarted_but_can_be_started_by_command(slot: Slot) -> None:
    assert slot.ended("rejected: other model", 1.0, FLEET, final=True).restart_in_s is None
    assert not slot.held
    assert slot.start() is Act.BEGIN


def test_recycle_ends_the_named_incarnation_and_begins_another_at_once(slot: Slot) -> None:
    assert slot.recycle("first", "slow") is Act.END
    assert slot.recycle("first", "slow") is Act.NOTHING  # a repeat
    exit_ = slot.ended("process was killed by SIGKILL", 5.0, FLEET)
    assert (exit_.reason, exit_.restart_in_s) == ("recycled: slow", 0.0)
    slot.begin("second", 5.0)
    assert slot.recycle("first", "slow") is Act.STALE
    assert slot.restarts == 0


def test_stop_holds_the_slot_down_even_while_it_waits_for_its_restart(slot: Slot) -> None:
    slot.ended("crash", 1.0, FLEET)
    assert slot.state is SlotState.WAITING
    assert slot.stop("first", "evicted") is Act.NOTHING
    assert (slot.state, slot.held) == (SlotState.DOWN, True)


def test_a_stop_that_overtakes_a_recycle_wins_and_the_other_way_round(slot: Slot) -> None:
    slot.recycle("first", "slow")
    assert slot.stop("first", "evicted") is Act.NOTHING
    assert slot.ended("", 1.0, FLEET).restart_in_s is None
    slot.start()
    slot.begin("second", 2.0)
    slot.stop("second", "evicted")
    assert slot.start() is Act.NOTHING
    assert slot.ended("", 3.0, FLEET).restart_in_s == 0.0


def test_a_crashed_slot_that_is_recycled_skips_its_back_off(slot: Slot) -> None:
    slot.ended("crash", 1.0, FLEET)
    assert slot.recycle("first", "now") is Act.BEGIN
    assert slot.begin("second", 1.0).life == 1
