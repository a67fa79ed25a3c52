"""Balance policies by what they promise: fairness, the cap, and for `session` that only a lost member's sessions move."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.driver.balance import Policy, make_policy
from harness.driver.ledger import Member, Sample

POLICIES = ("least_outstanding", "round_robin", "least_tokens", "session")
every_policy = pytest.mark.parametrize("name", POLICIES)


class Fleet:
    """Members that hold what a policy gives them; no ledger, so that only the policy decides."""

    def __init__(self, name: str, size: int, cap: int = 64) -> None:
        self.policy: Policy = make_policy(name, cap)
        self.members = [Member(i, f"node000/gpu{i}", "a", 1, b"") for i in range(size)]
        for member in self.members:
            self.policy.add(member)
        self._seq = 0

    def give(self, index: int = 0, cost: int = 10) -> Member | None:
        sample = Sample(self._seq, 0, index, 0, 0, cost)
        self._seq += 1
        member = self.policy.pick(sample)
        if member is not None:
            member.inflight[sample.seq] = sample
            self.policy.took(member, sample)
        return member

    def finish(self, member: Member) -> None:
        _, sample = member.inflight.popitem()
        self.policy.gave_back(member, sample)

    def counts(self) -> list[int]:
        return [len(member.inflight) for member in self.members]


@every_policy
def test_nobody_is_given_more_than_the_cap_and_a_full_fleet_makes_samples_wait(name: str) -> None:
    fleet = Fleet(name, size=5, cap=3)
    given = [fleet.give(index) for index in range(40)]
    assert fleet.counts() == [3] * 5
    assert given[15:] == [None] * 25
    fleet.finish(fleet.members[2])
    assert fleet.give(7) is fleet.members[2]
    assert fleet.give(7) is None


@every_policy
def test_an_empty_fleet_makes_samples_wait(name: str) -> None:
    fleet = Fleet(name, size=1)
    fleet.policy.remove(fleet.members[0])
    fleet.policy.remove(fleet.members[0])
    assert fleet.give() is None


@every_policy
def test_a_removed_member_gets_nothing_and_one_that_returns_with_work_is_counted_with_it(name: str) -> None:
    fleet = Fleet(name, size=3, cap=4)
    for index in range(12):
        fleet.give(index)
    gone = fleet.members[1]
    fleet.policy.remove(gone)
    fleet.finish(gone)
    fleet.finish(gone)
    assert fleet.give() is None
    fleet.policy.add(gone)
    assert [fleet.give(), fleet.give(), fleet.give()] == [gone, gone, None]


@pytest.mark.parametrize("name", ["least_outstanding", "round_robin", "least_tokens"])
def test_equal_samples_are_spread_evenly(name: str) -> None:
    fleet = Fleet(name, size=7)
    for _ in range(7 * 9):
        fleet.give()
    assert fleet.counts() == [9] * 7


def test_least_outstanding_gives_the_next_sample_to_the_replica_that_finished_most() -> None:
    fleet = Fleet("least_outstanding", size=4)
    for _ in range(4 * 10):
        fleet.give()
    fast = fleet.members[2]
    for _ in range(6):
        fleet.finish(fast)
    assert [fleet.give() for _ in range(6)] == [fast] * 6
    assert fleet.counts() == [10] * 4


def test_least_outstanding_takes_turns_at_rest() -> None:
    fleet = Fleet("least_outstanding", size=4)
    chosen = []
    for _ in range(8):
        member = fleet.give()
        assert member is not None
        chosen.append(member.index)
        fleet.finish(member)
    assert Counter(chosen) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_least_tokens_weighs_samples_by_their_tokens() -> None:
    fleet = Fleet("least_tokens", size=4)
    first = fleet.give(cost=1000)
    assert first is not None
    for _ in range(3 * 20):
        fleet.give(cost=50)
    assert len(first.inflight) == 1
    assert {member.tokens for member in fleet.members} == {1000}


def test_least_tokens_on_a_large_fleet_stays_close_to_even() -> None:
    fleet = Fleet("least_tokens", size=64, cap=1000)
    for number in range(64 * 40):
        fleet.give(cost=10 + number % 7)
    tokens = [member.tokens for member in fleet.members]
    assert max(tokens) < 1.15 * sum(tokens) / len(tokens)


def test_least_tokens_on_a_large_fleet_finds_the_last_member_below_its_cap() -> None:
    fleet = Fleet("least_tokens", size=40, cap=1)
    assert {fleet.give() for _ in range(40)} == set(fleet.members)
    assert fleet.give() is None


def homes(fleet: Fleet, sessions: int) -> dict[int, Member]:
    found: dict[int, Member] = {}
    for index in range(sessions):
        member = fleet.policy.pick(Sample(0, 0, index, 0, 0))
        assert member is not None
        found[index] = member
    return found


def test_a_session_stays_with_its_replica() -> None:
    fleet = Fleet("session", size=8)
    assert {fleet.give(index=5) for _ in range(20)} == {homes(fleet, 6)[5]}


def test_losing_a_replica_moves_only_its_sessions_and_they_come_home_again() -> None:
    fleet = Fleet("session", size=16)
    before = homes(fleet, 600)
    gone = fleet.members[3]
    fleet.policy.remove(gone)
    after = homes(fleet, 600)
    moved = {index for index in before if before[index] is not after[index]}
    assert moved == {index for index, member in before.items() if member is gone}
    assert len({after[index] for index in moved}) > 8, "the lost replica's sessions fall on one neighbour"
    fleet.policy.add(gone)
    assert homes(fleet, 600) == before


def test_a_new_life_of_a_replica_serves_the_same_sessions() -> None:
    fleet = Fleet("session", size=8)
    before = {index: member.slot for index, member in homes(fleet, 200).items()}
    fleet.policy.remove(fleet.members[5])
    fleet.policy.add(Member(5, "node000/gpu5", "b", 2, b""))
    assert {index: member.slot for index, member in homes(fleet, 200).items()} == before


def test_sessions_are_spread_over_the_fleet() -> None:
    fleet = Fleet("session", size=16)
    counts = Counter(member.index for member in homes(fleet, 4800).values())
    assert len(counts) == 16
    assert max(counts.values()) < 1.35 * 300
    assert min(counts.values()) > 0.65 * 300


def test_a_session_whose_replica_is_full_spills_and_returns() -> None:
    fleet = Fleet("session", size=4, cap=2)
    home = fleet.give(index=1)
    assert home is not None
    fleet.give(index=1)
    spilled = fleet.give(index=1)
    assert spilled is not home
    fleet.finish(home)
    assert fleet.give(index=1) is home
