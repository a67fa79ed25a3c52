"""A sample in two stages: prefill at one replica, decode at another; two ledgers and what lies between them.

    waiting for prefill → in flight at P ──PREFILLED──▶ waiting for decode → in flight at D ──COMPLETE──▶ done

A round is one prefill and its decode; `tries` counts rounds, and both queries of a round carry the same number. A reply
counts in the stage it belongs to, and there like any other (ledger.py): so a PREFILLED that comes late or twice meets no
sample in the first ledger, and a FIRST that comes early none in the second. The same connection may carry both roles.

The KV cache stays at P until the first reply with tokens from D shows that it has arrived. Until then the sample lies in
P's own table too (`holder`): it counts against P's cap, so that prefill cannot run away from decode by more than the cache
holds; P is not drained before it is gone; and when P goes, the sample is taken back from D and begins a new round. Whatever
D loses begins a new round too: a cache is read once. What an engine at P keeps of a round that ended so is its own to free.

Members are warmed in pairs before they take samples (pairs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from harness.driver.balance import LeastTokens, Policy, make_policy
from harness.driver.ledger import Ledger, Member, Sample
from harness.driver.pairs import Pairs
from harness.driver.staged import StagedSample
from harness.wire.data import DECODE, Prefilled

Send = Callable[[Member, Sample], bool]


class _PrefillLedger(Ledger):
    """Its members' tables hold samples that have gone on to decode, too."""

    sample_type = StagedSample

    def overdue(self, now_ns: int) -> list[tuple[Sample, Member]]:
        oldest = now_ns - self._deadline_ns
        late: list[tuple[Sample, Member]] = []
        for member in self.members.values():
            for sample in member.inflight.values():
                if sample.member is not member:
                    continue
                if sample.dispatched_ns > oldest:
                    break
                late.append((sample, member))
        return late

    def pass_on(self, sample: Sample) -> Member:
        """PREFILLED came: the sample goes on, its cache stays at the member."""
        member = sample.member
        assert member is not None
        del self.inflight[sample.seq]
        sample.member = None
        return member

    def let_go(self, member: Member, sample: Sample) -> None:
        """The cache is not needed here any more."""
        if member.inflight.pop(sample.seq, None) is not None:
            self._policy.gave_back(member, sample)

    def send_back(self, sample: Sample, reason: str) -> None:
        self._return(sample, reason)


class _DecodeLedger(Ledger):
    """Does not count tries, and has no way back of its own: what returns begins a new round."""

    sample_type = StagedSample
    _counts_tries = 0
    new_round: Callable[[Sample, str], None]

    def _return(self, sample: Sample, reason: str) -> None:
        self.inflight.pop(sample.seq, None)
        sample.member = None
        self.new_round(sample, reason)

    def take_back(self, sample: Sample) -> None:
        member = sample.member
        assert member is not None
        del self.inflight[sample.seq]
        del member.inflight[sample.seq]
        self._policy.gave_back(member, sample)
        sample.member = None


class LeastPromptTokens(LeastTokens):
    """A prefill replica is as busy as the prompts before it are long; their outputs are not its work."""

    def __init__(self, cap: int, n_prompt: Sequence[int]) -> None:
        super().__init__(cap)
        self._n_prompt = n_prompt

    def took(self, member: Member, sample: Sample) -> None:
        member.tokens += self._n_prompt[sample.index]

    def gave_back(self, member: Member, sample: Sample) -> None:
        member.tokens -= self._n_prompt[sample.index]


