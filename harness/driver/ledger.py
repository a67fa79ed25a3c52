"""Who holds which sample: the exactly-once gate and the promise that no sample is lost.

LoadGen hangs for ever on a sample that is never completed, crashes on an id it no longer knows, and prints VALID
although a sample completed twice. So this table decides alone what reaches it:

- a reply counts only if it carries the sample's current try and comes over the connection that try was sent to;
- FIRST is passed on once for a sample, whoever answers in the end; COMPLETE pops it, and what follows is stale;
- a sample is always in exactly one place: waiting here in order, or in flight at one member;
- whatever takes a member away (loss, eviction, a missed deadline) puts its samples back at the front of the queue,
  with their original issue time.

Pure: no sockets, no clock. The dispatcher feeds it and sends what it assigns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.wire.data import WHOLE

if TYPE_CHECKING:
    from harness.driver.balance import Policy


class Sample:
    """One LoadGen query sample on its way. Times in ns of the driver's monotonic clock; -1 = not yet."""

    __slots__ = (
        "cost", "dispatched_ns", "first_ns", "handle", "index", "issued_ns", "member", "prefill_us", "queue_us",
        "scheduled_ns", "seq", "tries",
    )  # fmt: skip

    # What only a sample with two stages has (stages.py); here they cost a sample nothing.
    stage: int = WHOLE
    handoff: bytes = b""
    prefill_slot: int = -1
    prefilled_ns: int = -1
    transfer_us: int = -1

    def __init__(self, seq: int, handle: int, index: int, scheduled_ns: int, issued_ns: int, cost: int = 0) -> None:
        self.seq = seq
        self.handle = handle  # LoadGen's own id; never leaves the driver
        self.index = index
        self.scheduled_ns = scheduled_ns
        self.issued_ns = issued_ns
        self.cost = cost  # tokens, for least_tokens
        self.dispatched_ns = -1
        self.first_ns = -1
        self.tries = 0
        self.member: Member | None = None
        self.queue_us = -1
        self.prefill_us = -1

    def note_durations(self, queue_us: int, prefill_us: int) -> None:
        """As the replica that answers with tokens tells them."""
        self.queue_us, self.prefill_us = queue_us, prefill_us


class Member:
    """One incarnation that has passed HELLO, PING and PONG on the data socket."""

    __slots__ = (
        "accepting", "identity", "incarnation", "index", "inflight", "last_reply_ns", "nth", "role", "slot", "tokens",
    )  # fmt: skip

    def __init__(self, index: int, slot: str, incarnation: str, nth: int, identity: bytes, role: str = "both") -> None:
        self.index = index  # position in the roster
        self.slot = slot
        self.incarnation = incarnation
        self.nth = nth
        self.identity = identity
        self.role = role
        self.inflight: dict[int, Sample] = {}
        self.tokens = 0
        self.accepting = False
        self.last_reply_ns = -1

    def oldest_dispatch_ns(self) -> int:
        for sample in self.inflight.values():
            return sample.dispatched_ns
        return -1


class TriesExhausted(Exception):
    """A sample has failed as often as the spec allows; the attempt ends with this reason."""

    def __init__(self, sample: Sample, limit: int, last: str) -> None:
        super().__init__(f"sample {sample.seq} (QSL index {sample.index}) failed {limit} tries; the last one: {last}")


