"""Straggler duty: feed the statistic from heartbeats, report what it finds, and act where the policy says so.

Policy `flag` (default) only reports. `drain` and `recycle` act like an operator would, under the same guards: quorum,
and a limit of acts in ten minutes. A slow node is reported as a node; the policy leaves it to a person.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from harness.head.acts import Acts
from harness.head.journal import Journal
from harness.head.roster import Replica, Roster
from harness.metrics.stragglers import Judgement, SlowReplica, StragglerWatch
from harness.spec import StragglersSpec
from harness.wire import states
from harness.wire.control import Command, CommandReply, ReplicaBeat


class Causes(Protocol):
    def cause_of(self, slot: str) -> str: ...


class Head(Protocol):
    roster: Roster
    journal: Journal
    acts: Acts
    gpus: Causes

    @property
    def kernels(self) -> Causes: ...
    @property
    def attempt_running(self) -> bool: ...


class StragglerDuty:
    def __init__(self, head: Head, spec: StragglersSpec, slots: list[str], clock: Callable[[], float] = time.monotonic) -> None:
        """`head.roster` is there already: replicas are compared within their roles."""
        self._clock = clock
        self._head = head
        self._spec = spec
        self._watch = StragglerWatch(spec, slots, [replica.role for replica in head.roster.replicas])
        self.policy: str = spec.policy
        self.judgement: Judgement | None = None
        self._flagged: set[int] = set()
        self._nodes: set[str] = set()
        self._fleet_slow = False
        self._load_began_s: float | None = None
        self._load_ends_s: float | None = None
        self._duration_s = 0.0
        self._acted: list[float] = []
        self._done: set[tuple[str, str]] = set()  # (slot, incarnation) that the policy has acted on
        self._tried: dict[tuple[str, str], float] = {}
        self._held: set[tuple[str, str]] = set()  # … that it would have, were it allowed
        self._asked = 0
        self._lives: list[str] = []  # incarnations, when last judged

    def begin(self, duration_s: float) -> None:
        """A new attempt."""
        self._watch.reset()
        self._load_began_s = None
        self._duration_s = duration_s
        self._flagged.clear()
        self._nodes.clear()
        self.judgement = None

    def load_begins(self, now_s: float) -> None:
        self._load_began_s = now_s
        self._load_ends_s = now_s + self._duration_s if self._duration_s else None

    def observe(self, replica: Replica, beat: ReplicaBeat) -> None:
        if replica.state == states.READY and self._load_began_s is not None:
            self._watch.observe(replica.index, self._clock(), beat.steps, beat.step_ms, beat.batch, beat.prefill_tokens)

    def note(self, now_s: float) -> str:
        """Why nobody is judged yet, in words; "" when replicas are being judged."""
        if not self._head.attempt_running or self._load_began_s is None:
            return "not judged: no load"
        grace = self._load_began_s + self._spec.grace_s - now_s
        if grace > 0:
            return f"not judged yet: grace for {grace:.0f} s more"
        needed = self._load_began_s + self._spec.grace_s + self._spec.windows_slow * self._spec.window_s - now_s
        if needed > 0:
            return f"not judged yet: {self._spec.windows_slow} windows of {self._spec.window_s:g} s needed, {needed:.0f} s more"
        judgement = self.judgement
        if judgement is not None and np.isnan(judgement.ratio).all():
            return "not judged: too few replicas with enough steps"
        return ""

    def judge(self, now_s: float) -> None:
        """Once a second. Neither the start of the load nor its tail is judged."""
        if not self._head.attempt_running or self._load_began_s is None:
            return
        if self._load_ends_s is not None and now_s > self._load_ends_s:
            return
        in_grace = now_s - self._load_began_s < self._spec.grace_s
        judgement = self.judgement = self._watch.judge(now_s, self._eligible(), in_grace)
        self._report_fleet(judgement)
        for slow in judgement.slow:
            if slow.slot_index not in self._flagged:
                self._flagged.add(slow.slot_index)
                self._flag(slow)
            self._act(self._head.roster.replicas[slow.slot_index], slow)
        for index in judgement.recovered:
            if index in self._flagged:
                self._flagged.discard(index)
                self._head.journal.note("straggler.recovered", subject=self._head.roster.replicas[index].slot)
        self._flagged &= {slow.slot_index for slow in judgement.slow} | self._flagged_but_unjudged(judgement)

    def _eligible(self) -> np.ndarray:
        """READY, and the incarnation that was judged before: one that came back between two looks inherits no verdict."""
        replicas = self._head.roster.replicas
        before, self._lives = self._lives, [replica.incarnation for replica in replicas]
        same = [now == then for now, then in zip(self._lives, before or self._lives, strict=True)]
        return np.array([replica.state == states.READY and kept for replica, kept in zip(replicas, same, strict=True)])

    def _flagged_but_unjudged(self, judgement: Judgement) -> set[int]:
        return {index for index in self._flagged if np.isnan(judgement.ratio[index]) and self._alive(index)}

    def _alive(self, index: int) -> bool:
        return self._head.roster.replicas[index].state == states.READY

    def _report_fleet(self, judgement: Judgement) -> None:
        if judgement.fleet_slow and not self._fleet_slow:
            self._head.journal.note("straggler.fleet", why=judgement.fleet_reason, level="warn")
        self._fleet_slow = judgement.fleet_slow
        for node in judgement.slow_nodes:
            if node not in self._nodes:
                why = f"all of its replicas are slow{self._cause(node)}"
                self._head.journal.note("straggler.node", subject=node, why=why, level="warn")
        self._nodes = set(judgement.slow_nodes)

    def _flag(self, slow: SlowReplica) -> None:
        replica = self._head.roster.replicas[slow.slot_index]
        self._head.journal.note(
            "straggler.slow",
            subject=replica.slot,
            why=f"{slow.reason}{self._cause(replica.slot)}",
            level="warn",
            ratio=round(slow.ratio, 3),
            z=round(slow.z, 1),
        )

    def _cause(self, subject: str) -> str:
        """What GPU metrics say of it, or its kernels; without such a word nothing, which is no word of health."""
        cause = self._head.gpus.cause_of(subject) or self._head.kernels.cause_of(subject)
        return f"; likely cause: {cause}" if cause else ""

    def _act(self, replica: Replica, slow: SlowReplica) -> None:
        """Once an incarnation, as soon as policy and guards allow; a refusal is tried again, and noted once."""
        life = (replica.slot, replica.incarnation)
        if self.policy == "flag" or slow.node or life in self._done or replica.state != states.READY:
            return
        now = self._clock()
        if now - self._tried.get(life, -math.inf) < self._spec.window_s:
            return
        self._tried[life] = now
        self._acted = [at for at in self._acted if now - at < 600.0]
        if len(self._acted) >= self._spec.max_acts_per_10min:
            why = f"{len(self._acted)} automatic acts in ten minutes, the limit is {self._spec.max_acts_per_10min}"
            self._hold(replica, why)
            return
        reply = self._run_act(replica, slow)
        if reply.ok:
            self._acted.append(now)
            self._done.add(life)
        else:
            self._hold(replica, reply.message)

    def _hold(self, replica: Replica, why: str) -> None:
        life = (replica.slot, replica.incarnation)
        if life not in self._held:
            self._held.add(life)
            self._head.journal.note("policy.held", subject=replica.slot, why=why, level="warn")

    def _run_act(self, replica: Replica, slow: SlowReplica) -> CommandReply:
        self._asked += 1
        command = Command(
            f"policy-{self._asked}",
            "policy",
            self.policy,
            {"slot": replica.slot, "incarnation": replica.incarnation},
            slow.reason,
        )
        return self._head.acts.run_for_policy(command)
