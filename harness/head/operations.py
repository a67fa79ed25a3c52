"""What operators want of the run: the next attempt, another rate, a pause, the end. The load side of acts.

Holds the wishes (`wanted`, `stopping`, the rate); the supervisor's one coroutine looks at them and carries them out. A
LoadGen attempt cannot change its rate, so a new rate there is a wish for another attempt and the end of this one. In an
exploration the rate changes at once, or moves there as a ramp: the driver is told the next rate at every tick of the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, get_args

from pydantic import ValidationError

from harness.engines import registry
from harness.engines.base import EngineError
from harness.head.acts import Refused
from harness.head.attempt import Attempt, Outcome
from harness.head.journal import Journal
from harness.head.live import Live
from harness.head.ramp import Ramp
from harness.head.roster import Replica
from harness.head.runbook import RunBook
from harness.head.stragglers import StragglerDuty
from harness.spec import Kind, RunSpec, StragglerPolicy
from harness.wire import attempt as up
from harness.wire import states

_DRAIN_ON_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """An attempt that somebody asked for."""

    kind: str
    qps: float
    supersedes: int = 0
    test: str | None = None  # of a compliance attempt


@dataclass(frozen=True, slots=True)
class Stop:
    who: str
    why: str
    aborted: bool


class Head(Protocol):
    """What operations need of the supervisor."""

    attempt: Attempt | None
    phase: str
    book: RunBook
    journal: Journal
    live: Live
    duty: StragglerDuty

    def start_slot(self, replica: Replica) -> None: ...

    def spec_of(self, wanted: Wanted) -> RunSpec: ...


class Operations:
    """Implements harness.head.acts.Run."""

    def __init__(self, head: Head, spec: RunSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._head = head
        self._spec = spec
        self._clock = clock
        self._ticked_s = clock()
        self.wanted: Wanted | None = Wanted(spec.load.kind, spec.load.target_qps, test=spec.load.test)
        self.stopping: Stop | None = None
        self.changed = asyncio.Event()  # wanted or stopping was set
        self.paused = False
        self.rate_qps = spec.load.target_qps
        self.ramp: Ramp | None = None  # `rate_qps` is on its way

    def want(self, wanted: Wanted) -> None:
        self.wanted, self.rate_qps = wanted, wanted.qps

    def stop_for(self, stop: Stop) -> None:
        self.stopping = stop
        self.changed.set()

    def begin(self, qps: float) -> None:
        """An attempt starts."""
        self.rate_qps, self.paused, self.ramp = qps, False, None

    def attempt_over(self) -> None:
        """A ramp ends with its attempt, wherever it has got to."""
        self._end_ramp("the attempt ended before the ramp did", level="warn")

    def tick(self) -> None:
        """Several times a second: the next step of a ramp, while samples are being issued."""
        now = self._clock()
        step_s, self._ticked_s = now - self._ticked_s, now
        ramp, attempt = self.ramp, self._head.attempt
        if ramp is None or attempt is None or self.paused or attempt.phase != "issuing":
            return
        ramp.gone_s += step_s
        self.rate_qps = ramp.rate_qps
        attempt.tell(up.SetRate(self.rate_qps))
        if not ramp.left_s:
            self._end_ramp(f"the ramp of {ramp.over_s:g} s has arrived")

    def _end_ramp(self, why: str, level: str = "info") -> None:
        ramp, self.ramp = self.ramp, None
        if ramp is None:
            return
        self._head.journal.note(
            "rate.ramp",
            who=ramp.who,
            before=f"{ramp.from_qps:g} QPS",
            after=f"{self.rate_qps:.6g} QPS",
            why=why,
            level=level,
            ramp_s=ramp.over_s,
        )

    def start_slot(self, replica: Replica) -> None:
        self._head.start_slot(replica)

    @property
    def attempt_running(self) -> bool:
        return self._head.attempt is not None and self._head.attempt.running

    @property
    def policy(self) -> str:
        return self._head.duty.policy

    @property
    def mechanism(self) -> str:
        attempt = self._head.attempt
        if self._head.phase in states.RUN_ENDED or self.stopping is not None:
            return ""
        if attempt is None:
            return "next attempt"
        return "at once" if attempt.spec.load.kind == "explore" else "new attempt"

    def outstanding(self, replica: Replica) -> int:
        return int(self._head.live.outstanding[replica.index]) if self.attempt_running else 0

    def _check(self, wanted: Wanted) -> None:
        """Before anything ends for it: the spec's own rules, and the engine's, hold for every attempt."""
        try:
            spec = self._head.spec_of(wanted)
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")) from error
        refusal = _engine_refuses(spec)
        # What it says of the run's own spec too (this machine need not have the model's files) is not about this attempt.
        if refusal and refusal != _engine_refuses(self._spec):
            raise Refused(f"no {wanted.kind} attempt on this fleet: {refusal}")

    def count_act(self, name: str, subject: str) -> None:
        if self._head.attempt is not None:
            self._head.attempt.acts.append((name, subject))
            self._head.attempt.record.acts = len(self._head.attempt.acts)
            self._head.book.save()

    def set_rate(self, qps: float, who: str, why: str, ramp_s: float = 0.0) -> str:
        attempt, before = self._head.attempt, self.rate_qps
        if self.stopping is not None or self._head.phase in states.RUN_ENDED:
            raise Refused("the run is ending")
        if attempt is None or not attempt.running or attempt.ending:
            if ramp_s:
                raise Refused("nothing is issued whose rate could move there slowly; leave the ramp out (ramp_s = 0)")
            if self.wanted is None:
                raise Refused("no attempt is running and none is wanted; start one (start_attempt)")
            wanted = replace(self.wanted, qps=qps)
            self._check(wanted)
            self.want(wanted)
            return f"the next attempt runs at {qps:g} QPS (was {before:g})"
        load = attempt.spec.load
        self._check(Wanted(load.kind, qps, test=load.test))
        if load.kind == "explore":
            return self._change_at_once(attempt, qps, who, ramp_s)
        if ramp_s:
            raise Refused(
                "a LoadGen attempt cannot ramp: it fixes its schedule at the start, so a new rate means a new attempt; "
                "leave the ramp out (ramp_s = 0), or ramp in an explore attempt"
            )
        self.want(Wanted(load.kind, qps, attempt.number, load.test))
        attempt.end(Outcome(False, f"superseded by an attempt at {qps:g} QPS, asked for by {who}", "SUPERSEDED"))
        return (
            f"LoadGen fixes its schedule at the start: attempt {attempt.number} ends as SUPERSEDED, "
            f"the next one runs at {qps:g} QPS on the same warm replicas"
        )

    def _change_at_once(self, attempt: Attempt, qps: float, who: str, ramp_s: float) -> str:
        """An exploration: now, or from now on as a ramp; a ramp under way gives way either way. A pause ends with it."""
        before = self.rate_qps
        self.paused = False
        if ramp_s:
            self.ramp = Ramp(before, qps, ramp_s, who)
            attempt.tell(up.SetRate(before))
            return f"{before:.6g} → {qps:g} QPS over {ramp_s:g} s (exploration)"
        self.rate_qps, self.ramp = qps, None
        attempt.tell(up.SetRate(qps))
        return f"{before:.6g} → {qps:g} QPS, at once (exploration)"

    def pause(self, paused: bool) -> str:
        attempt = self._head.attempt
        if attempt is None or attempt.spec.load.kind != "explore":
            raise Refused("only an explore attempt can pause: LoadGen's schedule is fixed")
        self.paused = paused
        attempt.tell(up.SetRate(0.0 if paused else self.rate_qps))
        if paused:
            return "issuing is paused" + (f"; so is the ramp to {self.ramp.to_qps:g} QPS" if self.ramp else "")
        onward = f", {self.ramp.left_s:.0f} s before the ramp reaches {self.ramp.to_qps:g}" if self.ramp else ""
        return f"issuing at {self.rate_qps:.6g} QPS again{onward}"

    def start_attempt(self, kind: str | None, qps: float | None, who: str, why: str, test: str | None = None) -> str:
        if self.stopping is not None or self._head.phase in states.RUN_ENDED:
            raise Refused("the run is ending")
        if kind is not None and kind not in get_args(Kind):
            raise Refused(f"kind {kind!r} is none of {', '.join(get_args(Kind))}")
        if self.attempt_running:
            raise Refused(
                f"attempt {self._head.book.next_number - 1} is running; end it first (abort), or change its rate (set_rate)"
            )
        kind = kind or ("compliance" if test else self._spec.load.kind)
        if kind == "compliance":
            test = test or self._spec.load.test
        wanted = Wanted(kind, self.rate_qps if qps is None else qps, test=test)
        self._check(wanted)
        self.want(wanted)
        self.changed.set()
        what = f"{wanted.kind} {wanted.test}" if wanted.test else wanted.kind
        return f"attempt {self._head.book.next_number}: {what} at {wanted.qps:g} QPS"

    def abort(self, who: str, why: str) -> str:
        attempt = self._head.attempt
        if attempt is None or not attempt.running:
            raise Refused("no attempt is running")
        self.wanted = None
        self.end_attempt_for(Stop(who, why, aborted=True))
        warm = self._spec.fleet.keep_warm_s
        then = f"the fleet stays warm for {warm:g} s" if warm else "the run ends with it (fleet.keep_warm_s = 0)"
        return f"attempt {attempt.number} ends as ABORTED; {then}"

    def stop(self, who: str, why: str, *, aborted: bool) -> str:
        if self.stopping is not None:
            return "the run is ending already"
        stop = Stop(who, why, aborted)
        self.stop_for(stop)
        self.wanted = None
        if self._head.attempt is not None:
            self.end_attempt_for(stop)
            return f"attempt {self._head.attempt.number} ends, then the fleet stops"
        return "the fleet stops"

    def end_attempt_for(self, stop: Stop) -> None:
        attempt = self._head.attempt
        if attempt is None:
            return
        reason = f"stopped by {stop.who}" + (f": {stop.why}" if stop.why else "")
        load = attempt.spec.load
        if load.kind != "explore":
            attempt.end(Outcome(False, reason, "ABORTED"))
        elif load.duration_s == 0 and not stop.aborted:
            attempt.finish(Outcome(True, reason), _DRAIN_ON_STOP_S)  # an exploration without end ends like this
        else:
            attempt.finish(Outcome(False, reason, "ABORTED"), _DRAIN_ON_STOP_S)

    def set_policy(self, policy: str) -> str:
        if policy not in get_args(StragglerPolicy):
            raise Refused(f"policy {policy!r} is none of {', '.join(get_args(StragglerPolicy))}")
        before, self._head.duty.policy = self._head.duty.policy, policy
        return f"straggler policy {before} → {policy}"


def _engine_refuses(spec: RunSpec) -> str:
    try:
        registry.check_args(spec)
    except EngineError as error:
        return str(error)
    return ""
