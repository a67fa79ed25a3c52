"""Who may receive work: the head admits an incarnation, its HELLO, PING and PONG prove the connection, then it joins.

The head's word and the replica's may come in either order. A replica that comes back on a new connection, or a new
incarnation in its slot, takes the old member out first: its samples go on elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.driver.ledger import Ledger, Member
from harness.driver.outbox import Outbox
from harness.driver.stages import Stages
from harness.wire import attempt as up
from harness.wire import data


@dataclass(frozen=True, slots=True)
class Admitted:
    index: int
    incarnation: str
    nth: int
    role: str


class Pool:
    def __init__(self, epoch: int, ledger: Ledger | Stages, out: Outbox, report: Callable[[up.ToSupervisor], None]) -> None:
        self.size = 0  # read by the main thread
        self._epoch, self._ledger, self._out, self._report = epoch, ledger, out, report
        self._admitted: dict[str, Admitted] = {}
        self._greeted: dict[str, bytes] = {}  # slot → identity that was pinged
        self._held: set[str] = set()
        self._drain_reported: set[str] = set()

    # --- the replica's word --------------------------------------------------------------------------------

    def hello(self, identity: bytes, message: data.Hello) -> None:
        if message.epoch != self._epoch:
            self._out.refuse(identity, f"attempt epoch {message.epoch} is over; this is {self._epoch}")
            return
        admitted = self._admitted.get(message.slot)
        if admitted is None or admitted.incarnation != message.incarnation:
            return  # not admitted (yet): it repeats its HELLO
        self._greeted[message.slot] = identity
        self._out.tell(identity, data.Ping(self._epoch, message.slot))

    def pong(self, identity: bytes, message: data.Pong, now: int) -> None:
        admitted = self._admitted.get(message.slot)
        if admitted is None or admitted.incarnation != message.incarnation or self._greeted.get(message.slot) != identity:
            return
        known = self._ledger.members.get(message.slot)
        if known is not None:
            if known.identity == identity and known.incarnation == message.incarnation:
                return
            self.drop(known, "the same replica came back on a new connection", now)
        member = Member(admitted.index, message.slot, message.incarnation, admitted.nth, identity, admitted.role)
        self._ledger.join(member, now, held=message.slot in self._held)
        self.size = len(self._ledger.members)
        self._report(up.InPool(message.slot, message.incarnation))

    # --- the head's word -----------------------------------------------------------------------------------

    def admit(self, message: up.Admit, now: int) -> None:
        known = self._admitted.get(message.slot)
        self._admitted[message.slot] = Admitted(message.index, message.incarnation, message.nth, message.role)
        self._held.discard(message.slot)
        member = self._ledger.members.get(message.slot)
        if known is not None and known.incarnation != message.incarnation:
            self.drop(member, "replaced by a new incarnation", now)
        elif member is not None:
            self._ledger.release(member, now)

    def hold_or_drop(self, message: up.Hold | up.Drop, now: int) -> None:
        admitted = self._admitted.get(message.slot)
        if admitted is None or admitted.incarnation != message.incarnation:
            return
        member = self._ledger.members.get(message.slot)
        if isinstance(message, up.Hold):
            self._held.add(message.slot)
            self._drain_reported.discard(message.slot)
            if member is not None:
                self._ledger.hold(member)
        else:
            self._held.discard(message.slot)
            del self._admitted[message.slot]
            self.drop(member, message.reason, now)

    # --- leaving -------------------------------------------------------------------------------------------

    def drop(self, member: Member | None, reason: str, now: int) -> None:
        if member is None:
            return
        for sample in member.inflight.values():
            if sample.member is member:
                self._out.cancel(member, sample)
        self._report(up.Redispatched(member.slot, member.incarnation, len(member.inflight), reason))
        try:
            self._ledger.drop(member, now, reason)
        finally:
            self.size = len(self._ledger.members)

    def report_drained(self) -> None:
        """Slots on hold that have nothing left, once each."""
        for slot in self._held - self._drain_reported:
            member = self._ledger.members.get(slot)
            if member is None or not member.inflight:
                self._drain_reported.add(slot)
                self._report(up.Drained(slot, self._admitted[slot].incarnation))
