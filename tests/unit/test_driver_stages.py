"""Two stages under every sequence of events that a dispatcher can feed them, and each rule of theirs by itself.

The machine plays all replicas: each keeps the queries it was sent, answers some, some twice or late, and its driver loses,
holds and gives up what it likes. A sample is looked for in all places after each step.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from harness.driver.ledger import Member, Sample, TriesExhausted
from harness.driver.staged import StagedSample
from harness.driver.stages import Stages
from harness.wire.data import DECODE, PREFILL, Prefilled

CAP, MAX_TRIES, DEADLINE_NS = 3, 4, 1000
N_PROMPT = list(range(10, 110, 10))
ROLES = ("prefill", "prefill", "decode", "decode")
EPOCH = 7
Query = tuple[Member, int, int, int]  # member, seq, try, stage


def prefilled(seq: int, attempt_try: int) -> Prefilled:
    return Prefilled(EPOCH, seq, attempt_try, 11, 12)


def make_stages(
    send: Callable[[Member, Sample], bool],
    cancel: Callable[[Member, Sample], None],
    policies: tuple[str, str],
    cap: int = CAP,
    pairs_deadline_ns: int | None = None,
) -> Stages:
    return Stages(
        send,
        cancel,
        N_PROMPT,
        prefill_policy=policies[0],
        decode_policy=policies[1],
        cap=cap,
        max_tries=MAX_TRIES,
        deadline_ns=DEADLINE_NS,
        pairs_deadline_ns=pairs_deadline_ns,
    )


class StagesMachine(RuleBasedStateMachine):
    policies = ("least_outstanding", "least_outstanding")
    one_connection = False  # all replicas behind the same identity

    @initialize()
    def begin(self) -> None:
        self.stages = make_stages(self.send, self.cancel, self.policies)
        self.now_ns = 0
        self.issued: list[StagedSample] = []
        self.completed: set[int] = set()
        self.firsts: set[int] = set()
        self.sent: list[Query] = []  # all there were
        self.cancelled: set[tuple[Member, int, int]] = set()
        self.rounds: dict[int, int] = {}
        self.broken: set[Member] = set()
        self.held: set[Member] = set()
        self.lives = 0
        self.over = False

    def send(self, member: Member, sample: Sample) -> bool:
        assert member.accepting
        assert len(member.inflight) < CAP
        assert member.role == ("decode" if sample.stage == DECODE else "prefill")
        if member in self.broken:
            return False
        seq, tries = sample.seq, sample.tries
        if sample.stage == PREFILL:
            assert tries == self.rounds.get(seq, 0) + 1
            self.rounds[seq] = tries
        else:
            assert tries == self.rounds[seq], "the decode query is of its prefill's round"
            assert sample.handoff == b"kv %d of %d" % (tries, seq)
        query = (member, seq, tries, sample.stage)
        assert not [old for old in self.sent if old[1:] == query[1:]], "one query a round and stage"
        self.sent.append(query)
        return True

    def cancel(self, member: Member, sample: Sample) -> None:
        self.cancelled.add((member, sample.seq, sample.tries))

    def feed(self, event: Callable[[], object]) -> None:
        self.now_ns += 10
        try:
            event()
        except TriesExhausted:
            self.over = True

    def some(self, data: st.DataObject, found: list[Query]) -> Query:
        return data.draw(st.sampled_from(found))

    def of_stage(self, stage: int) -> list[Query]:
        return [query for query in self.sent if query[3] == stage]

    # --- events ------------------------------------------------------------------------------------------

    @rule(place=st.integers(0, len(ROLES) - 1), held=st.booleans())
    def join(self, place: int, held: bool) -> None:
        slot = f"node000/gpu{place}"
        if self.over or slot in self.stages.members:
            return
        self.lives += 1
        identity = b"one" if self.one_connection else b"id%d" % self.lives
        member = Member(place, slot, f"life{self.lives}", self.lives, identity, ROLES[place])
        if held:
            self.held.add(member)
        self.feed(lambda: self.stages.join(member, self.now_ns, held=held))

    @precondition(lambda self: not self.over)
    @rule(index=st.integers(0, 9))
    def issue(self, index: int) -> None:
        sample = StagedSample(len(self.issued), 1000 + len(self.issued), index, self.now_ns, self.now_ns, 40)
        self.issued.append(sample)
        self.feed(lambda: self.stages.issue(sample, self.now_ns))

    @precondition(lambda self: not self.over and self.of_stage(PREFILL))
    @rule(data=st.data())
    def answers_prefilled(self, data: st.DataObject) -> None:
        """In time, late or again; it counts for the current round of a sample that is at that member."""
        member, seq, tries, _ = self.some(data, self.of_stage(PREFILL))
        sample = self.issued[seq]
        counts = sample.member is member and sample.tries == tries and sample.stage == PREFILL
        before, stale = self.stages.prefilled_samples, self.stages.stale
        handoff = b"kv %d of %d" % (tries, seq)
        self.feed(lambda: self.stages.prefilled(prefilled(seq, tries), member.identity, handoff, self.now_ns))
        if counts or not self.one_connection:
            assert (self.stages.prefilled_samples - before, self.stages.stale - stale) == ((1, 0) if counts else (0, 1))

    @precondition(lambda self: not self.over and self.of_stage(DECODE))
    @rule(data=st.data(), complete=st.booleans())
    def answers_with_tokens(self, data: st.DataObject, complete: bool) -> None:
        member, seq, tries, _ = self.some(data, self.of_stage(DECODE))
        self.reply(member, seq, tries, complete)

    @precondition(lambda self: not self.over and self.sent)
    @rule(data=st.data(), shift=st.sampled_from([-1, 0, 0, 1]), complete=st.booleans())
    def tokens_from_the_wrong_stage_or_round(self, data: st.DataObject, shift: int, complete: bool) -> None:
        member, seq, tries, _ = self.some(data, self.sent)
        self.reply(member, seq, tries + shift, complete)

    def reply(self, member: Member, seq: int, tries: int, complete: bool) -> None:
        holder = self.issued[seq].holder
        sample: Sample | None = None

        def answer() -> None:
            nonlocal sample
            sample = self.stages.current(seq, tries, member.identity, self.now_ns)
            if sample is None:
                return
            assert sample is self.issued[seq]
            assert sample.stage == DECODE
            assert holder is None or seq not in holder.inflight, "the cache has come over: the prefill replica lets it go"
            if sample.first_ns < 0:
                assert seq not in self.firsts
                self.firsts.add(seq)
                sample.first_ns = self.now_ns
            if complete:
                assert seq not in self.completed
                self.completed.add(seq)
                assert self.stages.complete(sample, self.now_ns).role == "decode"

        self.feed(answer)

    @precondition(lambda self: not self.over and self.sent)
    @rule(data=st.data())
    def fails(self, data: st.DataObject) -> None:
        member, seq, tries, _ = self.some(data, self.sent)
        self.feed(lambda: self.stages.failed(seq, tries, member.identity, self.now_ns, "no room"))

    @precondition(lambda self: not self.over and self.stages.members)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.drop_member(self.some_member(data))

    def drop_member(self, member: Member) -> None:
        at_decode = [
            (sample.member, sample.seq, sample.tries)
            for sample in self.issued
            if sample.holder is member and sample.member is not None and sample.member is not member
        ]
        self.feed(lambda: self.stages.drop(member, self.now_ns, "lost"))
        assert not member.inflight
        if member.role == "prefill":
            assert set(at_decode) <= self.cancelled

    @precondition(lambda self: not self.over and self.stages.members)
    @rule(data=st.data(), hold=st.booleans())
    def hold_or_release(self, data: st.DataObject, hold: bool) -> None:
        member = self.some_member(data)
        kept = dict(member.inflight)
        if hold:
            self.held.add(member)
            self.feed(lambda: self.stages.hold(member))
            assert member.inflight == kept
        else:
            self.held.discard(member)
            self.feed(lambda: self.stages.release(member, self.now_ns))

    @precondition(lambda self: not self.over)
    @rule(later_ns=st.sampled_from([0, DEADLINE_NS // 2, DEADLINE_NS + 1]))
    def overdue_ones_are_given_up(self, later_ns: int) -> None:
        self.now_ns += later_ns
        late = self.stages.overdue(self.now_ns)
        expected = {
            sample.seq
            for sample in self.issued
            if sample.member is not None
            and sample.dispatched_ns <= self.now_ns - DEADLINE_NS
            and sample.seq not in self.completed
        }
        assert {sample.seq for sample, _ in late} == expected
        for sample, member in reversed(late):
            assert sample.member is member
            if not self.over:
                self.feed(lambda sample=sample: self.stages.give_up_try(sample, self.now_ns, "no answer"))  # type: ignore[misc]

    @precondition(lambda self: not self.over and self.stages.members)
    @rule(data=st.data())
    def connection_breaks(self, data: st.DataObject) -> None:
        self.broken.add(self.some_member(data))

    @precondition(lambda self: not self.over)
    @rule()
    def unreachable_ones_are_dropped(self) -> None:
        for member in self.stages.take_unreachable():
            assert member in self.broken
            if self.stages.members.get(member.slot) is member and not self.over:
                self.drop_member(member)

    def some_member(self, data: st.DataObject) -> Member:
        return self.stages.members[data.draw(st.sampled_from(sorted(self.stages.members)))]

    # --- what always holds -------------------------------------------------------------------------------

    @invariant()
    def every_sample_is_in_exactly_one_place(self) -> None:
        first, second = self.stages.prefill, self.stages.decode
        places = [
            *(sample.seq for sample in first.waiting),
            *first.inflight,
            *(sample.seq for sample in second.waiting),
            *second.inflight,
            *self.completed,
        ]
        assert sorted(places) == [sample.seq for sample in self.issued]
        assert self.stages.open == len(self.issued) - len(self.completed)
        for sample in self.issued:
            if sample.seq in self.completed:
                continue
            here = first if sample.stage == PREFILL else second
            assert (sample.seq in here.inflight) == (sample.member is not None)
            assert sample in here.waiting or sample.seq in here.inflight
            assert sample.member is None or sample.member.inflight[sample.seq] is sample

    @invariant()
    def prefill_replicas_hold_what_is_there_and_what_has_not_come_over(self) -> None:
        for member in self.stages.members.values():
            mine = {
                sample.seq
                for sample in self.issued
                if sample.seq not in self.completed and (sample.member is member or sample.holder is member)
            }
            assert set(member.inflight) == mine
            assert len(member.inflight) <= CAP
        for sample in self.issued:
            waits_for_decode = sample.stage == DECODE and sample.member is None and sample.seq not in self.completed
            assert not waits_for_decode or sample.holder is not None, "a cache that nobody holds cannot be fetched"
            assert sample.stage == DECODE or sample.holder is None
            assert (sample.prefill_slot >= 0) == (sample.stage == DECODE)

    @invariant()
    def token_counts_are_those_of_the_table(self) -> None:
        if self.policies != ("least_tokens", "least_tokens"):
            return
        for member in self.stages.members.values():
            costs = [N_PROMPT[s.index] if member.role == "prefill" else s.cost for s in member.inflight.values()]
            assert member.tokens == sum(costs)

    @invariant()
    def nothing_waits_while_somebody_has_room(self) -> None:
        for ledger in (self.stages.prefill, self.stages.decode):
            if ledger.waiting and not self.over:
                assert not [m for m in ledger.members.values() if m.accepting and len(m.inflight) < CAP]

    @invariant()
    def whoever_is_on_hold_or_gone_takes_nothing(self) -> None:
        assert not [member for member in self.held if member.accepting]
        for ledger in (self.stages.prefill, self.stages.decode):
            assert ledger.accepting == sum(member.accepting for member in ledger.members.values())

    @invariant()
    def rounds_are_counted(self) -> None:
        assert all(sample.tries == self.rounds.get(sample.seq, 0) <= MAX_TRIES for sample in self.issued)


class PairsMachine(StagesMachine):
    """The same where members have to meet before they take samples."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.stages = make_stages(self.send, self.cancel, self.policies, pairs_deadline_ns=DEADLINE_NS)
        assert self.stages.pairs is not None
        self.pairs = self.stages.pairs
        self.pairs.wanted = True
        self.warmups: list[Query] = []  # that nobody has answered yet
        self.senders: dict[int, Member] = {}
        self.met: set[tuple[Member, Member]] = set()

    def send(self, member: Member, sample: Sample) -> bool:
        if sample.seq >= 0:
            return super().send(member, sample)
        if member in self.broken:
            return False
        self.warmups.append((member, sample.seq, sample.tries, sample.stage))
        return True

    @precondition(lambda self: not self.over and self.warmups)
    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def a_warm_up_is_answered(self, data: st.DataObject, fails: bool) -> None:
        query = member, seq, tries, stage = self.some(data, self.warmups)
        self.warmups.remove(query)
        if fails:
            self.feed(lambda: self.stages.failed(seq, tries, member.identity, self.now_ns, "no room"))
        elif stage == PREFILL:
            self.senders[seq] = member
            self.feed(lambda: self.stages.prefilled(prefilled(seq, tries), member.identity, b"kv", self.now_ns))
        else:
            self.met.add((self.senders[seq], member))
            self.feed(lambda: self.stages.current(seq, tries, member.identity, self.now_ns))

    @precondition(lambda self: not self.over)
    @rule()
    def tick(self) -> None:
        self.feed(lambda: self.pairs.tick(self.now_ns))

    @invariant()
    def whoever_takes_samples_has_met_all_others_that_do(self) -> None:
        taking = [[m for m in ledger.members.values() if m.accepting] for ledger in (self.stages.prefill, self.stages.decode)]
        assert {(first, second) for first in taking[0] for second in taking[1]} <= self.met

    def teardown(self) -> None:
        """Once all answer and nobody is kept out, all are taken."""
        self.broken.clear()
        while not self.over and not all(member.accepting for member in self.stages.members.values()):
            assert self.now_ns < 10**6, "somebody is never taken"
            self.now_ns += DEADLINE_NS // 4
            self.feed(lambda: self.pairs.tick(self.now_ns))
            for member in [member for member in self.stages.members.values() if not member.accepting]:
                self.held.discard(member)
                self.feed(lambda member=member: self.stages.release(member, self.now_ns))  # type: ignore[misc]
            for member, seq, tries, stage in self.warmups:
                if stage == PREFILL:
                    self.feed(lambda: self.stages.prefilled(prefilled(seq, tries), member.identity, b"kv", self.now_ns))  # noqa: B023
                else:
                    self.feed(lambda: self.stages.current(seq, tries, member.identity, self.now_ns))  # noqa: B023


