"""The roster: every allowed move and no other, which incarnation counts, and when silence becomes loss."""

from __future__ import annotations

import itertools

import pytest
from head_kit import LEASE_S, Clock, Fleet, a_spec

from harness.wire import states
from harness.wire.control import ReplicaBeat


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


# --- moves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", states.REPLICA_STATES)
def test_exactly_the_allowed_moves_happen_and_each_is_reported_with_its_reason(before: str) -> None:
    for after in states.REPLICA_STATES:
        fleet = Fleet()
        replica = fleet[1]
        replica.state = before
        fleet.clock.passes(7)
        version = fleet.roster.version
        moved = fleet.roster.move(replica, after, "because", "operator:ann")
        assert moved == (after in states.REPLICA_MOVES[before])
        if moved:
            assert fleet.moves == [("node000/gpu1", before, after, "because", "operator:ann")]
            assert (replica.state, replica.reason) == (after, "because")
            assert (replica.since_s, replica.since_unix) == (fleet.clock(), fleet.clock.unix())
            assert fleet.roster.version == version + 1
        else:
            assert (replica.state, fleet.moves, fleet.roster.version) == (before, [], version)


def test_slots_stand_in_order_with_their_node_and_role() -> None:
    fleet = Fleet(a_spec(2, 3, fleet={"roles": ["prefill", "decode"]}))
    assert [(r.index, r.slot, r.node, r.role) for r in fleet.roster.replicas] == [
        (0, "node000/gpu0", 0, "prefill"),
        (1, "node000/gpu1", 0, "decode"),
        (2, "node000/gpu2", 0, "prefill"),
        (3, "node001/gpu0", 1, "prefill"),
        (4, "node001/gpu1", 1, "decode"),
        (5, "node001/gpu2", 1, "prefill"),
    ]


def test_a_replica_goes_from_new_over_warming_to_ready(fleet: Fleet) -> None:
    fleet.register(0)
    fleet.beat(0, state="WARMING", note="round 1 of 3")
    assert fleet[0].note == "round 1 of 3"
    fleet.beat(0, state="READY")
    assert [(before, after) for _, before, after, _, _ in fleet.moves] == [
        ("NEW", "REGISTERED"),
        ("REGISTERED", "WARMING"),
        ("WARMING", "READY"),
    ]
    assert fleet.roster.ready == 1
    assert fleet.roster.count() == {"READY": 1, "NEW": 3}


def test_a_replica_that_leaves_takes_its_last_numbers_with_it(fleet: Fleet) -> None:
    fleet.ready(0)
    fleet.beat(0, tokens_out=500)
    assert fleet[0].tokens_s == 500
    fleet.roster.move(fleet[0], states.LOST, "gone")
    assert fleet[0].beat is None
    assert fleet[0].tokens_s != fleet[0].tokens_s


# --- registering -------------------------------------------------------------------------------------------


def test_registering_again_is_answered_and_changes_nothing_but_the_connection(fleet: Fleet) -> None:
    first = fleet.roster.register(fleet.message(0), b"one")
    assert (first.fresh, first.replaced) == (True, "")
    fleet.beat(0)
    moves = list(fleet.moves)
    again = fleet.roster.register(fleet.message(0), b"two")
    assert again.replica is fleet[0]
    assert not again.fresh
    assert (fleet[0].state, fleet[0].nth, fleet[0].peer) == ("READY", 1, b"two")
    assert fleet.moves == moves


def test_a_slot_outside_the_run_is_refused_by_name(fleet: Fleet) -> None:
    admission = fleet.roster.register(fleet.message(0, slot="node099/gpu0"), b"")
    assert admission.replica is None
    assert admission.reason == "slot node099/gpu0 is not part of this run (4 slots)"


@pytest.mark.parametrize(
    ("change", "words"),
    [({"model": "llama"}, "model 'llama' registered, this run serves 'synthetic'"), ({"args_hash": "ffff"}, "hash ffff differs")],
)
def test_another_model_or_other_arguments_are_rejected_with_the_difference(
    fleet: Fleet, change: dict[str, str], words: str
) -> None:
    admission = fleet.roster.register(fleet.message(0, **change), b"")
    assert admission.replica is None
    assert words in admission.reason
    assert (fleet[0].state, fleet[0].nth) == ("REJECTED", 0)
    assert words in fleet[0].reason
    fleet.register(0, "b")
    assert (fleet[0].state, fleet[0].incarnation) == ("REGISTERED", "b")


