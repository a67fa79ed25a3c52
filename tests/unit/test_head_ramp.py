"""A target rate that moves: in a straight line, only while samples are issued, replaced by the next wish, journalled twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from head_kit import Clock, EachAlone, Fleet, a_spec

from harness.head.acts import Acts
from harness.head.drains import Drains
from harness.head.journal import Journal
from harness.head.operations import Operations, Wanted
from harness.records.journal import JournalWriter
from harness.records.runfile import AttemptRecord
from harness.spec import RunSpec
from harness.wire import attempt as up
from harness.wire import states
from harness.wire.control import Command, CommandReply


class AnAttempt:
    """A running attempt without its driver: keeps what the driver would be told."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.number, self.phase = spec, 1, "issuing"
        self.running, self.ending = True, False
        self.acts: list[tuple[str, str]] = []
        self.record = AttemptRecord(1, spec.load.kind, "Server", spec.load.target_qps, 1)
        self.told: list[up.ToDriver] = []

    def tell(self, message: up.ToDriver) -> None:
        self.told.append(message)

    @property
    def rates(self) -> list[float]:
        return [round(message.qps, 6) for message in self.told if isinstance(message, up.SetRate)]


class ABook:
    next_number = 2

    def save(self) -> None:
        """Nothing is kept here."""


class Head:
    """Operations and Acts as the supervisor wires them, with a clock that tests turn."""

    def __init__(self, folder: Path, kind: str = "explore") -> None:
        load = {"kind": kind, "target_qps": 20, "duration_s": 0 if kind == "explore" else 60}
        self.spec = a_spec(1, 2, load=load)
        fleet = Fleet(self.spec)
        self.clock: Clock = fleet.clock
        self.phase, self.book, self.live, self.duty = states.MEASURING, ABook(), None, None
        self.journal = Journal(JournalWriter(folder / "journal.jsonl"), lambda entry: None, self.clock.unix)
        self.ops = Operations(self, self.spec, self.clock)  # type: ignore[arg-type]
        drains = Drains(fleet.roster, self.clock, lambda *_: None, lambda *_: None, {}, set())
        self.acts = Acts(self.ops, fleet.roster, drains, self.journal, self.spec, self.clock, EachAlone())
        self.ops.wanted = None
        self.ops.begin(20.0)
        self.attempt: Any = AnAttempt(self.spec)
        self._asked = 0

    def spec_of(self, wanted: Wanted) -> RunSpec:
        return self.spec

    def ask(self, name: str, **args: Any) -> CommandReply:
        self._asked += 1
        return self.acts.run(Command(f"r{self._asked}", "ann", name, args, ""), "operator")

    def runs(self, seconds: float, tick_s: float = 0.25) -> None:
        for _ in range(round(seconds / tick_s)):
            self.clock.passes(tick_s)
            self.ops.tick()

    def noted(self, what: str) -> list[tuple[str, str, str]]:
        return [(entry.who, entry.before, entry.after) for entry in self.journal.tail if entry.what == what]


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_the_target_moves_in_a_straight_line_and_arrives(head: Head) -> None:
    reply = head.ask("set_rate", qps=60, ramp_s=10)
    assert (reply.ok, reply.message) == (True, "20 → 60 QPS over 10 s (exploration)")
    assert head.ops.rate_qps == 20
    head.runs(2.5)
    assert head.ops.rate_qps == pytest.approx(30)
    assert head.ops.ramp is not None
    assert (head.ops.ramp.to_qps, head.ops.ramp.left_s) == (60, 7.5)
    head.runs(7.5)
    assert (head.ops.rate_qps, head.ops.ramp) == (60, None)
    assert head.attempt.rates == [20, *range(21, 61)]
    head.runs(5)
    assert head.attempt.rates[-1] == 60
    assert len(head.attempt.rates) == 41