@pytest.mark.parametrize("machine", [StagesMachine, PairsMachine])
@pytest.mark.parametrize("one_connection", [False, True])
@pytest.mark.parametrize("policies", [("least_outstanding",) * 2, ("least_tokens",) * 2, ("round_robin", "session")])
def test_no_sequence_of_events_loses_doubles_or_mixes_up_a_sample(
    machine: type[StagesMachine], policies: tuple[str, str], one_connection: bool
) -> None:
    machine = type("Machine", (machine,), {"policies": policies, "one_connection": one_connection})
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=60, deadline=None))


# --- each rule by itself ---------------------------------------------------------------------------------------------


class Rig:
    """Stages with two prefill and two decode replicas, and what was sent and cancelled: (slot, seq, try)."""

    def __init__(self, *, cap: int = 8, replicas: str = "PPDD") -> None:
        self.sent: list[tuple[str, int, int]] = []
        self.cancelled: list[tuple[str, int, int]] = []
        self.broken: set[str] = set()
        self.stages = make_stages(self.send, self.cancel, ("least_outstanding", "least_outstanding"), cap)
        self.members = [self.member(place, letter) for place, letter in enumerate(replicas)]
        for member in self.members:
            self.stages.join(member, 0)

    def member(self, place: int, letter: str, life: int = 1) -> Member:
        role = {"P": "prefill", "D": "decode"}[letter]
        return Member(place, f"{letter}{place}", f"life{life}", life, b"%d of %d" % (life, place), role)

    def send(self, member: Member, sample: Sample) -> bool:
        if member.slot in self.broken:
            return False
        self.sent.append((member.slot, sample.seq, sample.tries))
        return True

    def cancel(self, member: Member, sample: Sample) -> None:
        self.cancelled.append((member.slot, sample.seq, sample.tries))

    def issue(self, *seqs: int, at_ns: int = 10) -> list[StagedSample]:
        samples = [StagedSample(seq, 100 + seq, seq, 1, 5 + seq, 40) for seq in seqs]
        for sample in samples:
            self.stages.issue(sample, at_ns)
        return samples

    def prefilled(self, sample: StagedSample, at_ns: int = 20) -> None:
        assert sample.member is not None
        self.stages.prefilled(prefilled(sample.seq, sample.tries), sample.member.identity, b"kv", at_ns)

    def first(self, sample: StagedSample, at_ns: int = 30) -> Sample | None:
        assert sample.member is not None
        return self.stages.current(sample.seq, sample.tries, sample.member.identity, at_ns)