def test_a_wrong_stranger_does_not_touch_the_replica_that_serves(fleet: Fleet) -> None:
    fleet.ready(0)
    assert fleet.roster.register(fleet.message(0, "b", model="llama"), b"").replica is None
    assert (fleet[0].state, fleet[0].incarnation) == ("READY", "a")


def test_a_newer_incarnation_replaces_one_that_has_not_ended(fleet: Fleet) -> None:
    fleet.ready(0)
    admission = fleet.roster.register(fleet.message(0, "b"), b"new")
    assert (admission.fresh, admission.replaced) == (True, "a")
    assert (fleet[0].state, fleet[0].incarnation, fleet[0].nth, fleet[0].peer) == ("REGISTERED", "b", 2, b"new")
    assert [(before, after) for _, before, after, _, _ in fleet.moves[-2:]] == [("READY", "LOST"), ("LOST", "REGISTERED")]


def test_a_zombie_cannot_take_the_slot_from_the_incarnation_that_its_worker_started(fleet: Fleet) -> None:
    fleet.ready(0)
    fleet[0].starting = "b"
    fleet.register(0, "b")
    admission = fleet.roster.register(fleet.message(0, "a"), b"")
    assert admission.replica is None
    assert admission.reason == "node000/gpu0 is held by incarnation b, started by its worker"
    assert fleet[0].incarnation == "b"


@pytest.mark.parametrize("end", ["EVICTED", "REJECTED"])
def test_an_evicted_or_rejected_incarnation_does_not_come_back_but_the_next_one_does(fleet: Fleet, end: str) -> None:
    fleet.ready(0)
    fleet.roster.move(fleet[0], end, "operator said so")
    admission = fleet.roster.register(fleet.message(0), b"")
    assert admission.replica is None
    assert admission.reason == f"this incarnation was {end.lower()}: operator said so"
    fleet.register(0, "b")
    assert fleet[0].state == "REGISTERED"


def test_a_lost_incarnation_may_register_again(fleet: Fleet) -> None:
    fleet.ready(0)
    fleet.roster.move(fleet[0], states.LOST, "no beat")
    fleet.register(0)
    fleet.beat(0)
    assert fleet[0].state == "READY"


# --- signs of life -----------------------------------------------------------------------------------------


def test_a_beat_of_another_incarnation_changes_nothing_and_is_counted(fleet: Fleet) -> None:
    fleet.ready(0)
    fleet.register(0, "b")
    before = (fleet[0].state, fleet[0].beat_s, list(fleet.moves))
    fleet.clock.passes(3)
    assert fleet.beat(0, "a") is None
    assert fleet.roster.beat(ReplicaBeat("node099/gpu0", "a", "READY"), b"", 1.0) is None
    assert (fleet[0].state, fleet[0].beat_s, fleet.moves) == before
    assert fleet.roster.stale_messages == 2
    assert fleet.roster.current("node000/gpu0", "b") is fleet[0]


@pytest.mark.parametrize("state", ["LOST", "EVICTED", "REJECTED"])
def test_a_beat_does_not_bring_back_who_is_gone(fleet: Fleet, state: str) -> None:
    fleet.ready(0)
    fleet.roster.move(fleet[0], state, "gone")
    assert fleet.beat(0) is None
    assert fleet[0].state == state


@pytest.mark.parametrize("state", ["DRAINING", "DRAINED"])
def test_a_beat_does_not_end_a_drain(fleet: Fleet, state: str) -> None:
    fleet.ready(0)
    fleet.roster.move(fleet[0], "DRAINING", "")
    fleet.roster.move(fleet[0], state, "")
    assert fleet.beat(0) is fleet[0]
    assert fleet[0].state == state