def test_a_ramp_is_journalled_when_it_is_asked_for_and_when_it_has_arrived(head: Head) -> None:
    head.ask("set_rate", qps=60, ramp_s=10)
    (asked,) = (entry for entry in head.journal.tail if entry.what == "act.set_rate")
    assert (asked.before, asked.after, asked.data) == ("20 QPS", "60 QPS", {"qps": 60.0, "ramp_s": 10.0})
    assert head.noted("rate.ramp") == []
    head.runs(10)
    assert head.noted("rate.ramp") == [("operator:ann", "20 QPS", "60 QPS")]
    assert head.journal.tail[-1].why == "the ramp of 10 s has arrived"
    assert head.attempt.acts == [("set_rate", "")]


def test_a_ramp_goes_down_as_well(head: Head) -> None:
    head.ask("set_rate", qps=5, ramp_s=3)
    head.runs(2, tick_s=1.0)
    assert head.ops.rate_qps == pytest.approx(10)


def test_a_pause_holds_the_ramp_and_resuming_goes_on(head: Head) -> None:
    head.ask("set_rate", qps=60, ramp_s=10)
    head.runs(5)
    assert head.ask("pause").message == "issuing is paused; so is the ramp to 60 QPS"
    head.runs(100)
    assert head.attempt.rates[-1] == 0
    assert head.ask("resume").message == "issuing at 40 QPS again, 5 s before the ramp reaches 60"
    assert head.attempt.rates[-1] == 40
    head.runs(5)
    assert head.ops.rate_qps == 60


def test_a_new_rate_replaces_the_ramp_from_where_it_has_got_to(head: Head) -> None:
    head.ask("set_rate", qps=60, ramp_s=10)
    head.runs(5)
    assert head.ask("set_rate", qps=30, ramp_s=4).message == "40 → 30 QPS over 4 s (exploration)"
    head.runs(2)
    assert head.ops.rate_qps == pytest.approx(35)
    assert head.ask("set_rate", qps=50).message == "35 → 50 QPS, at once (exploration)"
    head.runs(20)
    assert (head.ops.rate_qps, head.ops.ramp, head.attempt.rates[-1]) == (50, None, 50)
    assert head.noted("rate.ramp") == []


def test_a_ramp_waits_for_the_load_to_begin(head: Head) -> None:
    head.attempt.phase = "waiting for replicas"
    head.ask("set_rate", qps=60, ramp_s=10)
    head.runs(30)
    assert head.ops.rate_qps == 20
    head.attempt.phase = "issuing"
    head.runs(5)
    assert head.ops.rate_qps == pytest.approx(40)


def test_the_end_of_the_attempt_ends_the_ramp_where_it_is_and_says_so(head: Head) -> None:
    head.ask("set_rate", qps=60, ramp_s=10)
    head.runs(5)
    head.ops.attempt_over()
    assert head.ops.ramp is None
    assert head.noted("rate.ramp") == [("operator:ann", "20 QPS", "40 QPS")]
    assert head.journal.tail[-1].why == "the attempt ended before the ramp did"


def test_a_loadgen_attempt_refuses_a_ramp_in_words(tmp_path: Path) -> None:
    head = Head(tmp_path, "performance")
    reply = head.ask("set_rate", qps=60, ramp_s=10)
    assert not reply.ok
    assert reply.message.startswith("a LoadGen attempt cannot ramp: it fixes its schedule at the start")
    assert (head.ops.wanted, head.attempt.told) == (None, [])


def test_without_an_attempt_there_is_nothing_to_ramp(head: Head) -> None:
    head.attempt = None
    reply = head.ask("set_rate", qps=60, ramp_s=10)
    assert (reply.ok, reply.message) == (
        False,
        "nothing is issued whose rate could move there slowly; leave the ramp out (ramp_s = 0)",
    )


@pytest.mark.parametrize("ramp_s", [-1, 3601, float("nan"), float("inf"), "10", True])
def test_what_is_no_time_for_a_ramp_is_refused(head: Head, ramp_s: Any) -> None:
    reply = head.ask("set_rate", qps=60, ramp_s=ramp_s)
    assert not reply.ok
    assert "ramp_s" in reply.message
    assert head.attempt.told == []


@pytest.mark.parametrize("ramp_s", [0, None])
def test_no_ramp_is_a_change_at_once(head: Head, ramp_s: Any) -> None:
    assert head.ask("set_rate", qps=60, ramp_s=ramp_s).message == "20 → 60 QPS, at once (exploration)"
    assert head.attempt.rates == [60]
