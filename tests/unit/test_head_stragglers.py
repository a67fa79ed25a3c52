"""Straggler duty over the real statistic: when it judges, what it reports once, and what each policy does about it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from head_kit import Fleet, a_spec

from harness.head.journal import Journal
from harness.head.roster import Roster
from harness.head.stragglers import StragglerDuty
from harness.records.journal import JournalWriter
from harness.wire import states
from harness.wire.control import Command, CommandReply, JournalEntry, ReplicaBeat

WINDOW_S = 10.0
SLOW = 5  # the replica that is made slow


class Acting:
    """Answers the policy's commands as told and keeps them."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.ok = True

    def run_for_policy(self, command: Command) -> CommandReply:
        self.commands.append(command)
        return CommandReply(command.request_id, self.ok, "")


class Told:
    """Causes as alerts of GPU metrics give them."""

    def __init__(self) -> None:
        self.causes: dict[str, str] = {}

    def cause_of(self, slot: str) -> str:
        return self.causes.get(slot, "")


class AHead:
    roster: Roster
    journal: Journal

    def __init__(self, folder: Path, nodes: int = 4, **stragglers: Any) -> None:
        spec = a_spec(nodes, 4, stragglers={"window_s": WINDOW_S, "grace_s": 0, "min_steps": 20, **stragglers})
        self.fleet = Fleet(spec)
        self.fleet.ready()
        self.roster = self.fleet.roster
        self.journal = Journal(JournalWriter(folder / "journal.jsonl"), lambda entry: None, time.time)
        self.acts: Any = Acting()
        self.attempt_running = True
        self.gpus = Told()
        self.kernels = Told()
        self.duty = StragglerDuty(self, spec.stragglers, spec.slots())
        # the duty stamps beats with the monotonic clock: begin at a window's edge ahead of it
        self.now_s = (time.monotonic() // WINDOW_S + 10) * WINDOW_S
        self.begin()

    def begin(self, duration_s: float = 0.0) -> None:
        self.duty.begin(duration_s)
        self.duty.load_begins(self.now_s)

    def window(self, slow: dict[int, float] | None = None, all_ms: float = 20.0) -> None:
        """One window of beats in which the replicas of `slow` take that factor longer."""
        self.duty.judge(self.now_s)
        for replica in self.roster.replicas:
            step_ms = all_ms * (slow or {}).get(replica.index, 1.0) * (1 + 0.001 * (replica.index % 3))
            beat = ReplicaBeat(replica.slot, "a", "READY", steps=400, step_ms=step_ms, batch=32 + replica.index % 5)
            self.duty.observe(replica, beat)
        self.now_s += WINDOW_S
        self.duty.judge(self.now_s)

    def noted(self, what: str) -> list[JournalEntry]:
        return [entry for entry in self.journal.tail if entry.what == what]


def test_a_slow_replica_is_reported_once_after_three_slow_windows_with_its_numbers(tmp_path: Path) -> None:
    head = AHead(tmp_path)
    for _ in range(2):
        head.window({SLOW: 1.3})
    assert head.noted("straggler.slow") == []
    for _ in range(5):
        head.window({SLOW: 1.3})
    (entry,) = head.noted("straggler.slow")
    assert entry.subject == head.roster.replicas[SLOW].slot
    assert entry.level == "warn"
    assert entry.data["ratio"] == pytest.approx(1.3, abs=0.03)
    assert head.acts.commands == [], "policy flag only reports"


def test_what_gpu_metrics_say_of_a_slow_replica_stands_beside_it(tmp_path: Path) -> None:
    head = AHead(tmp_path)
    head.gpus.causes = {head.roster.replicas[SLOW].slot: "power cap"}
    for _ in range(5):
        head.window({SLOW: 1.3})
    (entry,) = head.noted("straggler.slow")
    assert entry.why.endswith("; likely cause: power cap")


def test_a_recovered_replica_is_reported_and_flagged_again_if_it_turns_slow_again(tmp_path: Path) -> None:
    head = AHead(tmp_path)
    for factor in (1.3,) * 4 + (1.0,) * 4 + (1.3,) * 4:
        head.window({SLOW: factor})
    assert [entry.what for entry in head.journal.tail if entry.what.startswith("straggler")] == [
        "straggler.slow",
        "straggler.recovered",
        "straggler.slow",
    ]


def test_an_even_fleet_is_never_accused(tmp_path: Path) -> None:
    head = AHead(tmp_path)
    for _ in range(8):
        head.window()
    assert not [entry for entry in head.journal.tail if entry.what.startswith("straggler")]
    assert head.duty.judgement is not None


@pytest.mark.parametrize("policy", ["drain", "recycle"])
def test_a_policy_acts_once_on_the_incarnation_that_is_slow_and_says_why(tmp_path: Path, policy: str) -> None:
    head = AHead(tmp_path, policy=policy)
    for _ in range(6):
        head.window({SLOW: 1.3})
    (command,) = head.acts.commands
    assert (command.operator, command.name) == ("policy", policy)
    assert command.args == {"slot": head.roster.replicas[SLOW].slot, "incarnation": "a"}
    assert "x the fleet's curve" in command.reason


def test_the_next_incarnation_inherits_no_verdict_however_soon_it_is_ready(tmp_path: Path) -> None:
    head = AHead(tmp_path, policy="recycle")
    replica = head.roster.replicas[SLOW]
    for _ in range(3):
        head.window({SLOW: 1.3})
    assert len(head.acts.commands) == 1
    replica.incarnation = "b"  # READY again before the next look
    for _ in range(2 * int(WINDOW_S)):
        head.now_s += 1
        head.duty.judge(head.now_s)
    assert len(head.acts.commands) == 1
    for _ in range(3):
        head.window({SLOW: 1.3})
    assert [command.args["incarnation"] for command in head.acts.commands] == ["a", "b"], "judged by its own steps"


def test_a_policy_set_while_the_run_goes_on_holds_from_then_on(tmp_path: Path) -> None:
    head = AHead(tmp_path)
    for _ in range(4):
        head.window({SLOW: 1.3})
    head.duty.policy = "drain"
    for _ in range(4):
        head.window({SLOW: 1.3})
    acted = [command.args["slot"] for command in head.acts.commands]
    assert acted == [head.roster.replicas[SLOW].slot], "also who was flagged before, and once"
    for _ in range(4):
        head.window({SLOW: 1.0, 9: 1.3})
    for _ in range(3):
        head.window({9: 1.3})
    assert [command.args["slot"] for command in head.acts.commands[1:]] == [head.roster.replicas[9].slot]


def test_automatic_acts_are_limited_and_the_held_back_one_is_noted(tmp_path: Path) -> None:
    head = AHead(tmp_path, policy="drain", max_acts_per_10min=1)
    for slow in (SLOW, 9):
        for _ in range(4):
            head.window({slow: 1.4})
        for _ in range(4):
            head.window()
    assert len(head.noted("straggler.slow")) == 2
    assert [command.args["slot"] for command in head.acts.commands] == [head.roster.replicas[SLOW].slot]
    (held,) = head.noted("policy.held")
    assert held.subject == head.roster.replicas[9].slot
    assert "the limit is 1" in held.why


def test_an_act_that_the_guards_refused_does_not_use_up_the_limit(tmp_path: Path) -> None:
    head = AHead(tmp_path, policy="drain", max_acts_per_10min=1)
    head.acts.ok = False
    for slow in (SLOW, 9):
        for _ in range(4):
            head.window({slow: 1.4})
        for _ in range(4):
            head.window()
    assert {command.args["slot"] for command in head.acts.commands} == {head.roster.replicas[i].slot for i in (SLOW, 9)}
    held = head.noted("policy.held")
    assert len(held) == 2, "once for each, however often it is tried"
    assert all("the limit" not in entry.why for entry in held)


def test_a_slow_node_is_reported_as_a_node_and_left_to_a_person(tmp_path: Path) -> None:
    head = AHead(tmp_path, nodes=8, policy="recycle")
    node = dict.fromkeys(range(4, 8), 1.3)
    for _ in range(6):
        head.window(node)
    assert [entry.subject for entry in head.noted("straggler.node")] == ["node001"]
    assert head.acts.commands == []


def test_a_slow_fleet_is_reported_once_and_nobody_is_accused(tmp_path: Path) -> None:
    head = AHead(tmp_path, policy="drain")
    for _ in range(6):
        head.window({1: 1.5, 6: 1.5, 11: 1.5})
    assert len(head.noted("straggler.fleet")) == 1
    assert head.noted("straggler.slow") == []
    assert head.acts.commands == []


def test_neither_the_start_nor_the_tail_of_the_load_is_judged(tmp_path: Path) -> None:
    head = AHead(tmp_path, grace_s=3 * WINDOW_S)
    head.begin(duration_s=6 * WINDOW_S)
    for _ in range(3):
        head.window({SLOW: 1.5})
    head.window()
    for _ in range(2):
        head.window({SLOW: 1.5})
    for _ in range(8):  # past the end: the last samples run on few replicas
        head.window({SLOW: 1.5})
    assert head.noted("straggler.slow") == []


def test_nothing_is_judged_without_a_running_attempt_or_before_its_load(tmp_path: Path) -> None:
    head = AHead(tmp_path)
    head.attempt_running = False
    for _ in range(5):
        head.window({SLOW: 1.5})
    head.attempt_running = True
    head.duty.begin(0.0)  # the next attempt, whose load has not begun
    for _ in range(5):
        head.window({SLOW: 1.5})
    assert head.duty.judgement is None
    assert head.noted("straggler.slow") == []


def test_a_new_attempt_forgets_verdicts_and_flags_anew(tmp_path: Path) -> None:
    head = AHead(tmp_path)
    for _ in range(4):
        head.window({SLOW: 1.3})
    head.begin()
    for _ in range(2):
        head.window({SLOW: 1.3})
    assert len(head.noted("straggler.slow")) == 1
    head.window({SLOW: 1.3})
    assert len(head.noted("straggler.slow")) == 2


def test_a_replica_out_of_service_is_not_judged(tmp_path: Path) -> None:
    head = AHead(tmp_path, policy="drain")
    head.roster.move(head.roster.replicas[SLOW], states.DRAINING, "operator")
    for _ in range(6):
        head.window({SLOW: 2.0})
    assert head.noted("straggler.slow") == []
