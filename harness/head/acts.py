"""What operators may do, checked and carried out here and nowhere else.

Every act: right role, controller lease, matching incarnation, guards; then it is done, journalled with who and why,
counted against the running attempt, and answered in words. A repeat of a request id is answered from memory.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Protocol

from harness.cluster.base import ClusterError, Removal
from harness.head import roles
from harness.head.drains import Drains, Then
from harness.head.journal import Journal
from harness.head.ramp import LONGEST_S
from harness.head.roster import Replica, Roster
from harness.spec import RunSpec
from harness.wire import states
from harness.wire.control import Command, CommandReply

_LEASE_S = 60.0
_REMEMBERED = 1000
_REASON_LIMIT = 2000
#: Ending things must never hang on who has the lease.
_ANYBODY = frozenset({"take_control", "stop", "abort"})
_RATE_WINDOW_S = 600.0


class Refused(Exception):
    """The act cannot be done; the text says why and what would help."""


class Run(Protocol):
    """What acts need of the supervisor."""

    @property
    def attempt_running(self) -> bool: ...

    def set_rate(self, qps: float, who: str, why: str, ramp_s: float = 0.0) -> str: ...

    def pause(self, paused: bool) -> str: ...

    def start_attempt(self, kind: str | None, qps: float | None, who: str, why: str, test: str | None = None) -> str: ...

    def abort(self, who: str, why: str) -> str: ...

    def stop(self, who: str, why: str, *, aborted: bool) -> str: ...

    def set_policy(self, policy: str) -> str: ...

    @property
    def policy(self) -> str: ...

    @property
    def rate_qps(self) -> float: ...

    def count_act(self, name: str, subject: str) -> None: ...

    def outstanding(self, replica: Replica) -> int: ...

    def start_slot(self, replica: Replica) -> None: ...


class Places(Protocol):
    """What acts need of the placement."""

    whole_nodes: bool

    def going_with(self, replica: Replica) -> list[Replica]: ...

    def removal(self, replica: Replica) -> Removal: ...

    def leave(self, node: int, who: str, why: str, *, cordon: bool) -> None: ...

    def stay(self, node: int) -> bool: ...

    def scale(self, nodes: int, who: str, why: str) -> str: ...


class Acts:
    def __init__(
        self,
        run: Run,
        roster: Roster,
        drains: Drains,
        journal: Journal,
        spec: RunSpec,
        clock: Callable[[], float],
        places: Places,
    ) -> None:
        self._run = run
        self._places = places
        self._roster = roster
        self._drains = drains
        self._journal = journal
        self._spec = spec
        self._clock = clock
        self._answered: OrderedDict[str, CommandReply] = OrderedDict()
        self._evictions: deque[float] = deque()
        self._lease: tuple[str, float] = ("", 0.0)
        self._handlers: dict[str, Callable[[Command], str]] = {
            "set_rate": self._set_rate,
            "drain": lambda command: self._remove(command, "stay"),
            "recycle": lambda command: self._remove(command, "recycle"),
            "evict": lambda command: self._remove(command, "evict"),
            "readmit": self._readmit,
            "waive": self._waive,
            "start_attempt": self._start_attempt,
            "abort": lambda command: self._noted(command, lambda: self._run.abort(_who(command), command.reason)),
            "stop": self._stop,
            "pause": lambda command: self._noted(command, lambda: self._run.pause(True)),
            "resume": lambda command: self._noted(command, lambda: self._run.pause(False)),
            "set_policy": self._set_policy,
            "scale": self._scale,
            "take_control": self._take_control,
            "release_control": self._release_control,
        }

    @property
    def controller(self) -> str:
        name, until = self._lease
        return name if self._clock() < until else ""

    @property
    def evictions(self) -> int:
        """In the last ten minutes: what counts against stragglers.max_acts_per_10min."""
        now = self._clock()
        while self._evictions and now - self._evictions[0] > _RATE_WINDOW_S:
            self._evictions.popleft()
        return len(self._evictions)

    def seen(self, operator: str) -> None:
        """A console of this operator is there: it keeps the lease if it has it."""
        if operator and operator == self.controller:
            self._lease = (operator, self._clock() + _LEASE_S)

    def run_for_policy(self, command: Command) -> CommandReply:
        """An act of the straggler policy: same guards and journal, no lease."""
        return self._answer(command, lambda: self._handlers[command.name](command))

    def run(self, command: Command, role: str) -> CommandReply:
        known = self._answered.get(command.request_id)
        if known is not None:
            return known
        reply = self._answered[command.request_id] = self._answer(command, lambda: self._checked(command, role))
        while len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
        return reply

    def _answer(self, command: Command, act: Callable[[], str]) -> CommandReply:
        try:
            return CommandReply(command.request_id, True, act())
        except Refused as refusal:
            if command.operator != "policy":  # it tries again every second, and notes its own
                self._journal.note(
                    f"refused.{command.name}",
                    who=_who(command),
                    subject=str(command.args.get("slot", ""))[:80],
                    why=str(refusal),
                    level="warn",
                )
            return CommandReply(command.request_id, False, str(refusal))

    def _checked(self, command: Command, role: str) -> str:
        if role != "operator":
            raise Refused("this key may only watch (viewer); acting needs the run's operator key")
        handler = self._handlers.get(command.name)
        if handler is None:
            raise Refused(f"no act named {command.name!r}; known are {', '.join(sorted(self._handlers))}")
        if command.name in _ANYBODY:
            return handler(command)
        holder = self.controller
        if holder and holder != command.operator:
            raise Refused(f"{holder} holds control; take it over first (paceline take-control)")
        answer = handler(command)
        if command.name != "release_control":
            self._lease = (command.operator, self._clock() + _LEASE_S)
        return answer

    def _note(self, command: Command, subject: str, before: str = "", after: str = "", **data: Any) -> None:
        why, who = command.reason[:_REASON_LIMIT], _who(command)
        what = f"act.{command.name}"
        self._journal.note(what, who=who, subject=subject, why=why, before=before, after=after, level="warn", **data)
        self._run.count_act(command.name, subject)

    def _noted(self, command: Command, act: Callable[[], str]) -> str:
        answer = act()
        self._note(command, "", after=answer)
        return answer

    def _set_policy(self, command: Command) -> str:
        before = self._run.policy
        answer = self._run.set_policy(str(command.args.get("policy", "")))
        self._note(command, "", before=before, after=self._run.policy)
        return answer

    # --- the load ----------------------------------------------------------------------------------------

    def _set_rate(self, command: Command) -> str:
        qps = number(command.args, "qps")
        if not (math.isfinite(qps) and 0 < qps <= 1_000_000):
            raise Refused(f"qps {qps:g} is not a rate: more than 0, at most 1,000,000")
        ramp_s = number(command.args, "ramp_s") if command.args.get("ramp_s") is not None else 0.0
        if not 0 <= ramp_s <= LONGEST_S:
            raise Refused(f"ramp_s {ramp_s:g} is not a time for a ramp: 0 (at once) to {LONGEST_S:,.0f} s")
        before = self._run.rate_qps
        answer = self._run.set_rate(qps, _who(command), command.reason, ramp_s)
        ramp = {"ramp_s": ramp_s} if ramp_s else {}
        self._note(command, "", before=f"{before:.6g} QPS", after=f"{qps:g} QPS", qps=qps, **ramp)
        return answer

    def _start_attempt(self, command: Command) -> str:
        kind, qps, test = (command.args.get(name) for name in ("kind", "qps", "test"))
        answer = self._run.start_attempt(
            None if kind is None else str(kind),
            None if qps is None else number(command.args, "qps"),
            _who(command),
            command.reason,
            None if test is None else str(test),
        )
        self._note(command, "")
        return answer

    def _stop(self, command: Command) -> str:
        aborted = bool(command.args.get("abort", False))
        return self._noted(command, lambda: self._run.stop(_who(command), command.reason, aborted=aborted))

    # --- replicas ----------------------------------------------------------------------------------------

    def _replica(self, command: Command) -> Replica:
        slot = str(command.args.get("slot", ""))
        replica = self._roster.by_slot.get(slot)
        if replica is None:
            from difflib import get_close_matches

            near = get_close_matches(slot, self._roster.by_slot, 1)
            raise Refused(f"no slot {slot[:80]!r} in this run" + (f"; did you mean {near[0]}?" if near else ""))
        wanted = str(command.args.get("incarnation", ""))
        if wanted and not replica.incarnation.startswith(wanted):
            raise Refused(f"{slot} is now incarnation {replica.incarnation or '(none)'}; you acted on {wanted}, which is gone")
        return replica

    def _remove(self, command: Command, then: Then) -> str:
        replica = self._replica(command)
        going = self._places.going_with(replica) if then == "evict" else [replica]
        self._may_remove(replica, going, then, force=bool(command.args.get("force", False)))
        cordon = bool(command.args.get("cordon", False))
        removal = self._places.removal(replica) if then == "evict" else Removal()
        if cordon and (not self._places.whole_nodes or removal.why_no_cordon):
            raise Refused(f"cordon: {removal.why_no_cordon or 'there is no cluster, and so no node to cordon'}")
        held = sum(self._run.outstanding(one) for one in going)
        within = self._spec.fleet.drain_deadline_s
        if then != "stay" and "deadline_s" in command.args:
            within = number(command.args, "deadline_s")
            if not 0 <= within <= 86_400:
                raise Refused(f"deadline_s {within:g} is not a time: 0 to 86,400 s")
        if then == "stay":
            within = math.inf
        if then == "evict":
            self._evictions.append(self._clock())
        self._note(command, replica.slot, before=replica.state, after=then, incarnation=replica.incarnation, in_flight=held)
        running = self._run.attempt_running
        for one in going:
            self._drains.start(one, then, within_s=within, who=_who(command), why=command.reason, holds_samples=running)
        if then == "evict" and self._places.whole_nodes:
            self._places.leave(replica.node, _who(command), command.reason or "evict asked for", cordon=cordon)
            return _leaving(removal, going, held, within)
        if not held or replica.state not in (states.DRAINING, states.DRAINED):
            return f"{replica.slot}: {_DONE[then]}"
        rest = "" if then == "stay" else f", what is left after {within:g} s is dispatched again"
        return f"{replica.slot}: draining {held} samples{rest}; then {_DONE[then]}"

    def _may_remove(self, replica: Replica, going: list[Replica], then: Then, *, force: bool) -> None:
        whole = then == "evict" and self._places.whole_nodes
        if whole and (why_not := self._places.removal(replica).why_not):
            raise Refused(why_not)
        if not replica.alive and not whole:
            raise Refused(f"{replica.slot} is {replica.state} already: {replica.reason}")
        pending = self._drains.pending.get(replica.slot)
        if pending is not None and pending.then == then:
            raise Refused(f"{replica.slot} is being drained already ({then}, by {pending.who})")
        if then == "stay" and replica.state not in states.HOLDS_SAMPLES and replica.state != states.DRAINED:
            raise Refused(f"{replica.slot} is {replica.state}: it holds no samples to drain; recycle or evict it")
        expected = sum(not other.waived or other.alive for other in self._roster.replicas)
        if not force:
            self._check_rest(going, expected)
        self.check_rate(then, force=force)

    def _check_rest(self, going: list[Replica], expected: int) -> None:
        """Whether a run can go on without these; `expected`: how many replicas the fleet is to have by then."""
        if last := roles.last_of_role(self._roster, going):
            raise Refused(f"{last}; force to do it anyway")
        floor = self._spec.fleet.barrier.min_ready or max(1, math.ceil(expected / 2))
        ready = sum(one.state == states.READY for one in going)
        left = self._roster.ready - ready
        if ready and left < floor:
            raise Refused(f"{left} READY replicas would remain, the quorum is {floor}; force to do it anyway")

    def check_rate(self, then: Then, *, force: bool = False) -> None:
        limit, done = self._spec.stragglers.max_acts_per_10min, self.evictions
        if then == "evict" and done >= limit and not force:
            raise Refused(f"{done} evictions in the last ten minutes, the limit is {limit}; force to do it anyway")

    def _readmit(self, command: Command) -> str:
        replica = self._replica(command)
        if replica.state in (states.DRAINING, states.DRAINED):
            if self._places.stay(replica.node):
                for fellow in self._places.going_with(replica):
                    self._drains.cancel(fellow.slot)
                    if fellow is not replica and fellow.state in (states.DRAINING, states.DRAINED):
                        self._roster.move(fellow, states.READY, f"{replica.slot} of its pod was readmitted", _who(command))
            self._drains.cancel(replica.slot)
            self._roster.move(replica, states.READY, command.reason or "readmitted", _who(command))
            self._note(command, replica.slot)
            return f"{replica.slot}: READY again"
        if replica.state in (states.LOST, states.EVICTED, states.REJECTED):
            self._run.start_slot(replica)
            self._note(command, replica.slot)
            return f"{replica.slot}: its worker starts a new incarnation"
        raise Refused(f"{replica.slot} is {replica.state}: there is nothing to readmit")

    def _waive(self, command: Command) -> str:
        replica = self._replica(command)
        if replica.state == states.READY:
            raise Refused(f"{replica.slot} is READY: only a missing slot can be waived")
        replica.waived = True
        self._roster.touch(replica)
        self._note(command, replica.slot)
        answer = f"{replica.slot}: waived, the barrier no longer waits for it"
        fellows = [other for other in self._roster.replicas if other.role == replica.role]
        if replica.role in roles.without_ready(self._roster) and all(other.waived for other in fellows):
            answer += f"; every {replica.role} replica is waived now: it still waits until one of them is READY"
        return answer

    def _scale(self, command: Command) -> str:
        nodes, most = command.args.get("nodes"), self._spec.fleet.nodes
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= most:
            raise Refused(f"nodes {nodes!r} is not a size of this fleet: 1 to {most} (fleet.nodes when it was started)")
        leaving = [replica for replica in self._roster.replicas if replica.node >= nodes and replica.alive]
        if leaving and not command.args.get("force", False):
            staying = [replica for replica in self._roster.replicas if replica.node < nodes]
            self._check_rest(leaving, sum(not one.waived or one.alive for one in staying))
        try:
            answer = self._places.scale(nodes, _who(command), command.reason)
        except ClusterError as error:
            raise Refused(str(error)) from error
        self._note(command, "", after=f"{nodes} nodes", nodes=nodes)
        return answer

    # --- control -----------------------------------------------------------------------------------------

    def _take_control(self, command: Command) -> str:
        before = self.controller
        self._lease = (command.operator, self._clock() + _LEASE_S)
        self._journal.note("act.take_control", who=_who(command), before=before, after=command.operator, why=command.reason)
        return f"control is yours{f', taken from {before}' if before and before != command.operator else ''}"

    def _release_control(self, command: Command) -> str:
        self._lease = ("", 0.0)
        self._journal.note("act.release_control", who=_who(command))
        return "control released"


_DONE: dict[Then, str] = {
    "stay": "out of service until readmitted",
    "recycle": "restarted in place",
    "evict": "evicted; its replacement joins after warm-up",
}


def _leaving(removal: Removal, going: list[Replica], held: int, within_s: float) -> str:
    what = f"{removal.subject or 'its pod'} with {len(going)} replicas"
    drain = f": draining {held} samples, what is left after {within_s:g} s is dispatched again; then evicted" if held else ""
    return f"{what}{drain or ' is being evicted'}; its successor starts about {removal.delay_s:.0f} s after it has ended"


def _who(command: Command) -> str:
    return command.operator if command.operator == "policy" else f"operator:{command.operator}"


def number(args: dict[str, Any], name: str) -> float:
    value = args.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(f"{name} {value!r} is not a number")
    return float(value)
