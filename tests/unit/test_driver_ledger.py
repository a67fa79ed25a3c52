"""The exactly-once gate under every sequence of events that a dispatcher can feed it, with every balance policy.

A machine of random issues, answers, losses, holds, broken connections and given-up tries runs the real ledger against
a model that is as plain as possible; each step checks where every sample is and in which order the waiting ones stand.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from harness.driver.balance import make_policy
from harness.driver.ledger import Ledger, Member, Sample, TriesExhausted

CAP, SLOTS, MAX_TRIES, DEADLINE_NS = 3, 4, 4, 1000


def put_back(waiting: list[Sample], *returned: Sample) -> list[Sample]:
    """Each to the front, behind those there that were issued before it."""
    queue = list(waiting)
    for sample in returned:
        place = next((i for i, other in enumerate(queue) if other.seq > sample.seq), len(queue))
        queue.insert(place, sample)
    return queue


class LedgerMachine(RuleBasedStateMachine):
    policy_name = ""
    slots = st.integers(0, SLOTS - 1)

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger(make_policy(self.policy_name, CAP), self.send, max_tries=MAX_TRIES, deadline_ns=DEADLINE_NS)
        self.now_ns = 0
        self.issued: list[Sample] = []
        self.completed: set[int] = set()
        self.tries: dict[int, int] = {}
        self.sent: list[Sample] = []  # in this step
        self.broken: set[Member] = set()
        self.lives = 0
        self.stale = 0
        self.returned = 0
        self.over = False

    # --- what the ledger calls ---------------------------------------------------------------------------

    def send(self, member: Member, sample: Sample) -> bool:
        assert member.accepting, "a sample went to a member that takes none"
        assert len(member.inflight) < CAP, "a sample went to a member at its cap"
        assert sample.tries == self.tries.get(sample.seq, 0) + 1
        self.chosen_fairly(member)
        if member in self.broken:
            return False
        self.tries[sample.seq] = sample.tries
        self.sent.append(sample)
        return True

    def chosen_fairly(self, member: Member) -> None:
        accepting = [other for other in self.ledger.members.values() if other.accepting and len(other.inflight) < CAP]
        if self.policy_name == "least_outstanding":
            assert len(member.inflight) == min(len(other.inflight) for other in accepting)
        elif self.policy_name == "least_tokens":
            assert member.tokens == min(other.tokens for other in accepting)

    # --- events ------------------------------------------------------------------------------------------

    def step(self) -> list[Sample]:
        self.now_ns += 10
        self.sent = []
        return list(self.ledger.waiting)

    def check_order(self, expected: Iterable[Sample]) -> None:
        """What was waiting has either been sent, oldest first, or still waits in that order."""
        assert [s.seq for s in (*self.sent, *self.ledger.waiting)] == [s.seq for s in expected]

    @rule(slot=slots)
    def join(self, slot: int) -> None:
        name = f"node000/gpu{slot}"
        if self.over or name in self.ledger.members:
            return
        waiting = self.step()
        self.lives += 1
        self.ledger.join(Member(slot, name, f"life{self.lives}", self.lives, b"id%d" % self.lives), self.now_ns)
        self.check_order(waiting)

    @precondition(lambda self: not self.over)
    @rule(index=st.integers(0, 9), cost=st.integers(1, 50))
    def issue(self, index: int, cost: int) -> None:
        waiting = self.step()
        sample = Sample(len(self.issued), 1000 + len(self.issued), index, self.now_ns, self.now_ns, cost)
        self.issued.append(sample)
        self.ledger.issue(sample, self.now_ns)
        self.check_order([*waiting, sample])

    @precondition(lambda self: not self.over and self.ledger.inflight)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        sample = self.some_inflight(data)
        member = sample.member
        assert member is not None
        waiting = self.step()
        assert self.ledger.current(sample.seq, sample.tries, member.identity, self.now_ns) is sample
        assert member.last_reply_ns == self.now_ns
        assert self.ledger.complete(sample, self.now_ns) is member
        assert sample.seq not in self.completed
        self.completed.add(sample.seq)
        self.check_order(waiting)
        assert self.ledger.current(sample.seq, sample.tries, member.identity, self.now_ns) is None, "completed twice"
        self.stale += 1

    @precondition(lambda self: not self.over and self.ledger.inflight)
    @rule(data=st.data())
    def first(self, data: st.DataObject) -> None:
        """Passing the gate leaves the sample where it is, however often it does."""
        sample = self.some_inflight(data)
        assert sample.member is not None
        for _ in range(2):
            assert self.ledger.current(sample.seq, sample.tries, sample.member.identity, self.now_ns) is sample
        assert self.ledger.inflight[sample.seq] is sample

    @precondition(lambda self: not self.over)
    @rule(seq=st.integers(0, 30), attempt_try=st.integers(0, MAX_TRIES + 1), identity=st.integers(0, 12))
    def stray_reply(self, seq: int, attempt_try: int, identity: int) -> None:
        sample = self.ledger.inflight.get(seq)
        name = b"id%d" % identity
        if sample is not None and sample.member is not None and (sample.tries, sample.member.identity) == (attempt_try, name):
            return
        assert self.ledger.current(seq, attempt_try, name, self.now_ns) is None
        self.stale += 1

    @precondition(lambda self: not self.over and self.ledger.inflight)
    @rule(data=st.data())
    def reply_of_another_try(self, data: st.DataObject) -> None:
        sample = self.some_inflight(data)
        assert sample.member is not None
        for other in {sample.tries - 1, sample.tries + 1}:
            assert self.ledger.current(sample.seq, other, sample.member.identity, self.now_ns) is None
            self.stale += 1

    @precondition(lambda self: not self.over and self.ledger.members)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.drop_member(self.some_member(data))

    def drop_member(self, member: Member) -> None:
        back = list(member.inflight.values())
        waiting = self.step()
        try:
            assert self.ledger.drop(member, self.now_ns, "lost") == back
            assert all(sample.tries <= MAX_TRIES for sample in back)
        except TriesExhausted:
            assert any(self.tries[sample.seq] >= MAX_TRIES for sample in back)
            self.over = True
        self.returned += sum(self.tries_before(sample) < MAX_TRIES for sample in back)
        self.check_order(put_back(waiting, *reversed(back)))
        assert not member.inflight
        assert member.tokens == 0
        assert self.ledger.members.get(member.slot) is not member

    def tries_before(self, sample: Sample) -> int:
        return self.tries[sample.seq] - sum(sent is sample for sent in self.sent)

    @precondition(lambda self: not self.over and self.ledger.members)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        member = self.some_member(data)
        waiting = self.step()
        kept = list(member.inflight.values())
        self.ledger.hold(member)
        self.ledger.hold(member)
        assert list(member.inflight.values()) == kept
        self.check_order(waiting)

    @precondition(lambda self: not self.over and self.ledger.members)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        waiting = self.step()
        self.ledger.release(self.some_member(data), self.now_ns)
        self.check_order(waiting)

    @precondition(lambda self: not self.over and self.ledger.inflight)
    @rule(data=st.data())
    def give_up_try(self, data: st.DataObject) -> None:
        sample = self.some_inflight(data)
        tries = sample.tries
        waiting = self.step()
        try:
            self.ledger.give_up_try(sample, self.now_ns, "no answer")
            assert tries < MAX_TRIES
            self.returned += 1
        except TriesExhausted:
            assert tries == MAX_TRIES
            self.over = True
        self.check_order(put_back(waiting, sample))

    @precondition(lambda self: not self.over and self.ledger.members)
    @rule(data=st.data())
    def connection_breaks(self, data: st.DataObject) -> None:
        self.broken.add(self.some_member(data))

    @precondition(lambda self: not self.over)
    @rule()
    def housekeeping_drops_whom_a_send_did_not_reach(self) -> None:
        found = self.ledger.take_unreachable()
        assert set(found) <= self.broken
        assert self.ledger.take_unreachable() == []
        for member in found:
            if self.ledger.members.get(member.slot) is member and not self.over:
                self.drop_member(member)

    def some_inflight(self, data: st.DataObject) -> Sample:
        return self.ledger.inflight[data.draw(st.sampled_from(sorted(self.ledger.inflight)))]

    def some_member(self, data: st.DataObject) -> Member:
        return self.ledger.members[data.draw(st.sampled_from(sorted(self.ledger.members)))]

    # --- what always holds -------------------------------------------------------------------------------

    @invariant()
    def every_sample_is_in_exactly_one_place(self) -> None:
        waiting = [sample.seq for sample in self.ledger.waiting]
        held = [seq for member in self.ledger.members.values() for seq in member.inflight]
        places = [*waiting, *held, *self.completed]
        assert sorted(places) == [sample.seq for sample in self.issued]
        assert set(self.ledger.inflight) == set(held)
        for member in self.ledger.members.values():
            assert all(sample.member is member for sample in member.inflight.values())
        assert all(sample.member is None for sample in self.ledger.waiting)

    @invariant()
    def samples_never_sent_wait_in_the_order_of_their_issue(self) -> None:
        fresh = [sample.seq for sample in self.ledger.waiting if sample.tries == 0]
        assert fresh == sorted(fresh)

    @invariant()
    def caps_and_bookkeeping_hold(self) -> None:
        for member in self.ledger.members.values():
            assert len(member.inflight) <= CAP
            dispatched = [sample.dispatched_ns for sample in member.inflight.values()]
            assert dispatched == sorted(dispatched)
            if self.policy_name == "least_tokens":
                assert member.tokens == sum(sample.cost for sample in member.inflight.values())
        assert self.ledger.accepting == sum(member.accepting for member in self.ledger.members.values())

    @invariant()
    def nothing_waits_while_somebody_has_room(self) -> None:
        if self.ledger.waiting and not self.over:
            assert not [m for m in self.ledger.members.values() if m.accepting and len(m.inflight) < CAP]

    @invariant()
    def counters_count(self) -> None:
        assert self.ledger.stale == self.stale
        assert self.ledger.redispatched == self.returned
        assert all(sample.tries == self.tries.get(sample.seq, 0) <= MAX_TRIES for sample in self.issued)


@pytest.mark.parametrize("policy", ["least_outstanding", "round_robin", "least_tokens", "session"])
def test_no_sequence_of_events_loses_doubles_or_reorders_a_sample(policy: str) -> None:
    machine = type("Machine", (LedgerMachine,), {"policy_name": policy})
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=50, deadline=None))


class Sent(list[tuple[str, int, int]]):
    """(slot, seq, try) of every QUERY; members named in `broken` cannot be reached."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()

    def __call__(self, member: Member, sample: Sample) -> bool:
        if member.slot in self.broken:
            return False
        self.append((member.slot, sample.seq, sample.tries))
        return True


