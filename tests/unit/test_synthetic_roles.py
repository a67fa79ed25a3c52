"""Synthetic replicas that split prefill from decode: what each says, what a wrong handoff gets, and what a split is worth."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from clock_kit import Clock

from harness.engines import registry
from harness.engines.base import EngineContext, EngineError, Key, Request
from harness.engines.synthetic.engine import SyntheticEngine
from harness.engines.synthetic.fleet import FleetResult, Load
from harness.engines.synthetic.model import PRESETS
from harness.engines.synthetic.pairs import SplitFleet
from harness.spec import LengthSpec, Role, RunSpec
from harness.wire.data import DECODE, PREFILL, WHOLE

PROMPT = b"\x05\x00\x00\x00" * 1000


class Listener:
    """Keeps what an engine says, with its durations."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Key, Any]] = []
        self._spoke = asyncio.Event()

    def first(self, key: Key, token: bytes, queue_us: int, prefill_us: int) -> None:
        self._say("first", key, (token, queue_us, prefill_us))

    def complete(self, key: Key, tokens: bytes, queue_us: int, prefill_us: int, decode_us: int) -> None:
        self._say("complete", key, (tokens, queue_us, prefill_us, decode_us))

    def prefilled(self, key: Key, handoff: bytes, queue_us: int, prefill_us: int) -> None:
        self._say("prefilled", key, (handoff, queue_us, prefill_us))

    def failed(self, key: Key, reason: str) -> None:
        self._say("failed", key, reason)

    def loading(self, note: str) -> None:
        pass

    def died(self, reason: str) -> None:
        raise AssertionError(reason)

    def _say(self, what: str, key: Key, payload: Any) -> None:
        self.said.append((what, key, payload))
        self._spoke.set()

    async def hear(self, what: str, deadline_s: float = 60.0) -> Any:
        async with asyncio.timeout(deadline_s):
            while not (found := [payload for said, _, payload in self.said if said == what]):
                self._spoke.clear()
                await self._spoke.wait()
        return found[-1]


def spec_with(**args: Any) -> RunSpec:
    fleet = {"nodes": 1, "replicas_per_node": 2, "roles": "1P1D", "engine_args": {"load_s": 0.0, "jitter": 0.0, **args}}
    return RunSpec.model_validate({"fleet": fleet})


async def started(listener: Listener, role: Role, **args: Any) -> SyntheticEngine:
    spec, gpu = spec_with(**args), int(role == "decode")
    engine = SyntheticEngine(
        EngineContext(spec, f"node000/gpu{gpu}", 0, gpu, gpu, "i0", 0, role, spec.fleet.engine_args), listener
    )
    await engine.start()
    return engine


def query(stage: int, handoff: bytes = b"", prompt: bytes = PROMPT, seq: int = 0) -> Request:
    return Request(Key(1, seq, 0), prompt, max_tokens=6, index=7, stage=stage, handoff=handoff)


async def a_handoff(prompt: bytes = PROMPT) -> bytes:
    listener = Listener()
    engine = await started(listener, "prefill", speed=100)
    engine.submit(query(PREFILL, prompt=prompt))
    handoff, _, _ = await listener.hear("prefilled")
    await engine.stop()
    assert isinstance(handoff, bytes)
    return handoff


async def test_prefill_and_decode_of_two_replicas_give_the_tokens_of_one_that_does_both() -> None:
    whole, prefill, decode = Listener(), Listener(), Listener()
    one = await started(whole, "prefill")
    one.submit(query(WHOLE))
    first_of_one, tokens_of_one = (await whole.hear("first"))[0], (await whole.hear("complete"))[0]

    p = await started(prefill, "prefill", c0_ms=20, cp_us=30)
    p.submit(query(PREFILL))
    handoff, queue_us, prefill_us = await prefill.hear("prefilled")
    assert queue_us == 0
    assert prefill_us == pytest.approx(20_000 + 30 * 1000, abs=2)
    stats = p.stats()
    assert (stats.outstanding, stats.running, stats.kv_use, stats.tokens_out, stats.steps) == (0, 0, 0.0, 0, 1)
    assert stats.prefill_tokens == 1000

    d = await started(decode, "decode", kv_transfer_ms=30, kv_transfer_us_per_token=20)
    d.submit(query(DECODE, handoff))
    token, queue_us, transfer_us = await decode.hear("first")
    tokens, _, transfer_again_us, decode_us = await decode.hear("complete")
    assert (queue_us, transfer_us, transfer_again_us) == (0, pytest.approx(50_000, abs=2), transfer_us)
    assert decode_us > 0
    assert token == first_of_one == tokens[:4]
    assert tokens == tokens_of_one
    assert [what for what, _, _ in prefill.said] == ["prefilled"]
    assert [what for what, _, _ in decode.said] == ["first", "complete"]
    for engine in (one, p, d):
        await engine.stop()


