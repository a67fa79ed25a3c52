"""Warm-up ends on evidence: equal rounds, or a stated failure to get there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.engines.base import EngineError, EngineStats, Key, Request
from harness.spec import WarmupSpec
from harness.worker.warmup import WarmUp, settled

SPEC = WarmupSpec(rounds=3, max_rounds=8, batch=4, input_tokens=5, output_tokens=3, tolerance=0.25)


class PacedEngine:
    """Answers at once; each round takes what `times` says on a clock that only it moves."""

    synthetic = True
    many_per_process = True

    def __init__(self, times_s: list[float]) -> None:
        self.now_s, self.times_s = 0.0, times_s
        self.requests: list[Request] = []
        self.answer: Callable[[Key], None] = lambda key: None

    async def start(self) -> None: ...

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        if len(self.requests) % SPEC.batch == 0:
            self.now_s += self.times_s[min(len(self.requests) // SPEC.batch - 1, len(self.times_s) - 1)]
        self.answer(request.key)

    def cancel(self, key: Key) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats()

    def versions(self) -> dict[str, str]:
        return {}

    def facts(self) -> dict[str, Any]:
        return {}

    async def stop(self) -> None: ...


def warm_up(engine: PacedEngine, deadline_s: float = 5.0) -> WarmUp:
    made = WarmUp(engine, SPEC, vocab_size=100, deadline_s=deadline_s, say=lambda _: None, clock=lambda: engine.now_s)
    engine.answer = made.done
    return made


def test_rounds_are_settled_when_the_last_ones_agree() -> None:
    assert not settled([1.0, 1.0], SPEC)
    assert not settled([1.0, 1.0, 1.3], SPEC)
    assert settled([9.0, 1.0, 1.1, 1.2], SPEC)
    assert settled([0.0001, 0.0009, 0.0004], SPEC)  # below what a clock and a loop can tell


async def test_a_replica_that_gets_faster_is_warm_when_it_no_longer_does() -> None:
    engine = PacedEngine([8.0, 4.0, 2.0, 1.0, 1.0, 1.0])
    assert await warm_up(engine).run() == "warm after 6 rounds, 1000.0 ms each"
    assert len({request.key for request in engine.requests}) == 6 * SPEC.batch
    assert {request.key.epoch for request in engine.requests} == {0}
    assert {len(request.prompt) for request in engine.requests} == {4 * SPEC.input_tokens}
    assert len({bytes(request.prompt) for request in engine.requests}) == 6 * SPEC.batch


async def test_a_replica_that_never_settles_is_used_with_a_note() -> None:
    engine = PacedEngine([1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0])
    assert (await warm_up(engine).run()).startswith("not settled after 8 warm-up rounds")


async def test_a_generation_that_fails_or_never_ends_ends_the_warm_up_with_its_reason() -> None:
    engine = PacedEngine([1.0])
    failing = warm_up(engine)
    engine.answer = lambda key: failing.failed(key, "out of memory")
    with pytest.raises(EngineError, match="out of memory"):
        await failing.run()
    engine = PacedEngine([1.0])
    silent = warm_up(engine, deadline_s=0.05)
    engine.answer = lambda key: None
    with pytest.raises(EngineError, match="4 of 4 generations not done"):
        await silent.run()
