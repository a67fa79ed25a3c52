"""Getting rid of a replica, gentlest first: drain, recycle (drain, then restart in place), evict (drain to a deadline).

One pending drain a slot, bound to the incarnation it was asked for. Nothing is taken from a replica before its drain is
over or its deadline has passed; then what is left is dispatched again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.head.roster import Replica, Roster
from harness.wire import states

Then = Literal["stay", "recycle", "evict"]


@dataclass(frozen=True, slots=True)
class Drain:
    slot: str
    incarnation: str
    then: Then
    deadline_s: float  # monotonic; infinity for a plain drain
    who: str
    why: str


@dataclass(slots=True)
class Drains:
    roster: Roster
    clock: Callable[[], float]
    recycle: Callable[[Replica, str], None]
    evict: Callable[[Replica, str, str], None]
    pending: dict[str, Drain]
    drained: set[str]

    def start(self, replica: Replica, then: Then, *, within_s: float, who: str, why: str, holds_samples: bool) -> None:
        """The caller has checked that the replica is alive. `holds_samples`: an attempt is running."""
        drain = Drain(replica.slot, replica.incarnation, then, self.clock() + within_s, who, why)
        self.pending[replica.slot] = drain
        if replica.state != states.DRAINING:
            self.drained.discard(replica.slot)  # a drain that is over stays over when it becomes a recycle
        if replica.state in states.HOLDS_SAMPLES and holds_samples and within_s > 0:
            self.roster.move(replica, states.DRAINING, why or f"{then} asked for", who)
        elif then == "stay":
            self.roster.move(replica, states.DRAINING, why or "drain asked for", who)
            self.drained.add(replica.slot)
        else:
            self._carry_out(replica, drain)

    def note_drained(self, slot: str, incarnation: str) -> None:
        """The driver says that nothing of this incarnation is in flight any more."""
        replica = self.roster.by_slot.get(slot)
        if replica is not None and replica.incarnation == incarnation and replica.state == states.DRAINING:
            self.drained.add(slot)

    def attempt_over(self) -> None:
        """Without a driver nothing is in flight anywhere."""
        self.drained.update(r.slot for r in self.roster.replicas if r.state == states.DRAINING)

    def cancel(self, slot: str) -> None:
        self.pending.pop(slot, None)
        self.drained.discard(slot)

    def tick(self) -> None:
        now = self.clock()
        for slot, drain in list(self.pending.items()):
            replica = self.roster.by_slot[slot]
            if replica.incarnation != drain.incarnation or not replica.alive:
                self.cancel(slot)
            elif slot in self.drained:
                self.roster.move(replica, states.DRAINED, "nothing in flight", "head")
                self._carry_out(replica, drain)
            elif now >= drain.deadline_s:
                self._carry_out(replica, drain)

    def _carry_out(self, replica: Replica, drain: Drain) -> None:
        self.cancel(replica.slot)
        if drain.then == "recycle":
            self.recycle(replica, drain.why or "recycle asked for")
        elif drain.then == "evict":
            self.evict(replica, drain.who, drain.why or "evict asked for")
