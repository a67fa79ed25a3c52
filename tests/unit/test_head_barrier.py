"""The registration barrier: the set of slots, waivers and a quorum decide, and the missing are named with their reasons."""

from __future__ import annotations

from typing import Any

import pytest
from head_kit import Fleet, a_spec

from harness.head.barrier import BarrierView, by_reason, look
from harness.spec import BarrierSpec
from harness.wire import states

WHY = {0: "no pod", 1: "pending: 0/3 nodes have enough GPUs"}


def view(fleet: Fleet, waited_s: float = 1.0, **barrier: Any) -> BarrierView:
    return look(
        fleet.roster, BarrierSpec(deadline_s=60, **barrier), waited_s=waited_s, why_no_node=lambda node: WHY.get(node, "")
    )


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(a_spec(3, 2))


def test_it_opens_when_every_slot_is_ready_and_not_one_sooner(fleet: Fleet) -> None:
    for number in range(6):
        assert not view(fleet).open
        fleet.ready(number)
    assert view(fleet) == BarrierView(True, "", [], states.WARMING, 6)


def test_a_replica_that_registers_twice_counts_once(fleet: Fleet) -> None:
    fleet.ready(0, 1, 2, 3, 4)
    fleet.ready(4, incarnation="b")
    seen = view(fleet)
    assert not seen.open
    assert seen.ready == 5
    assert seen.missing == ["node002/gpu1: no REGISTER"]


def test_the_missing_are_named_with_the_reason_that_fits_their_state() -> None:
    fleet = Fleet(a_spec(8, 1))
    fleet.register(2)
    fleet.register(3)
    fleet.beat(3, state="WARMING", note="round 2 of 3")
    fleet.ready(4)
    fleet.roster.move(fleet[4], states.LOST, "engine exited with status 1")
    fleet.roster.register(fleet.message(5, model="llama"), b"")
    fleet.ready(6)
    fleet.roster.move(fleet[6], states.SUSPECT, "no beat for 11 s: no new samples")
    fleet.ready(7)
    assert view(fleet).missing == [
        "node000/gpu0: no pod",
        "node001/gpu0: pending: 0/3 nodes have enough GPUs",
        "node002/gpu0: registered, no beat yet",
        "node003/gpu0: warming: round 2 of 3",
        "node004/gpu0: lost: engine exited with status 1",
        "node005/gpu0: rejected: model 'llama' registered, this run serves 'synthetic'",
        "node006/gpu0: suspect: no beat for 11 s: no new samples",
    ]


def test_the_phase_is_warming_once_everybody_has_registered(fleet: Fleet) -> None:
    for number in range(5):
        fleet.register(number)
    assert view(fleet).phase == states.REGISTERING
    fleet.register(5)
    assert view(fleet).phase == states.WARMING
    fleet.roster.move(fleet[0], states.LOST, "crashed")
    assert view(fleet).phase == states.REGISTERING


def test_a_waived_slot_is_not_waited_for_and_still_counts_when_it_comes(fleet: Fleet) -> None:
    fleet.ready(0, 1, 2, 3, 4)
    fleet[5].waived = True
    assert view(fleet).open
    assert view(fleet).ready == 5
    fleet.ready(5)
    assert view(fleet).ready == 6


def test_a_fleet_that_is_waived_altogether_does_not_open(fleet: Fleet) -> None:
    for replica in fleet.roster.replicas:
        replica.waived = True
    assert not view(fleet).open
    assert view(fleet, waited_s=61).gave_up


def test_a_quorum_only_counts_after_the_deadline(fleet: Fleet) -> None:
    fleet.ready(0, 1, 2, 3)
    assert not view(fleet, waited_s=59.9, min_ready=4).open
    late = view(fleet, waited_s=60, min_ready=4)
    assert late.open
    assert late.note == "quorum: 4 READY without 2 of node002"


def test_without_a_quorum_the_deadline_ends_the_wait_and_names_the_nodes(fleet: Fleet) -> None:
    fleet.ready(0, 1, 2)
    late = view(fleet, waited_s=61)
    assert not late.open
    next_step = "waive them, set a quorum, or wait longer (fleet.barrier)"
    assert late.gave_up == f"3 replicas are missing after 60 s (node001, node002); {next_step}"
    assert len(late.missing) == 3


def test_too_few_ready_replicas_after_the_deadline_give_up_with_the_numbers(fleet: Fleet) -> None:
    fleet.ready(0, 1, 2)
    late = view(fleet, waited_s=61, min_ready=4)
    assert not late.open
    assert "3 replicas are READY after 60 s, the quorum is 4" in late.gave_up


@pytest.mark.parametrize(("missing_nodes_allowed", "opens"), [(1, False), (2, True)])
def test_a_limit_of_incomplete_nodes_counts_nodes_not_replicas(fleet: Fleet, missing_nodes_allowed: int, opens: bool) -> None:
    fleet.ready(0, 1, 2)
    late = view(fleet, waited_s=61, max_missing_nodes=missing_nodes_allowed)
    assert late.open == opens
    assert bool(late.gave_up) != opens
    if not opens:
        assert "2 nodes are incomplete after 60 s, 1 may be: node001, node002" in late.gave_up


def test_both_conditions_of_a_quorum_must_hold(fleet: Fleet) -> None:
    fleet.ready(0, 2, 4)
    assert not view(fleet, waited_s=61, min_ready=3, max_missing_nodes=2).open
    fleet.ready(1)
    assert view(fleet, waited_s=61, min_ready=3, max_missing_nodes=2).open


def test_a_quorum_of_nodes_does_not_open_for_nobody(fleet: Fleet) -> None:
    assert view(fleet, waited_s=61, max_missing_nodes=3).gave_up


def test_what_ended_or_waits_before_it_could_register_says_so() -> None:
    fleet = Fleet(a_spec(3, 1))
    fleet[0].reason = "there is no such model; not started again"
    fleet[1].loading = "waiting for http://127.0.0.1:8000, 5 of 900 s: connection refused"
    assert view(fleet).missing == [
        "node000/gpu0: there is no such model; not started again",
        "node001/gpu0: loading: waiting for http://127.0.0.1:8000, 5 of 900 s: connection refused",
        "node002/gpu0: no REGISTER",
    ]


def test_nobody_waits_for_the_deadline_when_none_is_started_again(fleet: Fleet) -> None:
    for replica in fleet.roster.replicas[:-1]:
        replica.given_up = True
    assert not view(fleet).gave_up, "one may still come"
    fleet.roster.replicas[-1].given_up = True
    assert "none is started again" in view(fleet).gave_up


def test_with_some_ready_there_is_time_to_waive_or_readmit_the_rest(fleet: Fleet) -> None:
    fleet.ready(0)
    for replica in fleet.roster.replicas[1:]:
        replica.given_up = True
    assert not view(fleet).gave_up


def test_replicas_that_are_missing_for_the_same_reason_are_one_line() -> None:
    missing = ["node004/gpu0: pod w-4 is Pending", "node004/gpu1: pod w-4 is Pending", "node005/gpu0: warming"]
    assert by_reason(missing) == ["node004/gpu0 and 1 more: pod w-4 is Pending", "node005/gpu0: warming"]