def make(cap: int = 8, max_tries: int = 3) -> tuple[Ledger, Sent]:
    sent = Sent()
    return Ledger(make_policy("least_outstanding", cap), sent, max_tries=max_tries, deadline_ns=DEADLINE_NS), sent


def member(number: int) -> Member:
    return Member(number, f"node000/gpu{number}", f"life{number}", 1, b"id%d" % number)


def sample(seq: int) -> Sample:
    return Sample(seq, 100 + seq, seq, 0, 5 + seq)


def test_a_lost_members_samples_are_sent_again_first_in_their_order_with_their_issue_time() -> None:
    ledger, sent = make(cap=3)
    lost = member(0)
    ledger.join(lost, 0)
    for seq in range(5):  # three in flight, two waiting
        ledger.issue(sample(seq), 10)
    ledger.drop(lost, 20, "lease over")
    assert [s.seq for s in ledger.waiting] == [0, 1, 2, 3, 4]
    sent.clear()
    ledger.join(member(1), 30)
    assert sent == [("node000/gpu1", 0, 2), ("node000/gpu1", 1, 2), ("node000/gpu1", 2, 2)]
    assert [(s.issued_ns, s.dispatched_ns) for s in ledger.inflight.values()] == [(5, 30), (6, 30), (7, 30)]
    assert ledger.redispatched == 3


