"""What a watched replica holds: the oldest first, once a second, until nobody asks any more."""

from __future__ import annotations

import time

from harness.driver.ledger import Member, Sample
from harness.driver.watch import HOLDS_NS, MOST_TOLD, MOST_WATCHED, Watching, look
from harness.wire.attempt import Watch
from harness.wire.inquiry import InFlight

N_PROMPT = [10, 20, 30]
SECOND = 1_000_000_000


def member(samples: int, slot: str = "node000/gpu0") -> Member:
    made = Member(0, slot, "life", 1, b"peer")
    for seq in range(samples):
        sample = Sample(seq, 0, seq % 3, 0, 0)
        sample.dispatched_ns, sample.tries = seq * SECOND, 1
        made.inflight[seq] = sample
    return made


def test_a_look_tells_the_oldest_samples_and_how_many_there_are() -> None:
    held = member(5)
    held.inflight[0].first_ns = 7
    held.inflight[1].tries = 2
    told = look(Watch("node000/gpu0", 2), held, N_PROMPT, 10 * SECOND)
    assert (told.slot, told.incarnation, told.total) == ("node000/gpu0", "life", 5)
    assert told.samples == [InFlight(0, 10.0, 10, 1, True), InFlight(1, 9.0, 20, 2, False)]


def test_a_slot_that_is_not_in_the_pool_holds_nothing() -> None:
    told = look(Watch("node000/gpu0"), None, N_PROMPT, 0)
    assert (told.incarnation, told.total, told.samples) == ("", 0, [])


def test_a_look_is_bounded_whatever_is_asked_for() -> None:
    assert len(look(Watch("a", 10**9), member(1000), N_PROMPT, 0).samples) == MOST_TOLD
    assert look(Watch("a", -5), member(3), N_PROMPT, 0).samples == []


def test_a_watch_is_told_once_a_second_until_nobody_has_renewed_it() -> None:
    watching, members = Watching(), {"node000/gpu0": member(1)}
    assert not watching
    watching.begin(Watch("node000/gpu0"), 0)
    told = [at for at in range(80) if watching.due(members, N_PROMPT, at * SECOND // 10)]
    assert told == [0, 10, 20, 30, 40]
    assert not watching
    watching.begin(Watch("node000/gpu0"), 10 * SECOND)
    watching.begin(Watch("node000/gpu0"), 14 * SECOND)
    assert watching.due(members, N_PROMPT, 14 * SECOND + HOLDS_NS - 1)


def test_an_empty_slot_ends_all_watches() -> None:
    watching = Watching()
    watching.begin(Watch("a"), 0)
    watching.begin(Watch(""), 1)
    assert not watching
    assert watching.due({}, N_PROMPT, 2) == []


def test_beyond_the_bound_the_watch_renewed_longest_ago_gives_way() -> None:
    watching = Watching()
    for number in range(MOST_WATCHED):
        watching.begin(Watch(f"slot{number}"), number)
    watching.begin(Watch("slot0"), 50)
    watching.begin(Watch("one more"), 51)
    slots = {held.slot for held in watching.due({}, N_PROMPT, 60)}
    assert len(slots) == MOST_WATCHED
    assert {"slot0", "one more"} < slots
    assert "slot1" not in slots


def test_a_look_at_a_full_flight_costs_the_samples_told_not_the_flight() -> None:
    members = {f"node{n:03d}/gpu0": member(940, f"node{n:03d}/gpu0") for n in range(64)}
    watching = Watching()
    watching.begin(Watch("node007/gpu0"), 0)
    began = time.process_time()
    for second in range(100):
        watching.begin(Watch("node007/gpu0"), second * SECOND)
        assert len(watching.due(members, N_PROMPT, second * SECOND)[0].samples) == 64
    assert (time.process_time() - began) / 100 < 0.002