def test_a_sample_is_prefilled_first_and_then_decoded_with_the_handoff_in_the_same_round() -> None:
    rig = Rig()
    (sample,) = rig.issue(3)
    assert rig.sent == [("P0", 3, 1)]
    rig.prefilled(sample)
    assert rig.sent == [("P0", 3, 1), ("D2", 3, 1)]
    assert (sample.handoff, sample.prefill_slot, sample.prefilled_ns) == (b"kv", 0, 20)
    assert (sample.queue_us, sample.prefill_us) == (11, 12)
    assert (rig.stages.prefilled_samples, rig.stages.prefilled_tokens) == (1, N_PROMPT[3])
    assert rig.first(sample) is sample
    sample.note_durations(5, 777)
    assert (sample.queue_us, sample.prefill_us, sample.transfer_us) == (11, 12, 777), (
        "queue and prefill are the prefill replica's"
    )
    assert rig.stages.complete(sample, 40) is rig.members[2]
    assert (sample.dispatched_ns, rig.stages.open, rig.stages.in_flight) == (10, 0, 0)


def test_the_decode_replica_is_chosen_only_when_the_prefill_is_done() -> None:
    rig = Rig(replicas="PPDD")
    one, two = rig.issue(0, 1)
    rig.prefilled(two)
    rig.prefilled(one)
    assert rig.sent[2:] == [("D2", 1, 1), ("D3", 0, 1)]