def test_a_send_that_reaches_nobody_is_not_a_try_and_the_sample_goes_to_the_next_member() -> None:
    ledger, sent = make()
    first, second = member(0), member(1)
    ledger.join(first, 0)
    ledger.join(second, 0)
    sent.broken.add(first.slot)
    ledger.issue(sample(0), 10)
    assert sent == [("node000/gpu1", 0, 1)]
    assert ledger.take_unreachable() == [first]
    assert not first.accepting
    ledger.issue(sample(1), 10)
    assert sent[-1] == ("node000/gpu1", 1, 1)


def test_with_nobody_to_reach_the_samples_wait_in_order() -> None:
    ledger, sent = make()
    sent.broken.add("node000/gpu0")
    ledger.join(member(0), 0)
    for seq in range(3):
        ledger.issue(sample(seq), 10)
    assert [s.seq for s in ledger.waiting] == [0, 1, 2]
    assert [s.tries for s in ledger.waiting] == [0, 0, 0]
    assert ledger.accepting == 0


def test_a_reply_over_another_connection_does_not_count_and_is_no_sign_of_life() -> None:
    ledger, _ = make()
    held = member(0)
    ledger.join(held, 0)
    ledger.issue(sample(0), 10)
    assert ledger.current(0, 1, b"somebody else", 20) is None
    assert (ledger.stale, held.last_reply_ns) == (1, -1)


