"""Warm-up that ends on evidence: rounds of generations until the last few took equally long.

A replica that has compiled its kernels and filled its caches repeats a round in the same time; one that has not gets
faster from round to round. No sleep decides anything. The prompts differ from round to round, so that a prefix cache does
not pass for warmth. A replica that never settles is used all the same after `max_rounds`, and says so.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from harness.engines.base import Engine, EngineError, Key, Request
from harness.spec import WarmupSpec
from harness.wire.data import WHOLE

#: Differences below this are the clock and the loop, not the engine.
NOISE_S = 0.002


def settled(rounds_s: Sequence[float], spec: WarmupSpec) -> bool:
    if len(rounds_s) < spec.rounds:
        return False
    last = rounds_s[-spec.rounds :]
    return max(last) - min(last) <= max(spec.tolerance * statistics.median(last), NOISE_S)


class WarmUp:
    """Drives one engine; `done` and `failed` are called for the requests of epoch 0."""

    def __init__(
        self,
        engine: Engine,
        spec: WarmupSpec,
        *,
        vocab_size: int,
        deadline_s: float,
        say: Callable[[str], None],
        stage: int = WHOLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._spec, self._vocab_size = engine, spec, vocab_size
        self._deadline_s, self._say, self._stage, self._clock = deadline_s, say, stage, clock
        self._open: set[Key] = set()
        self._round: asyncio.Future[None] | None = None

    async def run(self) -> str:
        """Returns a note about the outcome. EngineError when the engine fails a generation or stands still."""
        rounds_s: list[float] = []
        for number in range(self._spec.max_rounds):
            self._say(f"warm-up round {number + 1} of {self._spec.rounds} to {self._spec.max_rounds}")
            rounds_s.append(await self._one_round(number))
            if settled(rounds_s, self._spec):
                return f"warm after {len(rounds_s)} rounds, {statistics.median(rounds_s[-self._spec.rounds :]) * 1e3:.1f} ms each"
        last = rounds_s[-self._spec.rounds :]
        return f"not settled after {len(rounds_s)} warm-up rounds ({min(last) * 1e3:.1f} to {max(last) * 1e3:.1f} ms)"

    async def _one_round(self, number: int) -> float:
        spec = self._spec
        tokens = np.random.default_rng(number).integers(0, self._vocab_size, (spec.batch, spec.input_tokens), dtype="<i4")
        self._round = asyncio.get_running_loop().create_future()
        keys = [Key(0, number * spec.batch + position, 1) for position in range(spec.batch)]
        self._open = set(keys)
        begun_s = self._clock()
        for key, prompt in zip(keys, tokens, strict=True):
            self._engine.submit(Request(key, prompt.tobytes(), spec.output_tokens, spec.output_tokens, stage=self._stage))
        try:
            await asyncio.wait_for(self._round, self._deadline_s)
        except TimeoutError:
            raise EngineError(
                f"warm-up round {number + 1}: {len(self._open)} of {spec.batch} generations not done in {self._deadline_s:g} s"
            ) from None
        return self._clock() - begun_s

    def done(self, key: Key) -> None:
        self._open.discard(key)
        if not self._open and self._round is not None and not self._round.done():
            self._round.set_result(None)

    def failed(self, key: Key, reason: str) -> None:
        if key in self._open and self._round is not None and not self._round.done():
            self._round.set_exception(EngineError(f"warm-up generation failed: {reason}"))