def test_a_late_or_doubled_prefilled_changes_nothing() -> None:
    rig = Rig()
    (sample,) = rig.issue(0)
    prefill = sample.member
    assert prefill is not None
    rig.prefilled(sample)
    sent = list(rig.sent)
    rig.stages.prefilled(prefilled(0, 1), prefill.identity, b"other", 25)
    assert (rig.sent, sample.handoff, rig.stages.stale) == (sent, b"kv", 1)
    rig.first(sample)
    rig.stages.complete(sample, 40)
    rig.stages.prefilled(prefilled(0, 1), prefill.identity, b"other", 45)
    assert (rig.sent, rig.stages.stale, rig.stages.open) == (sent, 2, 0)


def test_tokens_from_the_prefill_stage_do_not_count() -> None:
    rig = Rig()
    (sample,) = rig.issue(0)
    assert rig.first(sample) is None
    assert rig.stages.stale == 1
    assert sample.stage == PREFILL


def test_losing_the_prefill_replica_before_it_is_done_sends_the_sample_to_another_one_first() -> None:
    rig = Rig(replicas="PD", cap=2)
    rig.issue(0, 1, 2, 3)
    rig.stages.drop(rig.members[0], 20, "lease over")
    assert [sample.seq for sample in rig.stages.prefill.waiting] == [0, 1, 2, 3]
    rig.stages.join(rig.member(0, "P", life=2), 30)
    assert rig.sent[2:] == [("P0", 0, 2), ("P0", 1, 2)]
    assert [s.issued_ns for s in rig.stages.prefill.inflight.values()] == [5, 6]


