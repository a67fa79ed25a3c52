"""What every engine of the registry must do, whatever generates its tokens.

A new engine adds its arguments to ARGS. Real event loop, real engine; only the listener is ours. An engine whose library is
not installed here has the same tests where it is: vllm in tests/vllm/test_vllm_engine.py.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest
from listening import Listener

from harness.engines import registry
from harness.engines.base import Engine, EngineContext, EngineStats, Key, Request
from harness.spec import RunSpec

PYTHON_PATH = {"PYTHONPATH": str(Path(__file__).parents[2])}  # for the small server that openai starts
ARGS: dict[str, dict[str, object]] = {
    "openai": {"command": [sys.executable, str(Path(__file__).with_name("openai_kit.py")), "{port}"], "env": PYTHON_PATH},
    "synthetic": {"preset": "demo", "speed": 50, "load_s": 0.01},
}
MAX_TOKENS = 40
PROMPT = b"\x05\x00\x00\x00" * 24


def spec_of(name: str) -> RunSpec:
    fleet = {"nodes": 1, "replicas_per_node": 2, "engine": name, "engine_args": ARGS[name]}
    return RunSpec.model_validate({"fleet": fleet})


def make(name: str, listener: Listener) -> Engine:
    spec = spec_of(name)
    context = EngineContext(spec, "node000/gpu0", node=0, gpu=0, ordinal=0, incarnation="i0", life=0, args=spec.fleet.engine_args)
    return registry.factory(name)(context, listener)


def request(seq: int, max_tokens: int = MAX_TOKENS) -> Request:
    return Request(Key(1, seq, 0), PROMPT, max_tokens=max_tokens, index=seq)


def add(total: EngineStats, part: EngineStats) -> None:
    total.tokens_out += part.tokens_out
    total.steps += part.steps


ELSEWHERE = {"vllm"}
every_engine = pytest.mark.parametrize("name", sorted(ARGS))


def test_every_engine_is_tested_here_or_where_its_library_is() -> None:
    assert set(registry.names()) == set(ARGS) | ELSEWHERE


@every_engine
async def test_first_comes_before_complete_once_each_and_is_its_first_token(name: str) -> None:
    listener = Listener()
    engine = make(name, listener)
    await engine.start()
    for seq in range(12):
        engine.submit(request(seq))
    await listener.until_complete(12)
    await engine.stop()

    assert Counter(what for what, _ in listener.order) == {"first": 12, "complete": 12}
    for seq in range(12):
        key = Key(1, seq, 0)
        assert listener.order.index(("first", key)) < listener.order.index(("complete", key))
        tokens = listener.completes[key]
        assert len(tokens) % 4 == 0
        assert 2 <= len(tokens) // 4 <= MAX_TOKENS
        assert listener.firsts[key] == tokens[:4]
    assert not listener.failures
    assert not listener.deaths


@every_engine
async def test_stats_add_up_to_the_tokens_delivered_and_gauges_return_to_zero(name: str) -> None:
    listener = Listener()
    engine = make(name, listener)
    await engine.start()
    total = EngineStats()
    for seq in range(10):
        engine.submit(request(seq))
        await asyncio.sleep(0.005)
        add(total, engine.stats())
    await listener.until_complete(10)
    last = engine.stats()
    add(total, last)
    await engine.stop()

    assert total.tokens_out == sum(len(tokens) // 4 for tokens in listener.completes.values())
    assert total.steps > 0
    assert (last.running, last.waiting, last.outstanding, last.kv_use) == (0, 0, 0, 0.0)


@every_engine
async def test_outstanding_counts_what_was_submitted_and_not_answered(name: str) -> None:
    listener = Listener()
    engine = make(name, listener)
    await engine.start()
    for seq in range(6):
        engine.submit(request(seq))
    assert engine.stats().outstanding == 6
    engine.cancel(Key(1, 3, 0))
    assert engine.stats().outstanding == 5
    await engine.stop()


@every_engine
async def test_a_cancelled_request_says_nothing_more(name: str) -> None:
    listener = Listener()
    engine = make(name, listener)
    await engine.start()
    for seq in range(6):
        engine.submit(request(seq))
    engine.cancel(Key(1, 0, 0))  # before its first token
    while Key(1, 1, 0) not in listener.firsts:
        listener.changed.clear()
        await asyncio.wait_for(listener.changed.wait(), 60)
    if Key(1, 1, 0) not in listener.completes:
        engine.cancel(Key(1, 1, 0))  # after it
    heard = len([key for _, key in listener.order if key.seq == 1])
    await listener.until_complete(4)
    engine.cancel(Key(1, 2, 0))  # long complete: no matter
    await asyncio.sleep(0.1)
    await engine.stop()

    assert not [key for _, key in listener.order if key.seq == 0]
    assert len([key for _, key in listener.order if key.seq == 1]) == heard


@every_engine
async def test_a_retry_of_the_same_sample_gets_the_same_tokens_under_its_own_key(name: str) -> None:
    listener = Listener()
    engine = make(name, listener)
    await engine.start()
    engine.submit(Request(Key(1, 0, 0), PROMPT, MAX_TOKENS, index=7))
    engine.submit(Request(Key(1, 0, 1), PROMPT, MAX_TOKENS, index=7))
    await listener.until_complete(2)
    await engine.stop()
    assert listener.completes[Key(1, 0, 0)] == listener.completes[Key(1, 0, 1)]


@every_engine
async def test_stop_leaves_nothing_pending(name: str) -> None:
    listener = Listener()
    engine = make(name, listener)
    before = asyncio.all_tasks()
    await engine.start()
    for seq in range(8):
        engine.submit(request(seq))
    await engine.stop()
    heard = len(listener.order)
    assert engine.stats().outstanding == 0
    await asyncio.sleep(0.1)
    assert len(listener.order) == heard
    assert asyncio.all_tasks() == before


@every_engine
async def test_versions_and_facts_name_the_engine(name: str) -> None:
    engine = make(name, Listener())
    assert engine.versions()["engine"] == name
    assert engine.facts()["engine"] == name
    assert engine.facts()["synthetic"] == engine.synthetic