class Ledger:
    """One stage: the whole of a sample where every replica does both, else its prefill or its decode (stages.py)."""

    sample_type = Sample
    _counts_tries = 1

    def __init__(self, policy: Policy, send: Callable[[Member, Sample], bool], *, max_tries: int, deadline_ns: int) -> None:
        """`send` returns False when the member cannot be reached; see take_unreachable."""
        self._policy = policy
        self._send = send
        self._max_tries = max_tries
        self._deadline_ns = deadline_ns
        self.inflight: dict[int, Sample] = {}
        self.waiting: deque[Sample] = deque()
        self.members: dict[str, Member] = {}
        self.accepting = 0
        self.stale = 0
        self.redispatched = 0
        self._unreachable: list[Member] = []

    # --- where samples are -----------------------------------------------------------------------------

    @property
    def open(self) -> int:
        return len(self.waiting) + len(self.inflight)

    @property
    def in_flight(self) -> int:
        return len(self.inflight)

    def left(self) -> list[Sample]:
        """Everything that is not complete."""
        return [*self.inflight.values(), *self.waiting]

    def lacking(self) -> dict[str, int]:
        """Roles of which no member takes work although samples wait for one, and how many wait; "" where roles are one."""
        return {"": len(self.waiting)} if self.waiting and not self.accepting else {}

    # --- members ---------------------------------------------------------------------------------------

    def join(self, member: Member, now_ns: int, *, held: bool = False) -> None:
        self.members[member.slot] = member
        if not held:
            self._accept(member, True)
            self.pump(now_ns)

    def hold(self, member: Member) -> None:
        self._accept(member, False)

    def release(self, member: Member, now_ns: int) -> None:
        self._accept(member, True)
        self.pump(now_ns)

    def _accept(self, member: Member, accepting: bool) -> None:
        if accepting == member.accepting:
            return
        member.accepting = accepting
        if accepting:
            self._policy.add(member)
            self.accepting += 1
        else:
            self._policy.remove(member)
            self.accepting -= 1

    def drop(self, member: Member, now_ns: int, reason: str) -> list[Sample]:
        """Take the member out; its samples go back to the front of the queue. They are returned as well."""
        self._accept(member, False)
        if self.members.get(member.slot) is member:
            del self.members[member.slot]
        back = list(member.inflight.values())
        member.inflight.clear()
        member.tokens = 0
        exhausted: TriesExhausted | None = None
        for sample in reversed(back):
            try:
                self._return(sample, reason)
            except TriesExhausted as error:
                exhausted = error
        if exhausted is not None:
            raise exhausted
        self.pump(now_ns)
        return back

    def take_unreachable(self) -> list[Member]:
        """Members that a send failed to reach since the last call; the caller drops them."""
        found, self._unreachable = self._unreachable, []
        return found

    # --- samples ---------------------------------------------------------------------------------------

    def issue(self, sample: Sample, now_ns: int) -> None:
        if self.waiting:
            self.waiting.append(sample)
            self.pump(now_ns)
            return
        member = self._policy.pick(sample)
        if member is None:
            self.waiting.append(sample)
        elif not self._assign(member, sample, now_ns):
            self.pump(now_ns)

    def pump(self, now_ns: int) -> None:
        """Give waiting samples, oldest first, to members below their cap."""
        waiting, pick = self.waiting, self._policy.pick
        while waiting:
            member = pick(waiting[0])
            if member is None:
                return
            self._assign(member, waiting.popleft(), now_ns)

    def _assign(self, member: Member, sample: Sample, now_ns: int) -> bool:
        sample.tries += self._counts_tries
        if not self._send(member, sample):
            sample.tries -= self._counts_tries  # nothing left here: not a try
            self.waiting.appendleft(sample)
            self._accept(member, False)
            self._unreachable.append(member)
            return False
        sample.member = member
        sample.dispatched_ns = now_ns
        self.inflight[sample.seq] = sample
        member.inflight[sample.seq] = sample
        self._policy.took(member, sample)
        return True

    def _return(self, sample: Sample, reason: str) -> None:
        self.inflight.pop(sample.seq, None)
        sample.member = None
        if sample.tries >= self._max_tries:
            self._put_back(sample)  # still owned: the attempt ends, but nothing vanishes
            raise TriesExhausted(sample, self._max_tries, reason)
        self.redispatched += 1
        self._put_back(sample)

    def _put_back(self, sample: Sample) -> None:
        """To the front, in order of issue among those that were put back before."""
        waiting = self.waiting
        waiting.appendleft(sample)
        place = 0
        while place + 1 < len(waiting) and waiting[place + 1].seq < sample.seq:
            waiting[place], waiting[place + 1] = waiting[place + 1], sample
            place += 1

    def current(self, seq: int, attempt_try: int, identity: bytes, now_ns: int) -> Sample | None:
        """The sample if this reply counts, else None (and one more stale reply)."""
        sample = self.inflight.get(seq)
        if sample is not None and sample.tries == attempt_try:
            member = sample.member
            if member is not None and member.identity == identity:
                member.last_reply_ns = now_ns
                return sample
        self.stale += 1
        return None

    def complete(self, sample: Sample, now_ns: int) -> Member:
        member = sample.member
        assert member is not None
        del self.inflight[sample.seq]
        del member.inflight[sample.seq]
        self._policy.gave_back(member, sample)
        if self.waiting:
            self.pump(now_ns)
        return member

    def give_up_try(self, sample: Sample, now_ns: int, reason: str) -> None:
        """This try will not answer; the sample goes back and on."""
        member = sample.member
        if member is not None:
            member.inflight.pop(sample.seq, None)
            self._policy.gave_back(member, sample)
        self._return(sample, reason)
        self.pump(now_ns)

    def failed(self, seq: int, attempt_try: int, identity: bytes, now_ns: int, reason: str) -> None:
        """A replica says that it will not answer this try."""
        sample = self.current(seq, attempt_try, identity, now_ns)
        if sample is not None:
            self.give_up_try(sample, now_ns, reason)

    def overdue(self, now_ns: int) -> list[tuple[Sample, Member]]:
        """Samples whose current try is past its deadline (they stay where they are; see give_up_try).

        A member's samples lie in the order of their dispatch, so this looks at one sample a member when all is well.
        """
        oldest = now_ns - self._deadline_ns
        late: list[tuple[Sample, Member]] = []
        for member in self.members.values():
            for sample in member.inflight.values():
                if sample.dispatched_ns > oldest:
                    break
                late.append((sample, member))
        return late
