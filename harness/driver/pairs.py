"""Every prefill replica sends one short sample to every decode replica before either is used together.

The first KV transfer between two replicas sets up their connection, which takes seconds with real connectors: it must not
fall into somebody's TTFT. A member takes samples once it is warm with every other that does, or that is on its way to.

Pairs are warmed in diagonals: in diagonal k the i-th prefill replica meets the (i+k)-th decode replica, so a diagonal
holds each replica at most once, and as many diagonals as are open at a time bound what any replica gets at a time. A pair
that is slow delays the diagonals behind its own and nothing else. Warm-up samples have negative numbers, which no sample
of an attempt has, and end with the first token at the decode replica: then the cache has come over.

A pair that refuses three times or does not answer by its deadline is given up, and its later member stays out. The caller
decides what that means (before the load the attempt ends; later the member is reported and replaced).

Pure, like the ledger: no sockets, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.driver.ledger import Member, Sample
from harness.driver.staged import StagedSample
from harness.wire.attempt import PairsWarmed
from harness.wire.data import DECODE

OPEN_DIAGONALS = 4
TRIES = 3
#: Below one block of KV cache nothing is transferred, and nothing would be warm.
PROMPT_TOKENS = 64
PROMPTS = 16

Pair = tuple[Member, Member]  # prefill, decode


@dataclass(frozen=True, slots=True)
class GivenUp:
    member: Member  # the one that came later
    waited_s: float
    why: str


class _Warming:
    """One pair on its way."""

    __slots__ = ("begun_ns", "left", "pair", "sample", "tries")

    sample: StagedSample

    def __init__(self, pair: Pair, left: list[int], begun_ns: int) -> None:
        self.pair, self.begun_ns = pair, begun_ns
        self.left = left  # of its diagonal, shared
        self.tries = 0


class Pairs:
    def __init__(
        self,
        send: Callable[[Member, Sample], bool],
        accept: Callable[[Member, int], None],
        n_prompt: Sequence[int],
        *,
        deadline_ns: int,
    ) -> None:
        """`accept` is told of each member that may take samples."""
        self._send, self._accept, self._deadline_ns = send, accept, deadline_ns
        self._indices = _short_prompts(n_prompt)
        self._sides: dict[str, dict[Member, None]] = {"prefill": {}, "decode": {}}  # in the order of joining
        self._held: set[Member] = set()
        self._barred: set[Member] = set()
        self._missing: dict[Member, set[Member]] = {}  # member that does not take samples yet → partners to be warmed with
        self._warm: set[Pair] = set()
        self._diagonals: deque[list[Pair]] = deque()
        self._open = 0
        self._pairs_open: dict[Pair, _Warming] = {}
        self._warming: dict[int, _Warming] = {}  # by the number of its sample
        self._again: list[_Warming] = []  # refused; sent again at the next tick
        self._given_up: list[GivenUp] = []
        self._unreachable: list[Member] = []
        self._number = 0
        self._begun = False
        self._series_ns = -1  # when the first pair of this series was sent
        self._count = 0
        self._slowest: tuple[int, Pair] | None = None
        # read by the main thread
        self.wanted = False  # set by it: all who are to be there at the beginning are there
        self.settled = False
        self.done = 0
        self.total = 0

    # --- members -------------------------------------------------------------------------------------------

    def join(self, member: Member, now_ns: int, *, held: bool) -> None:
        self._sides[member.role][member] = None
        if held:
            self._held.add(member)
        elif self._begun:
            self._prepare([member], now_ns)

    def release(self, member: Member, now_ns: int) -> None:
        self._held.discard(member)
        self._barred.discard(member)
        if self._begun and not member.accepting and member not in self._missing:
            self._prepare([member], now_ns)

    def hold(self, member: Member) -> None:
        """Nobody waits for it any more; whoever waited for it alone is taken at the next tick."""
        self._held.add(member)
        self._nobody_waits_for(member)

    def drop(self, member: Member, now_ns: int) -> None:
        self._sides[member.role].pop(member, None)
        self._held.discard(member)
        self._barred.discard(member)
        self._nobody_waits_for(member)
        self._warm = {pair for pair in self._warm if member not in pair}
        for warming in [warming for pair, warming in self._pairs_open.items() if member in pair]:
            self._over(warming, now_ns)
        self._take_ready(now_ns)

    def take_unreachable(self) -> list[Member]:
        found, self._unreachable = self._unreachable, []
        return found

    def _nobody_waits_for(self, member: Member) -> None:
        self._missing.pop(member, None)
        for partners in self._missing.values():
            partners.discard(member)

    def _partners(self, member: Member) -> list[Member]:
        side = self._sides["decode" if member.role == "prefill" else "prefill"]
        return [other for other in side if other not in self._held and other not in self._barred]

    def _prepare(self, members: Iterable[Member], now_ns: int) -> None:
        """Queue what each of them lacks; who lacks nothing is taken at once."""
        queued: dict[int, list[Pair]] = {}
        for place, member in enumerate(members):
            partners = self._partners(member)
            self._missing[member] = {other for other in partners if _pair(member, other) not in self._warm}
            for number, other in enumerate(partners):
                if other in self._missing[member]:
                    queued.setdefault((number - place) % len(partners), []).append(_pair(member, other))
        self._queue(queued.values(), now_ns)
        self._take_ready(now_ns)

    def _queue(self, diagonals: Iterable[list[Pair]], now_ns: int) -> None:
        if not self._busy:
            self.done = self.total = 0
        for diagonal in diagonals:
            for part in _once_each(diagonal):
                self.total += len(part)
                self._diagonals.append(part)
        self._open_more(now_ns)

    def _take_ready(self, now_ns: int) -> None:
        if not self._begun:
            return
        for member in [member for member, missing in self._missing.items() if not missing]:
            del self._missing[member]
            if member not in self._held and member not in self._barred:
                self._accept(member, now_ns)

    # --- warming -------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return bool(self._pairs_open or self._diagonals)

    def _begin(self, now_ns: int) -> None:
        self._begun = True
        everybody = [member for member in self._sides["prefill"] if member not in self._held]
        alone = [member for member in self._sides["decode"] if member not in self._held]
        for member in alone:
            self._missing[member] = set(everybody)
        self._prepare(everybody, now_ns)

    def _open_more(self, now_ns: int) -> None:
        while self._diagonals and self._open < OPEN_DIAGONALS:
            pairs = [pair for pair in self._diagonals.popleft() if self._is_due(pair)]
            left = [len(pairs)]
            self._open += bool(pairs)
            if pairs and self._series_ns < 0:
                self._series_ns = now_ns
            for pair in pairs:
                warming = self._pairs_open[pair] = _Warming(pair, left, now_ns)
                self._start(warming, now_ns)

    def _is_due(self, pair: Pair) -> bool:
        """A pair may have been queued twice, or its members may be gone by now."""
        there = all(member in self._sides[member.role] and member not in self._barred for member in pair)
        due = there and pair not in self._warm and pair not in self._pairs_open
        self.done += not due
        return due

    def _start(self, warming: _Warming, now_ns: int) -> None:
        self._number -= 1
        sample = StagedSample(self._number, 0, self._indices[-self._number % len(self._indices)], now_ns, now_ns)
        sample.tries = 1
        warming.sample = sample
        warming.tries += 1
        self._warming[sample.seq] = warming
        self._dispatch(warming, warming.pair[0], now_ns)

    def _dispatch(self, warming: _Warming, member: Member, now_ns: int) -> None:
        warming.sample.member, warming.sample.dispatched_ns = member, now_ns
        if not self._send(member, warming.sample):
            self._unreachable.append(member)  # the caller drops it, and its pairs with it

    def _answered(self, seq: int, attempt_try: int, identity: bytes) -> _Warming | None:
        warming = self._warming.get(seq)
        if warming is None or warming.sample.tries != attempt_try:
            return None
        member = warming.sample.member
        return warming if member is not None and member.identity == identity else None

    def prefilled(self, seq: int, attempt_try: int, identity: bytes, handoff: bytes, now_ns: int) -> None:
        warming = self._answered(seq, attempt_try, identity)
        if warming is not None and warming.sample.stage != DECODE:
            warming.sample.stage, warming.sample.handoff = DECODE, handoff
            self._dispatch(warming, warming.pair[1], now_ns)

    def taken_over(self, seq: int, attempt_try: int, identity: bytes, now_ns: int) -> None:
        """The decode replica has its first token."""
        warming = self._answered(seq, attempt_try, identity)
        if warming is None or warming.sample.stage != DECODE:
            return
        pair, took_ns = warming.pair, now_ns - warming.begun_ns
        self._warm.add(pair)
        self._count += 1
        if self._slowest is None or took_ns > self._slowest[0]:
            self._slowest = took_ns, pair
        for member, other in (pair, pair[::-1]):
            if member in self._missing:
                self._missing[member].discard(other)
        self._over(warming, now_ns)
        self._take_ready(now_ns)

    def failed(self, seq: int, attempt_try: int, identity: bytes, reason: str, now_ns: int) -> None:
        warming = self._answered(seq, attempt_try, identity)
        if warming is None:
            return
        if warming.tries >= TRIES:
            self._give_up(warming, now_ns, f"failed {TRIES} times; the last one: {reason}")
        else:
            del self._warming[seq]
            self._again.append(warming)

    def _over(self, warming: _Warming, now_ns: int) -> None:
        del self._pairs_open[warming.pair]
        self._warming.pop(warming.sample.seq, None)
        if warming in self._again:
            self._again.remove(warming)
        self.done += 1
        warming.left[0] -= 1
        if not warming.left[0]:
            self._open -= 1
            self._open_more(now_ns)

    def _give_up(self, warming: _Warming, now_ns: int, what: str) -> None:
        prefill, decode = warming.pair
        later = self._later(warming.pair)
        if later not in self._barred and not self._held.intersection(warming.pair):  # who is on hold need not answer
            self._barred.add(later)
            self._nobody_waits_for(later)
            why = f"warm-up of {prefill.slot} (prefill) with {decode.slot} (decode) {what}"
            self._given_up.append(GivenUp(later, (now_ns - warming.begun_ns) / 1e9, why))
        self._over(warming, now_ns)
        self._take_ready(now_ns)

    def _later(self, pair: Pair) -> Member:
        """Who already takes samples came first; else the decode replica, which has to fetch, is the one that did not."""
        prefill, decode = pair
        return prefill if decode.accepting and not prefill.accepting else decode

    # --- ten times a second --------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> list[GivenUp]:
        """Begin when it is wanted, send refused ones again, give up what is overdue. Returns what was given up."""
        if self.wanted and not self._begun:
            self._begin(now_ns)
        again, self._again = self._again, []
        for warming in again:
            self._start(warming, now_ns)
        for warming in [one for one in self._pairs_open.values() if now_ns - one.begun_ns > self._deadline_ns]:
            stage = "decode" if warming.sample.stage == DECODE else "prefill"
            self._give_up(warming, now_ns, f"was not done within {self._deadline_ns / 1e9:g} s: no answer to its {stage}")
        self._take_ready(now_ns)
        given_up, self._given_up = self._given_up, []
        return given_up

    def news(self, now_ns: int) -> PairsWarmed | None:
        """Once after each series of warm-ups."""
        if not self._begun or self._busy:
            return None
        told: PairsWarmed | None = None
        if self._slowest is not None:
            took_ns, (prefill, decode) = self._slowest
            seconds = (now_ns - self._series_ns) / 1e9
            told = PairsWarmed(self._count, seconds, took_ns / 1e6, f"{prefill.slot} → {decode.slot}")
        self._series_ns, self._count, self._slowest = -1, 0, None
        self.settled = True
        return told


def _pair(member: Member, other: Member) -> Pair:
    return (member, other) if member.role == "prefill" else (other, member)


def _once_each(diagonal: list[Pair]) -> list[list[Pair]]:
    """Cut so that no replica is in a part twice."""
    parts: list[list[Pair]] = []
    busy: list[set[Member]] = []
    for pair in diagonal:
        for part, members in zip(parts, busy, strict=True):
            if not members.intersection(pair):
                part.append(pair)
                members.update(pair)
                break
        else:
            parts.append([pair])
            busy.append(set(pair))
    return parts


def _short_prompts(n_prompt: Sequence[int]) -> list[int]:
    """The shortest that fill a block or more; where all are shorter the longest there are."""
    order = sorted(range(len(n_prompt)), key=lambda index: n_prompt[index])
    enough = [index for index in order if n_prompt[index] >= PROMPT_TOKENS]
    return enough[:PROMPTS] or order[-PROMPTS:]
