"""The state tables are consistent: every state can be reached, ended states are ends, sets name known states."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.wire import states

TABLES = {
    "replica": (states.REPLICA_STATES, states.REPLICA_MOVES, states.NEW),
    "run": (states.RUN_PHASES, states.RUN_MOVES, states.PLACING),
}
every_table = pytest.mark.parametrize(("names", "moves", "start"), TABLES.values(), ids=TABLES.keys())


def reachable(moves: dict[str, frozenset[str]], start: str) -> set[str]:
    found, ahead = {start}, [start]
    while ahead:
        fresh = moves[ahead.pop()] - found
        found |= fresh
        ahead += fresh
    return found


@every_table
def test_every_state_has_its_moves_and_they_lead_to_known_states(
    names: tuple[str, ...], moves: dict[str, frozenset[str]], start: str
) -> None:
    assert set(moves) == set(names)
    assert len(set(names)) == len(names)
    assert set().union(*moves.values()) <= set(names)


@every_table
def test_every_state_can_be_reached_from_the_start_and_none_moves_to_itself(
    names: tuple[str, ...], moves: dict[str, frozenset[str]], start: str
) -> None:
    assert reachable(moves, start) == set(names)
    assert not [name for name in names if name in moves[name]]


def test_ended_phases_are_ends_and_every_other_phase_can_fail_or_be_aborted() -> None:
    ends = {phase for phase, following in states.RUN_MOVES.items() if not following}
    assert ends == states.RUN_ENDED
    for phase in set(states.RUN_PHASES) - ends:
        assert {states.FAILED, states.ABORTED} <= states.RUN_MOVES[phase]


def test_a_run_goes_the_designed_way_from_placing_to_done() -> None:
    way = (
        states.PLACING, states.REGISTERING, states.WARMING, states.READY, states.MEASURING, states.DRAINING,
        states.READY, states.MEASURING, states.DRAINING, states.DONE,
    )  # fmt: skip
    for before, after in pairwise(way):
        assert after in states.RUN_MOVES[before]


def test_no_slot_is_ever_stuck_ready_can_be_reached_again_from_every_replica_state() -> None:
    for state in states.REPLICA_STATES:
        assert states.READY in reachable(states.REPLICA_MOVES, state)


def test_a_replica_that_is_gone_serves_again_only_after_registering() -> None:
    for state in set(states.REPLICA_STATES) - states.ALIVE - {states.NEW}:
        assert states.REGISTERED in states.REPLICA_MOVES[state]
        assert not states.REPLICA_MOVES[state] & (states.ALIVE - {states.REGISTERED})


def test_every_live_replica_can_be_lost_and_evicted() -> None:
    for state in states.ALIVE:
        assert {states.LOST, states.EVICTED} <= states.REPLICA_MOVES[state]


def test_only_live_replicas_hold_samples() -> None:
    assert states.HOLDS_SAMPLES < states.ALIVE


def test_codes_are_positions_that_fit_a_byte() -> None:
    assert [states.REPLICA_CODE[name] for name in states.REPLICA_STATES] == list(range(len(states.REPLICA_STATES)))
    assert len(states.REPLICA_STATES) < 256
    # Codes lie in records: these positions may be appended to, never changed.
    assert states.REPLICA_STATES[:10] == (
        "NEW", "REGISTERED", "WARMING", "READY", "SUSPECT", "DRAINING", "DRAINED", "LOST", "EVICTED", "REJECTED",
    )  # fmt: skip
