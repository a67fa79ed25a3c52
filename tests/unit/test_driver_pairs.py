"""Pairs are warmed before their members take samples: all with all at first, a newcomer with all later, a few at a time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from harness.driver.ledger import Member, Sample
from harness.driver.pairs import OPEN_DIAGONALS, TRIES, Pairs
from harness.wire.data import DECODE, PREFILL

DEADLINE_NS = 10_000


class Rig:
    """`sent` holds what nobody has answered yet: (member, sample)."""

    def __init__(self, prefills: int, decodes: int, *, begin: bool = True) -> None:
        self.sent: list[tuple[Member, Sample]] = []
        self.accepted: list[str] = []
        self.broken: set[str] = set()
        self.seen: set[int] = set()
        self.busy: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.now_ns = 0
        self.pairs = Pairs(self.send, self.accept, [8, 200, 64, 90], deadline_ns=DEADLINE_NS)
        self.members: dict[str, Member] = {}
        for letter, count in (("P", prefills), ("D", decodes)):
            for number in range(count):
                self.join(f"{letter}{number}")
        self.pairs.wanted = begin
        self.given_up = self.tick()

    def member(self, name: str) -> Member:
        role = {"P": "prefill", "D": "decode"}[name[0]]
        return Member(len(self.members), name, f"life of {name}", 1, name.encode(), role)

    def join(self, name: str, *, held: bool = False) -> Member:
        member = self.members[name] = self.member(name)
        self.pairs.join(member, self.now_ns, held=held)
        return member

    def send(self, member: Member, sample: Sample) -> bool:
        assert sample.seq < 0, "no sample of an attempt has this number"
        assert sample.index in (1, 2, 3), "a prompt that fills a block"
        if member.slot in self.broken:
            return False
        self.sent.append((member, sample))
        self.busy[member.slot] += 1
        self.most[member.slot] = max(self.most[member.slot], self.busy[member.slot])
        return True

    def accept(self, member: Member, now_ns: int) -> None:
        assert not member.accepting
        member.accepting = True
        self.accepted.append(member.slot)

    def tick(self, after_ns: int = 1) -> list[tuple[str, str]]:
        self.now_ns += after_ns
        return [(stuck.member.slot, stuck.why) for stuck in self.pairs.tick(self.now_ns)]

    def answer(self, place: int = 0, failed: str = "") -> tuple[str, int]:
        """The replica answers what it was sent; returns its name and the stage."""
        member, sample = self.sent.pop(place)
        self.busy[member.slot] -= 1
        self.now_ns += 10
        stage = sample.stage
        if failed:
            self.pairs.failed(sample.seq, 1, member.identity, failed, self.now_ns)
        elif stage == PREFILL:
            self.pairs.prefilled(sample.seq, 1, member.identity, b"kv", self.now_ns)
        else:
            assert sample.handoff == b"kv"
            self.pairs.taken_over(sample.seq, 1, member.identity, self.now_ns)
        return member.slot, stage

    def answer_all(self) -> None:
        while self.sent:
            self.answer()


@pytest.mark.parametrize(("prefills", "decodes"), [(1, 1), (2, 2), (5, 4), (2, 7), (9, 1), (16, 16)])
def test_every_pair_is_warmed_once_a_few_at_a_time_and_then_all_are_taken(prefills: int, decodes: int) -> None:
    rig = Rig(prefills, decodes)
    rng = random.Random(prefills * 100 + decodes)
    met: Counter[tuple[int, str]] = Counter()
    while rig.sent:
        place = rng.randrange(len(rig.sent))
        member, sample = rig.sent[place]
        if sample.stage == DECODE:
            met[(sample.seq, member.slot)] += 1
        rig.answer(place)
    assert len(met) == prefills * decodes
    assert set(met.values()) == {1}
    assert sorted(rig.accepted) == sorted(rig.members)
    assert max(rig.most.values()) <= OPEN_DIAGONALS
    assert rig.pairs.done == rig.pairs.total == prefills * decodes
    told = rig.pairs.news(rig.now_ns)
    assert told is not None
    assert told.count == prefills * decodes
    assert 0 < told.slowest_ms <= told.seconds * 1e3
    assert rig.pairs.settled
    assert rig.pairs.news(rig.now_ns) is None, "once"


def test_nothing_is_sent_and_nobody_taken_before_it_is_wanted() -> None:
    rig = Rig(2, 2, begin=False)
    assert (rig.sent, rig.accepted, rig.pairs.settled) == ([], [], False)
    assert rig.pairs.news(1) is None
    rig.pairs.wanted = True
    rig.tick()
    assert len(rig.sent) == 4
    assert rig.accepted == []


def test_a_member_is_taken_as_soon_as_its_own_pairs_are_warm() -> None:
    rig = Rig(1, 2)
    rig.answer()
    rig.answer()
    assert rig.answer()[1] == DECODE
    assert rig.accepted == ["D0"]
    rig.answer_all()
    assert sorted(rig.accepted[1:]) == ["D1", "P0"]


def test_a_newcomer_is_warmed_with_all_others_before_it_is_taken_and_they_go_on() -> None:
    rig = Rig(2, 2)
    rig.answer_all()
    rig.pairs.news(rig.now_ns)
    rig.join("D9")
    assert [member.slot for member, _ in rig.sent] == ["P0", "P1"]
    assert "D9" not in rig.accepted
    rig.answer_all()
    assert rig.accepted[-1] == "D9"
    told = rig.pairs.news(rig.now_ns)
    assert told is not None
    assert (told.count, told.slowest_pair.split(" → ")[1]) == (2, "D9")


def test_with_nobody_of_the_other_role_a_member_is_taken_as_it_is() -> None:
    rig = Rig(0, 2)
    assert sorted(rig.accepted) == ["D0", "D1"]
    rig.pairs.news(rig.now_ns)
    assert rig.pairs.settled
    rig.join("P0")
    assert "P0" not in rig.accepted
    rig.answer_all()
    assert "P0" in rig.accepted


def test_answers_from_elsewhere_early_late_or_twice_do_not_make_a_pair_warm() -> None:
    rig = Rig(1, 1)
    prefill, sample = rig.sent[0]
    pairs, decode = rig.pairs, rig.members["D0"]
    pairs.taken_over(sample.seq, 1, prefill.identity, 5)
    pairs.prefilled(sample.seq, 2, prefill.identity, b"kv", 5)
    pairs.prefilled(sample.seq, 1, decode.identity, b"kv", 5)
    pairs.prefilled(sample.seq - 9, 1, prefill.identity, b"kv", 5)
    assert len(rig.sent) == 1
    rig.answer()
    pairs.prefilled(sample.seq, 1, prefill.identity, b"again", 6)
    assert len(rig.sent) == 1
    pairs.taken_over(sample.seq, 1, prefill.identity, 7)
    assert rig.accepted == []
    rig.answer()
    assert sorted(rig.accepted) == ["D0", "P0"]
    pairs.taken_over(sample.seq, 1, decode.identity, 8)
    assert rig.pairs.done == 1


def test_a_refusal_is_tried_again_and_the_last_one_is_told_with_the_pair() -> None:
    rig = Rig(1, 1)
    for number in range(TRIES):
        assert rig.sent, number
        rig.answer(failed=f"no room {number}")
        assert not rig.sent, "not at once"
        given_up = rig.tick()
    assert given_up == [
        ("D0", f"warm-up of P0 (prefill) with D0 (decode) failed {TRIES} times; the last one: no room {TRIES - 1}")
    ]
    assert rig.accepted == ["P0"]
    assert rig.tick() == []
    again = Rig(1, 1)
    again.answer(failed="busy")
    again.tick()
    again.answer_all()
    assert sorted(again.accepted) == ["D0", "P0"]


@pytest.mark.parametrize("stage", [PREFILL, DECODE])
def test_a_pair_past_its_deadline_is_given_up_by_name_and_stage(stage: int) -> None:
    rig = Rig(1, 1)
    if stage == DECODE:
        rig.answer()
    assert rig.tick(DEADLINE_NS - 100) == []
    ((slot, why),) = rig.tick(200)
    assert slot == "D0"
    name = "decode" if stage == DECODE else "prefill"
    assert why == f"warm-up of P0 (prefill) with D0 (decode) was not done within 1e-05 s: no answer to its {name}"


@pytest.mark.parametrize("newcomer", ["P9", "D9"])
def test_later_it_is_the_newcomer_that_stays_out(newcomer: str) -> None:
    rig = Rig(2, 2)
    rig.answer_all()
    rig.join(newcomer)
    given_up = rig.tick(DEADLINE_NS + 1)
    assert [slot for slot, _ in given_up] == [newcomer], "once, though it met two in vain"
    assert newcomer not in rig.accepted
    rig.pairs.drop(rig.members[newcomer], rig.now_ns)
    rig.sent.clear()
    rig.join(newcomer)
    rig.answer_all()
    assert rig.accepted[-1] == newcomer


def test_a_member_that_leaves_is_waited_for_no_more() -> None:
    rig = Rig(2, 1)
    rig.pairs.drop(rig.members["P1"], rig.now_ns)
    while rig.sent:
        if rig.sent[0][0].slot == "P1":
            rig.sent.pop(0)
        else:
            rig.answer()
    assert sorted(rig.accepted) == ["D0", "P0"]
    assert rig.pairs.news(rig.now_ns) is not None


def test_a_member_on_hold_is_waited_for_no_more_and_warmed_when_it_is_released() -> None:
    rig = Rig(2, 1)
    stuck = [entry for entry in rig.sent if entry[0].slot == "P1"]
    rig.sent = [entry for entry in rig.sent if entry[0].slot != "P1"]
    rig.pairs.hold(rig.members["P1"])
    rig.answer_all()
    rig.tick()
    assert sorted(rig.accepted) == ["D0", "P0"]
    assert rig.tick(DEADLINE_NS + 1) == [], "who is on hold need not answer"
    assert len(stuck) == 1
    rig.pairs.release(rig.members["P1"], rig.now_ns)
    rig.answer_all()
    assert rig.accepted[-1] == "P1"


def test_a_warm_member_that_was_on_hold_is_taken_back_without_another_warm_up() -> None:
    rig = Rig(1, 1)
    rig.answer_all()
    rig.members["D0"].accepting = False
    rig.pairs.hold(rig.members["D0"])
    rig.pairs.release(rig.members["D0"], rig.now_ns)
    assert not rig.sent
    assert sorted(rig.accepted) == ["D0", "D0", "P0"]


def test_a_member_that_joins_on_hold_is_left_alone() -> None:
    rig = Rig(1, 1)
    rig.answer_all()
    rig.join("D1", held=True)
    assert not rig.sent
    assert "D1" not in rig.accepted


def test_a_member_that_cannot_be_reached_is_handed_over_for_dropping() -> None:
    rig = Rig(1, 1)
    rig.broken.add("D0")
    rig.answer()
    assert rig.pairs.take_unreachable() == [rig.members["D0"]]
    assert rig.pairs.take_unreachable() == []
    rig.pairs.drop(rig.members["D0"], rig.now_ns)
    assert rig.accepted == ["P0"]


def test_members_come_and_go_in_any_order_and_only_warm_ones_meet() -> None:
    """Random joins, losses, holds and answers: no pair is sent twice while it is on its way, and in the end all are taken."""
    for seed in range(60):
        rng = random.Random(seed)
        rig = Rig(rng.randrange(3), rng.randrange(3))
        names = [f"{letter}{number}" for letter in "PD" for number in range(5)]
        for _ in range(120):
            name = rng.choice(names)
            member = rig.members.get(name)
            act = rng.random()
            if member is None:
                rig.join(name)
            elif act < 0.08:
                del rig.members[name]
                rig.sent = [entry for entry in rig.sent if entry[0] is not member]
                rig.pairs.drop(member, rig.now_ns)
            elif act < 0.16:
                member.accepting = False
                rig.pairs.hold(member)
            elif act < 0.3:
                rig.pairs.release(member, rig.now_ns)
            elif rig.sent:
                rig.answer(rng.randrange(len(rig.sent)), failed="busy" if rng.random() < 0.05 else "")
            rig.tick()
        for member in rig.members.values():
            rig.pairs.release(member, rig.now_ns)
        for _ in range(TRIES + 2):
            rig.answer_all()
            given_up = rig.tick()
            for name, _ in given_up:
                rig.pairs.release(rig.members[name], rig.now_ns)
        assert all(member.accepting for member in rig.members.values()), seed
        assert rig.pairs.news(rig.now_ns) is not None or rig.pairs.settled
