"""Operators' acts: who may, on which incarnation, within which guards, done once however often the request is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from head_kit import Clock, EachAlone, Fleet, a_spec

from harness.head.acts import Acts, Refused
from harness.head.drains import Drains
from harness.head.journal import Journal
from harness.head.roster import Replica
from harness.records.journal import JournalWriter
from harness.spec import RunSpec
from harness.wire import states
from harness.wire.control import Command, CommandReply


class ARun:
    """What acts ask of a supervisor, kept as calls."""

    def __init__(self) -> None:
        self.attempt_running = True
        self.rate_qps = 10.0
        self.policy = "flag"
        self.calls: list[tuple[Any, ...]] = []
        self.counted: list[tuple[str, str]] = []
        self.held = 0

    def set_rate(self, qps: float, who: str, why: str, ramp_s: float = 0.0) -> str:
        self.calls.append(("set_rate", qps, who, why, ramp_s) if ramp_s else ("set_rate", qps, who, why))
        return f"now {qps:g}"

    def pause(self, paused: bool) -> str:
        self.calls.append(("pause", paused))
        return "paused" if paused else "resumed"

    def start_attempt(self, kind: str | None, qps: float | None, who: str, why: str, test: str | None = None) -> str:
        self.calls.append(("start_attempt", kind, qps) if test is None else ("start_attempt", kind, qps, test))
        return "started"

    def abort(self, who: str, why: str) -> str:
        if not self.attempt_running:
            raise Refused("no attempt is running")
        self.calls.append(("abort", who, why))
        return "aborted"

    def stop(self, who: str, why: str, *, aborted: bool) -> str:
        self.calls.append(("stop", who, why, aborted))
        return "stopping"

    def set_policy(self, policy: str) -> str:
        self.calls.append(("set_policy", policy))
        return policy

    def count_act(self, name: str, subject: str) -> None:
        self.counted.append((name, subject))

    def outstanding(self, replica: Replica) -> int:
        return self.held

    def start_slot(self, replica: Replica) -> None:
        self.calls.append(("start_slot", replica.slot))


class Desk:
    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self.fleet = Fleet(spec)
        self.clock: Clock = self.fleet.clock
        self.fleet.ready()
        self.head = ARun()
        self.gone: list[tuple[str, str]] = []
        self.journal = Journal(JournalWriter(folder / "journal.jsonl"), lambda entry: None, self.clock.unix)
        self.drains = Drains(self.fleet.roster, self.clock, self._recycle, self._evict, {}, set())
        self.acts = Acts(self.head, self.fleet.roster, self.drains, self.journal, spec, self.clock, EachAlone())
        self._requests = 0

    def _recycle(self, replica: Replica, why: str) -> None:
        self.gone.append(("recycle", replica.slot))
        self.fleet.roster.move(replica, states.LOST, why)

    def _evict(self, replica: Replica, who: str, why: str) -> None:
        self.gone.append(("evict", replica.slot))
        self.fleet.roster.move(replica, states.EVICTED, why, who)

    def ask(
        self, name: str, *, by: str = "ann", role: str = "operator", why: str = "", request: str = "", **args: Any
    ) -> CommandReply:
        self._requests += 1
        return self.acts.run(Command(request or f"r{self._requests}", by, name, args, why), role)

    def told(self, what: str) -> list[tuple[str, str, str]]:
        return [(entry.who, entry.subject, entry.why) for entry in self.journal.tail if entry.what == what]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, a_spec(2, 4, fleet={"drain_deadline_s": 40}, stragglers={"max_acts_per_10min": 3}))


# --- who may -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["viewer", "worker", ""])
def test_only_an_operators_key_may_act(desk: Desk, role: str) -> None:
    reply = desk.ask("stop", role=role)
    assert not reply.ok
    assert "needs the run's operator key" in reply.message
    assert desk.head.calls == []
    assert desk.told("refused.stop") == [("operator:ann", "", reply.message)]


def test_an_unknown_act_names_the_known_ones(desk: Desk) -> None:
    reply = desk.ask("explode")
    assert not reply.ok
    assert "no act named 'explode'" in reply.message
    assert "set_rate" in reply.message


def test_a_repeat_of_a_request_is_answered_and_not_run_again(desk: Desk) -> None:
    first = desk.ask("set_rate", qps=5.0, request="same")
    again = desk.ask("set_rate", qps=99.0, request="same")
    assert again == first
    assert desk.head.calls == [("set_rate", 5.0, "operator:ann", "")]
    assert desk.head.counted == [("set_rate", "")]
    refused = desk.ask("drain", slot="node099/gpu0", request="bad")
    assert desk.ask("drain", slot="node000/gpu0", request="bad") == refused
    assert desk.fleet[0].state == "READY"


def test_the_one_who_acts_holds_control_and_others_are_told_who(desk: Desk) -> None:
    assert desk.acts.controller == ""
    desk.ask("pause")
    assert desk.acts.controller == "ann"
    reply = desk.ask("resume", by="bob")
    assert reply.message == "ann holds control; take it over first (paceline take-control)"
    assert desk.head.calls == [("pause", True)]


def test_control_can_be_taken_over_and_is_journalled(desk: Desk) -> None:
    desk.ask("pause")
    assert desk.ask("take_control", by="bob", why="ann went home").message == "control is yours, taken from ann"
    assert desk.acts.controller == "bob"
    entry = next(entry for entry in desk.journal.tail if entry.what == "act.take_control")
    assert (entry.who, entry.before, entry.after, entry.why) == ("operator:bob", "ann", "bob", "ann went home")
    assert not desk.ask("resume").ok
    assert desk.ask("resume", by="bob").ok


def test_control_lapses_after_a_minute_without_a_sign_of_its_holder(desk: Desk) -> None:
    desk.ask("pause")
    desk.clock.passes(59)
    desk.acts.seen("bob")
    desk.acts.seen("ann")
    desk.clock.passes(59)
    assert not desk.ask("resume", by="bob").ok
    desk.clock.passes(2)
    assert desk.acts.controller == ""
    assert desk.ask("resume", by="bob").ok
    assert desk.acts.controller == "bob"


def test_control_can_be_released_by_its_holder_only(desk: Desk) -> None:
    desk.ask("pause")
    assert not desk.ask("release_control", by="bob").ok
    assert desk.ask("release_control").ok
    assert desk.acts.controller == ""
    assert desk.ask("resume", by="bob").ok


def test_the_policy_acts_without_the_lease_and_under_the_same_guards(desk: Desk) -> None:
    desk.ask("pause")
    reply = desk.acts.run_for_policy(Command("policy-1", "policy", "drain", {"slot": "node000/gpu1"}, "z 5.2"))
    assert reply.ok
    assert desk.acts.controller == "ann"
    assert desk.told("act.drain") == [("policy", "node000/gpu1", "z 5.2")]
    refused = desk.acts.run_for_policy(Command("policy-2", "policy", "drain", {"slot": "node000/gpu1"}, "z 5.2"))
    assert not refused.ok


# --- the load ----------------------------------------------------------------------------------------------


def test_a_new_rate_reaches_the_run_with_who_and_why_and_counts_as_an_act(desk: Desk) -> None:
    reply = desk.ask("set_rate", qps=250, why="probing")
    assert (reply.ok, reply.message) == (True, "now 250")
    assert desk.head.calls == [("set_rate", 250.0, "operator:ann", "probing")]
    assert desk.head.counted == [("set_rate", "")]
    entry = next(entry for entry in desk.journal.tail if entry.what == "act.set_rate")
    assert (entry.why, entry.data, entry.level) == ("probing", {"qps": 250.0}, "warn")


@pytest.mark.parametrize("qps", [0, -1, float("nan"), float("inf"), 1_000_001, "12", None, True, [3]])
def test_what_is_no_rate_is_refused_and_changes_nothing(desk: Desk, qps: Any) -> None:
    reply = desk.ask("set_rate", qps=qps)
    assert not reply.ok
    assert "qps" in reply.message
    assert desk.head.calls == []
    assert desk.head.counted == []


def test_the_runs_own_refusal_is_the_answer(desk: Desk) -> None:
    desk.head.attempt_running = False
    reply = desk.ask("abort")
    assert (reply.ok, reply.message) == (False, "no attempt is running")
    assert desk.told("refused.abort") == [("operator:ann", "", "no attempt is running")]


def test_the_other_acts_on_the_load_reach_the_run(desk: Desk) -> None:
    desk.ask("pause")
    desk.ask("resume")
    desk.ask("start_attempt", kind="explore", qps=3)
    desk.ask("start_attempt")
    desk.ask("abort", why="wrong rate")
    desk.ask("stop", abort=True)
    desk.ask("set_policy", policy="drain")
    assert desk.head.calls == [
        ("pause", True),
        ("pause", False),
        ("start_attempt", "explore", 3.0),
        ("start_attempt", None, None),
        ("abort", "operator:ann", "wrong rate"),
        ("stop", "operator:ann", "", True),
        ("set_policy", "drain"),
    ]


# --- replicas ----------------------------------------------------------------------------------------------


def test_an_unknown_slot_names_the_nearest(desk: Desk) -> None:
    assert desk.ask("drain", slot="node001/gpu9").message == "no slot 'node001/gpu9' in this run; did you mean node001/gpu3?"
    assert desk.ask("drain").message == "no slot '' in this run"


def test_an_act_on_an_incarnation_that_is_gone_is_refused_with_the_present_one(desk: Desk) -> None:
    desk.fleet.ready(0, incarnation="b7f0")
    reply = desk.ask("evict", slot="node000/gpu0", incarnation="a")
    assert reply.message == "node000/gpu0 is now incarnation b7f0; you acted on a, which is gone"
    assert desk.fleet[0].state == "READY"
    assert desk.ask("evict", slot="node000/gpu0", incarnation="b7").ok


def test_a_drain_says_how_much_is_in_flight_and_what_follows(desk: Desk) -> None:
    desk.head.held = 12
    assert desk.ask("drain", slot="node000/gpu0").message == (
        "node000/gpu0: draining 12 samples; then out of service until readmitted"
    )
    assert desk.ask("evict", slot="node000/gpu1", deadline_s=7).message == (
        "node000/gpu1: draining 12 samples, what is left after 7 s is dispatched again; "
        "then evicted; its replacement joins after warm-up"
    )
    assert desk.ask("recycle", slot="node000/gpu2").message.startswith(
        "node000/gpu2: draining 12 samples, what is left after 40 s"
    )
    assert [replica.state for replica in desk.fleet.roster.replicas[:3]] == ["DRAINING"] * 3
    entry = next(entry for entry in desk.journal.tail if entry.what == "act.evict")
    assert entry.data == {"incarnation": "a", "in_flight": 12}


def test_an_eviction_without_a_deadline_is_done_at_once(desk: Desk) -> None:
    desk.head.held = 12
    reply = desk.ask("evict", slot="node000/gpu0", deadline_s=0)
    assert reply.message == "node000/gpu0: evicted; its replacement joins after warm-up"
    assert desk.gone == [("evict", "node000/gpu0")]


def test_a_plain_drain_has_no_deadline_even_when_one_is_sent(desk: Desk) -> None:
    desk.ask("drain", slot="node000/gpu0", deadline_s=1)
    desk.clock.passes(1e6)
    desk.drains.tick()
    assert desk.fleet[0].state == "DRAINING"


def test_the_same_act_twice_is_refused_and_a_harder_one_is_not(desk: Desk) -> None:
    desk.ask("drain", slot="node000/gpu0")
    assert desk.ask("drain", slot="node000/gpu0").message == "node000/gpu0 is being drained already (stay, by operator:ann)"
    assert desk.ask("recycle", slot="node000/gpu0").ok
    assert desk.ask("evict", slot="node000/gpu0").ok


@pytest.mark.parametrize("name", ["drain", "recycle", "evict"])
def test_who_is_gone_cannot_be_removed(desk: Desk, name: str) -> None:
    desk.fleet.roster.move(desk.fleet[0], states.LOST, "crashed")
    assert desk.ask(name, slot="node000/gpu0").message == "node000/gpu0 is LOST already: crashed"


@pytest.mark.parametrize("name", ["drain", "recycle", "evict"])
def test_removing_stops_at_half_of_the_fleet_unless_forced(desk: Desk, name: str) -> None:
    for number in range(4):
        assert desk.ask("drain", slot=desk.fleet[number].slot).ok
    reply = desk.ask(name, slot="node001/gpu0")
    assert reply.message == "3 READY replicas would remain, the quorum is 4; force to do it anyway"
    assert desk.fleet[4].state == "READY"
    assert desk.ask(name, slot="node001/gpu0", force=True).ok


def test_removing_stops_at_the_specs_quorum(tmp_path: Path) -> None:
    desk = Desk(tmp_path, a_spec(1, 4, fleet={"barrier": {"min_ready": 3}}))
    assert desk.ask("drain", slot="node000/gpu0").ok
    assert "the quorum is 3" in desk.ask("drain", slot="node000/gpu1").message


def test_the_last_ready_replica_is_kept(tmp_path: Path) -> None:
    desk = Desk(tmp_path, a_spec(1, 1))
    assert (
        desk.ask("evict", slot="node000/gpu0").message == "0 READY replicas would remain, the quorum is 1; force to do it anyway"
    )


def test_evictions_are_limited_in_ten_minutes_and_a_refused_one_does_not_count(desk: Desk) -> None:
    for number in range(3):
        assert desk.ask("evict", slot=desk.fleet[number].slot, deadline_s=0).ok
        desk.clock.passes(60)
    for _ in range(2):
        reply = desk.ask("evict", slot="node001/gpu0")
        assert reply.message == "3 evictions in the last ten minutes, the limit is 3; force to do it anyway"
    assert desk.ask("recycle", slot="node001/gpu0").ok, "the limit is for evictions"
    assert desk.acts.evictions == 3
    desk.fleet.ready(0, 1, 2, incarnation="b")
    desk.clock.passes(421)  # the first one is ten minutes ago
    assert desk.acts.evictions == 2
    assert desk.ask("evict", slot="node001/gpu1", deadline_s=0).ok
    assert not desk.ask("evict", slot="node001/gpu2", deadline_s=0).ok


def test_a_drained_replica_is_readmitted_at_once(desk: Desk) -> None:
    desk.ask("drain", slot="node000/gpu0")
    assert desk.ask("readmit", slot="node000/gpu0", why="it was the network").message == "node000/gpu0: READY again"
    assert (desk.fleet[0].state, desk.fleet[0].reason) == ("READY", "it was the network")
    assert not desk.drains.pending
    assert ("readmit", "node000/gpu0") in desk.head.counted


@pytest.mark.parametrize("end", ["LOST", "EVICTED", "REJECTED"])
def test_readmitting_who_is_gone_starts_a_new_incarnation(desk: Desk, end: str) -> None:
    desk.fleet.roster.move(desk.fleet[0], end, "")
    assert desk.ask("readmit", slot="node000/gpu0").ok
    assert desk.head.calls == [("start_slot", "node000/gpu0")]


def test_there_is_nothing_to_readmit_in_a_replica_that_serves(desk: Desk) -> None:
    assert desk.ask("readmit", slot="node000/gpu0").message == "node000/gpu0 is READY: there is nothing to readmit"


def test_a_missing_slot_can_be_waived_and_a_ready_one_cannot(desk: Desk) -> None:
    desk.fleet.roster.move(desk.fleet[0], states.LOST, "node is down")
    version = desk.fleet.roster.version
    assert desk.ask("waive", slot="node000/gpu0").ok
    assert desk.fleet[0].waived
    assert desk.fleet.roster.version > version
    assert desk.ask("waive", slot="node000/gpu1").message == "node000/gpu1 is READY: only a missing slot can be waived"