class Stages:
    """Answers to what the dispatcher asks of a Ledger."""

    sample_type = StagedSample

    def __init__(
        self,
        send: Send,
        cancel: Callable[[Member, Sample], None],
        n_prompt: Sequence[int],
        *,
        prefill_policy: str,
        decode_policy: str,
        cap: int,
        max_tries: int,
        deadline_ns: int,
        pairs_deadline_ns: int | None = None,
    ) -> None:
        """`pairs_deadline_ns`: None takes members as they come, without warming pairs."""
        least_prompt = prefill_policy == "least_tokens"
        prefills: Policy = LeastPromptTokens(cap, n_prompt) if least_prompt else make_policy(prefill_policy, cap)
        self.prefill = _PrefillLedger(prefills, send, max_tries=max_tries, deadline_ns=deadline_ns)
        self.decode = _DecodeLedger(make_policy(decode_policy, cap), send, max_tries=max_tries, deadline_ns=deadline_ns)
        self.decode.new_round = self._new_round
        self.members: dict[str, Member] = {}
        self.open = 0  # a number of its own: between the stages a sample is in neither, and another thread reads this
        self.prefilled_samples = 0
        self.prefilled_tokens = 0
        self.pairs: Pairs | None = None
        if pairs_deadline_ns is not None:
            self.pairs = Pairs(send, self._accept, n_prompt, deadline_ns=pairs_deadline_ns)
        self._cancel = cancel
        self._n_prompt = n_prompt

    # --- where samples are ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> Sequence[Sample]:
        """For prefill."""
        return self.prefill.waiting

    @property
    def in_flight(self) -> int:
        return len(self.prefill.inflight) + len(self.decode.inflight)

    @property
    def stale(self) -> int:
        return self.prefill.stale + self.decode.stale

    @stale.setter
    def stale(self, count: int) -> None:
        self.prefill.stale = count - self.decode.stale

    @property
    def redispatched(self) -> int:
        return self.prefill.redispatched

    def left(self) -> list[Sample]:
        left = [*self.decode.left(), *self.prefill.left()]
        for sample in left:
            sample.dispatched_ns = cast(StagedSample, sample).round_ns if sample.stage == DECODE else sample.dispatched_ns
        return left

    def lacking(self) -> dict[str, int]:
        found = {"prefill": self.prefill.lacking(), "decode": self.decode.lacking()}
        return {role: lacking[""] for role, lacking in found.items() if lacking}

    # --- members -------------------------------------------------------------------------------------------

    def _ledger_of(self, member: Member) -> Ledger:
        return self.prefill if member.role == "prefill" else self.decode

    def join(self, member: Member, now_ns: int, *, held: bool = False) -> None:
        self.members[member.slot] = member
        self._ledger_of(member).join(member, now_ns, held=held or self.pairs is not None)
        if self.pairs is not None:
            self.pairs.join(member, now_ns, held=held)

    def _accept(self, member: Member, now_ns: int) -> None:
        self._ledger_of(member).release(member, now_ns)

    def hold(self, member: Member) -> None:
        self._ledger_of(member).hold(member)
        if self.pairs is not None:
            self.pairs.hold(member)

    def release(self, member: Member, now_ns: int) -> None:
        if self.pairs is not None:
            self.pairs.release(member, now_ns)
        else:
            self._accept(member, now_ns)

    def drop(self, member: Member, now_ns: int, reason: str) -> list[Sample]:
        """Take the member out; what it had, a KV cache or the sample itself, begins a new round."""
        if self.members.get(member.slot) is member:
            del self.members[member.slot]
        if self.pairs is not None:
            self.pairs.drop(member, now_ns)
        if member.role == "prefill":
            self._recall(member)
        back = self._ledger_of(member).drop(member, now_ns, reason)
        self.prefill.pump(now_ns)
        self.decode.pump(now_ns)  # it may have room again for what waits
        return back

    def _recall(self, holder: Member) -> None:
        """The caches at this member are lost: whoever decodes from them, or waits to, is taken back."""
        waited = False
        for sample in cast(list[StagedSample], list(holder.inflight.values())):
            if sample.holder is not holder:
                continue
            if sample.member is None:
                waited = True
            else:
                self._cancel(sample.member, sample)
                self.decode.take_back(sample)
            sample.begin_round()
        if waited:
            keep = [sample for sample in self.decode.waiting if sample.stage == DECODE]
            self.decode.waiting.clear()
            self.decode.waiting.extend(keep)

    def take_unreachable(self) -> list[Member]:
        found = [*self.prefill.take_unreachable(), *self.decode.take_unreachable()]
        if self.pairs is not None:
            found += self.pairs.take_unreachable()
        return list(dict.fromkeys(found))  # several warm-ups may have failed to reach the same one

    # --- samples -------------------------------------------------------------------------------------------

    def issue(self, sample: Sample, now_ns: int) -> None:
        self.open += 1
        self.prefill.issue(sample, now_ns)

    def prefilled(self, message: Prefilled, identity: bytes, handoff: bytes, now_ns: int) -> None:
        if message.seq < 0:
            if self.pairs is not None:
                self.pairs.prefilled(message.seq, message.attempt_try, identity, handoff, now_ns)
            return
        sample = cast(StagedSample | None, self.prefill.current(message.seq, message.attempt_try, identity, now_ns))
        if sample is None:
            return
        sample.holder = holder = self.prefill.pass_on(sample)
        sample.stage, sample.handoff = DECODE, handoff
        sample.prefill_slot, sample.prefilled_ns, sample.round_ns = holder.index, now_ns, sample.dispatched_ns
        sample.queue_us, sample.prefill_us = message.queue_us, message.prefill_us
        self.prefilled_samples += 1
        self.prefilled_tokens += self._n_prompt[sample.index]
        self.decode.issue(sample, now_ns)

    def current(self, seq: int, attempt_try: int, identity: bytes, now_ns: int) -> Sample | None:
        """The sample if this reply with tokens counts. The first one ends what the prefill replica holds of it."""
        if seq < 0:
            if self.pairs is not None:
                self.pairs.taken_over(seq, attempt_try, identity, now_ns)
            return None
        sample = cast(StagedSample | None, self.decode.current(seq, attempt_try, identity, now_ns))
        if sample is not None and sample.holder is not None:
            self._let_go(sample)
            self.prefill.pump(now_ns)
        return sample

    def complete(self, sample: Sample, now_ns: int) -> Member:
        self.open -= 1
        member = self.decode.complete(sample, now_ns)
        sample.dispatched_ns = cast(StagedSample, sample).round_ns  # its row tells the round
        return member

    def failed(self, seq: int, attempt_try: int, identity: bytes, now_ns: int, reason: str) -> None:
        if seq < 0:
            if self.pairs is not None:
                self.pairs.failed(seq, attempt_try, identity, reason, now_ns)
            return
        stage = self.decode if seq in self.decode.inflight else self.prefill
        stage.failed(seq, attempt_try, identity, now_ns, reason)
        self.prefill.pump(now_ns)

    def give_up_try(self, sample: Sample, now_ns: int, reason: str) -> None:
        stage = self.decode if sample.stage == DECODE else self.prefill
        stage.give_up_try(sample, now_ns, reason)
        self.prefill.pump(now_ns)

    def overdue(self, now_ns: int) -> list[tuple[Sample, Member]]:
        return [*self.prefill.overdue(now_ns), *self.decode.overdue(now_ns)]

    def _let_go(self, sample: StagedSample) -> None:
        if sample.holder is not None:
            self.prefill.let_go(sample.holder, sample)
            sample.holder = None
            sample.handoff = b""

    def _new_round(self, sample: Sample, reason: str) -> None:
        staged = cast(StagedSample, sample)
        self._let_go(staged)
        staged.begin_round()
        self.prefill.send_back(staged, reason)