def test_a_lost_prefill_replica_takes_its_caches_with_it_until_they_have_come_over() -> None:
    """One sample is past its first token, one is at the decode replica before it, one waits for a decode replica."""
    rig = Rig(replicas="PD")
    prefill, decode = rig.members
    over, fetching, waiting = rig.issue(0, 1, 2)
    rig.prefilled(over)
    assert rig.first(over) is over
    rig.prefilled(fetching)
    rig.stages.hold(decode)
    rig.prefilled(waiting)
    assert list(rig.stages.decode.waiting) == [waiting]
    assert list(prefill.inflight) == [1, 2]
    rig.stages.drop(prefill, 50, "crashed")
    assert rig.cancelled == [("D1", 1, 1)]
    assert list(rig.stages.decode.inflight) == [0], "what has come over needs the lost replica no more"
    assert list(rig.stages.prefill.waiting) == [fetching, waiting]
    assert not rig.stages.decode.waiting
    assert rig.stages.redispatched == 2
    assert rig.stages.current(1, 1, decode.identity, 60) is None, "a first token after all"


@pytest.mark.parametrize("how", ["lost", "failed", "overdue"])
def test_whatever_the_decode_replica_does_not_finish_begins_a_new_round_at_prefill(how: str) -> None:
    rig = Rig(replicas="PD")
    (sample,) = rig.issue(0)
    rig.prefilled(sample, at_ns=500)
    decode = sample.member
    assert decode is rig.members[1]
    if how == "lost":
        rig.stages.drop(decode, 600, "crashed")
    elif how == "failed":
        rig.stages.failed(0, 1, decode.identity, 600, "no KV cache")
    else:
        assert rig.stages.overdue(500 + DEADLINE_NS - 1) == [], "the deadline is of each dispatch"
        assert rig.stages.overdue(500 + DEADLINE_NS) == [(sample, decode)]
        rig.stages.give_up_try(sample, 500 + DEADLINE_NS, "no answer")
    assert rig.sent == [("P0", 0, 1), ("D1", 0, 1), ("P0", 0, 2)]
    assert (sample.handoff, sample.prefill_slot, sample.stage, sample.issued_ns) == (b"", -1, PREFILL, 5)
    assert len(rig.members[0].inflight) == 1