def test_one_missed_lease_makes_suspect_and_a_second_lost(fleet: Fleet) -> None:
    fleet.ready(0, 1)
    fleet.clock.passes(LEASE_S - 0.1)
    assert fleet.roster.sweep(False) == []
    assert fleet[0].state == "READY"
    fleet.beat(1)
    fleet.clock.passes(0.2)
    assert fleet.roster.sweep(False) == []
    assert fleet.states()[:2] == ["SUSPECT", "READY"]
    assert "no beat for 10.1 s: no new samples" in fleet[0].reason
    for _ in range(9):
        fleet.clock.passes(1)
        fleet.beat(1)
        assert fleet.roster.sweep(False) == []
    fleet.clock.passes(1)
    assert fleet.roster.sweep(False) == [fleet[0]]
    assert fleet.states()[:2] == ["LOST", "READY"]
    assert "two strikes" in fleet[0].reason
    assert fleet.roster.sweep(False) == []


def test_a_sweep_that_finds_two_leases_over_is_the_first_strike_only(fleet: Fleet) -> None:
    fleet.register(0)
    fleet.beat(0, state="READY")
    fleet.clock.passes(2 * LEASE_S + 1)
    assert fleet.roster.sweep(False) == []
    assert fleet.states()[0] == "SUSPECT"
    fleet.clock.passes(1)
    assert fleet.roster.sweep(False) == [fleet[0]]


@pytest.mark.parametrize("state", ["READY", "WARMING"])
def test_a_suspect_whose_beats_are_back_returns_to_what_it_says_it_is(fleet: Fleet, state: str) -> None:
    fleet.register(0)
    fleet.beat(0, state=state)
    for _ in range(3):  # strikes do not add up over returns
        fleet.clock.passes(LEASE_S + 1)
        fleet.roster.sweep(False)
        assert fleet[0].state == "SUSPECT"
        fleet.beat(0, state=state)
        assert fleet[0].state == state
        assert fleet[0].strikes == 0


def test_a_sweep_that_was_itself_late_forgives_the_round(fleet: Fleet) -> None:
    fleet.ready(0)
    fleet.clock.passes(5 * LEASE_S)  # the head was asleep
    assert fleet.roster.sweep(True) == []
    assert fleet[0].state == "READY"
    fleet.clock.passes(LEASE_S / 2 - 0.1)
    fleet.roster.sweep(False)
    assert fleet[0].state == "READY"
    fleet.clock.passes(0.2)
    fleet.roster.sweep(False)
    assert fleet[0].state == "SUSPECT"


def test_a_late_sweep_takes_nothing_from_a_fresh_beat(fleet: Fleet) -> None:
    fleet.ready(0)
    fleet.clock.passes(1)
    fleet.beat(0)
    fleet.roster.sweep(True)
    assert fleet[0].beat_s == fleet.clock()


@pytest.mark.parametrize("way", [[], ["DRAINING"], ["DRAINING", "DRAINED"]], ids=["registered", "draining", "drained"])
def test_silence_loses_whoever_should_be_alive(fleet: Fleet, way: list[str]) -> None:
    fleet.register(0)
    if way:
        fleet.beat(0)
    for state in way:
        fleet.roster.move(fleet[0], state, "")
    for _ in range(2):
        fleet.clock.passes(LEASE_S + 1)
        lost = fleet.roster.sweep(False)
    assert lost == [fleet[0]]


def test_a_slot_that_never_registered_is_not_swept() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    clock.passes(100 * LEASE_S)
    assert fleet.roster.sweep(False) == []
    assert set(fleet.states()) == {"NEW"}


def test_what_a_console_is_told_follows_the_incarnation(fleet: Fleet) -> None:
    assert fleet[3].info("log").state == "NEW"
    fleet.register(3)
    info = fleet[3].info("/runs/x/logs/node001-gpu1.log")
    assert (info.slot, info.node, info.gpu, info.incarnation, info.incarnations) == ("node001/gpu1", "node001", 1, "a", 1)
    assert (info.worker, info.pid, info.host, info.synthetic) == ("w001", 4003, "here", True)


def test_every_change_that_screens_show_raises_the_version(fleet: Fleet) -> None:
    versions = [fleet.roster.version]
    fleet.register(0)
    versions.append(fleet.roster.version)
    fleet.beat(0)
    versions.append(fleet.roster.version)
    fleet.roster.move(fleet[0], "DRAINING", "")
    versions.append(fleet.roster.version)
    assert all(before < after for before, after in itertools.pairwise(versions))