def test_a_member_that_lost_its_slot_to_a_newer_one_takes_only_itself_out() -> None:
    ledger, _ = make()
    old, new = member(0), member(0)
    ledger.join(old, 0)
    ledger.join(new, 0)
    ledger.drop(old, 10, "replaced")
    assert ledger.members == {"node000/gpu0": new}


def test_exhausted_tries_end_with_the_samples_name_and_lose_none() -> None:
    ledger, _ = make(max_tries=2)
    for life in range(2):
        again = member(0)
        ledger.join(again, life)
        if life == 0:
            for seq in range(3):
                ledger.issue(sample(seq), 0)
            ledger.drop(again, 5, "crash 1")
    with pytest.raises(TriesExhausted, match=r"sample \d \(QSL index \d\) failed 2 tries; the last one: crash 2"):
        ledger.drop(again, 6, "crash 2")
    assert [s.seq for s in ledger.waiting] == [0, 1, 2]
    assert not ledger.inflight


def test_overdue_names_exactly_the_samples_past_their_deadline_and_leaves_them() -> None:
    ledger, _ = make()
    one, two = member(0), member(1)
    ledger.join(one, 0)
    ledger.join(two, 0)
    for seq in range(4):
        ledger.issue(sample(seq), 100 * seq)
    late = ledger.overdue(DEADLINE_NS + 150)
    assert sorted((s.seq, m.slot) for s, m in late) == [(0, "node000/gpu0"), (1, "node000/gpu1")]
    assert len(ledger.inflight) == 4
    assert ledger.overdue(DEADLINE_NS - 1) == []


def test_a_held_member_finishes_what_it_has_and_gets_nothing_new() -> None:
    ledger, sent = make()
    held = member(0)
    ledger.join(held, 0)
    ledger.issue(sample(0), 0)
    ledger.hold(held)
    ledger.issue(sample(1), 1)
    found = ledger.current(0, 1, held.identity, 2)
    assert found is not None
    ledger.complete(found, 2)
    assert [seq for _, seq, _ in sent] == [0]
    ledger.release(held, 3)
    assert [seq for _, seq, _ in sent] == [0, 1]