def test_rounds_are_limited_and_the_last_ones_reason_is_told() -> None:
    rig = Rig(replicas="PD")
    (sample,) = rig.issue(0)
    for _ in range(MAX_TRIES - 1):
        rig.prefilled(sample)
        rig.stages.failed(0, sample.tries, rig.members[1].identity, 30, "no KV cache")
    rig.prefilled(sample)
    with pytest.raises(TriesExhausted, match=r"sample 0 \(QSL index 0\) failed 4 tries; the last one: no KV cache"):
        rig.stages.failed(0, sample.tries, rig.members[1].identity, 30, "no KV cache")
    assert rig.stages.open == 1


def test_a_prefill_replica_on_hold_has_something_left_until_its_caches_have_come_over() -> None:
    rig = Rig(replicas="PD")
    (sample,) = rig.issue(0)
    rig.stages.hold(rig.members[0])
    rig.prefilled(sample)
    assert list(rig.members[0].inflight) == [0]
    rig.first(sample)
    assert not rig.members[0].inflight


def test_caches_that_wait_count_against_the_cap_of_their_prefill_replica() -> None:
    rig = Rig(replicas="P", cap=2)
    samples = rig.issue(0, 1, 2)
    rig.prefilled(samples[0])
    rig.prefilled(samples[1])
    assert rig.sent == [("P0", 0, 1), ("P0", 1, 1)]
    assert rig.stages.lacking() == {"decode": 2}
    rig.stages.join(rig.member(1, "D"), 30)
    rig.first(samples[0])
    assert rig.sent[2:] == [("D1", 0, 1), ("D1", 1, 1), ("P0", 2, 1)]
    assert rig.stages.lacking() == {}


def test_a_decode_replica_that_cannot_be_reached_costs_no_round() -> None:
    rig = Rig(replicas="PDD")
    rig.broken.add("D1")
    (sample,) = rig.issue(0)
    rig.prefilled(sample)
    assert rig.sent == [("P0", 0, 1), ("D2", 0, 1)]
    assert rig.stages.take_unreachable() == [rig.members[1]]


def test_roles_without_a_replica_that_takes_work_are_named() -> None:
    rig = Rig(replicas="D")
    assert rig.stages.lacking() == {}
    rig.issue(0, 1)
    assert rig.stages.lacking() == {"prefill": 2}


def test_room_that_a_lost_cache_leaves_at_a_decode_replica_is_used_at_once() -> None:
    rig = Rig(replicas="PPD", cap=2)
    (done,) = rig.issue(0)
    rig.prefilled(done)
    rig.first(done)
    lost, other = rig.issue(1, 2)
    rig.prefilled(lost)
    assert other.member is rig.members[0 if lost.prefill_slot else 1]
    rig.prefilled(other)
    assert list(rig.stages.decode.waiting) == [other]
    holder = lost.holder
    assert holder is not None
    rig.stages.drop(holder, 50, "crashed")
    assert rig.sent[-1] == ("D2", 2, 1)


def test_a_member_that_several_warm_ups_failed_to_reach_is_named_once() -> None:
    stages = make_stages(lambda *_: False, lambda *_: None, ("round_robin",) * 2, pairs_deadline_ns=DEADLINE_NS)
    members = [
        Member(place, f"node000/gpu{place}", "a", 1, b"id", role) for place, role in enumerate(("prefill", "decode", "decode"))
    ]
    for member in members:
        stages.join(member, 0)
    assert stages.pairs is not None
    stages.pairs.wanted = True
    stages.pairs.tick(1)
    assert stages.take_unreachable() == members[:1]