async def test_a_replica_of_any_role_does_whole_samples_too_as_its_warm_up_does() -> None:
    roles: tuple[Role, ...] = ("prefill", "decode")
    for role in roles:
        listener = Listener()
        engine = await started(listener, role, speed=100)
        engine.submit(query(WHOLE))
        await listener.hear("complete")
        await engine.stop()


async def test_a_wrong_handoff_is_refused_in_words_and_an_honest_one_still_works() -> None:
    listener = Listener()
    engine = await started(listener, "decode", speed=100)
    good = await a_handoff()
    wrong = {
        b"": "empty handoff",
        b"\xff\x00": "not one of the synthetic engine",
        b"{}": "not one of the synthetic engine",
        good.replace(b"synthetic", b"vllm"): "of engine 'vllm', this replica's is 'synthetic'",
        await a_handoff(PROMPT[:-4]): "for a prompt of 999 tokens, the query's has 1000",
    }
    for seq, (handoff, reason) in enumerate(wrong.items(), 1):
        engine.submit(query(DECODE, handoff, seq=seq))
        assert reason in await listener.hear("failed")
    assert engine.stats().outstanding == 0
    engine.submit(query(DECODE, good))
    await listener.hear("complete")
    await engine.stop()


async def test_a_request_cancelled_during_its_transfer_says_nothing_and_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, clock = Listener(), Clock(monkeypatch)
    engine = await started(listener, "decode", kv_transfer_ms=60_000)
    engine.submit(query(DECODE, await a_handoff()))
    await asyncio.sleep(0.02)
    assert engine.stats().running == 1
    engine.cancel(Key(1, 0, 0))
    assert (engine.stats().outstanding, engine.stats().running, engine.stats().kv_use) == (0, 0, 0.0)
    clock.passes(600)
    await asyncio.sleep(0.2)
    assert listener.said == []
    await engine.stop()


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ({"kv_transfer_ms": -1}, "fleet.engine_args.kv_transfer_ms = -1: must be at least 0"),
        ({"kv_transfer_us_per_token": "fast"}, "fleet.engine_args.kv_transfer_us_per_token = 'fast': must be a number"),
        ({"kv_transfer_us_per_tok": 1}, 'did you mean "kv_transfer_us_per_token"'),
    ],
)
def test_arguments_of_the_transfer_are_checked_like_the_others(args: dict[str, Any], error: str) -> None:
    with pytest.raises(EngineError) as caught:
        registry.check_args(spec_with(**args))
    assert error in str(caught.value)


async def test_arguments_of_the_transfer_have_defaults_by_preset_are_told_and_tell_replicas_apart() -> None:
    engine = await started(Listener(), "decode", preset="mi355x/gpt-oss-120b")
    told = engine.facts()
    assert told["arg.kv_transfer_ms"] == 2
    assert told["arg.kv_transfer_us_per_token"] == pytest.approx(36_900 / 50e9 * 1e6)
    await engine.stop()
    hashes = {registry.args_hash(spec_with(**args)) for args in ({}, {"kv_transfer_ms": 3}, {"kv_transfer_us_per_token": 9})}
    assert len(hashes) == 3


# --- a fleet in virtual time ---------------------------------------------------------------------------------------------


def split(prefill: int, decode: int, rate_qps: float, **lengths: float) -> FleetResult:
    """Nine `demo` replicas; prompts of 4,000 and outputs of 200 tokens, so that either side can be what is scarce."""
    load = Load(
        rate_qps,
        LengthSpec(mean=lengths.get("prompt", 4000), sigma=0.3, min=16, max=8000),
        LengthSpec(mean=lengths.get("output", 200), sigma=0.5, min=2, max=1000),
        warmup_s=20,
        measure_s=60,
    )
    return SplitFleet(PRESETS["demo"], load, prefill, decode, link=(0.002, 0.8e-6), seed=3).run()


def test_more_prefill_replicas_lower_ttft_and_more_decode_replicas_lower_tpot_at_the_same_load() -> None:
    more_prefill, more_decode = split(5, 4, 30), split(4, 5, 30)
    assert np.median(more_prefill.ttft_s) < 0.95 * np.median(more_decode.ttft_s)
    assert more_prefill.ttft_p99_s() < 0.85 * more_decode.ttft_p99_s()
    assert np.median(more_decode.tpot_s) < 0.9 * np.median(more_prefill.tpot_s)
    assert more_decode.tpot_p99_ms() < 0.9 * more_prefill.tpot_p99_ms()
    assert more_decode.batch < more_prefill.batch


def test_where_decode_is_scarce_more_decode_replicas_give_more_tokens_and_where_prefill_is_more_prefill_replicas() -> None:
    assert split(4, 5, 60).tokens_per_s * 5 > 1.05 * split(5, 4, 60).tokens_per_s * 4
    long_prompts = {"prompt": 6000, "output": 50}
    assert split(5, 4, 60, **long_prompts).tokens_per_s * 4 > 1.15 * split(4, 5, 60, **long_prompts).tokens_per_s * 5
