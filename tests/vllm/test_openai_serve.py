"""The openai engine against a real `vllm serve` of the tiny model, which it starts itself with `command`.

One server for the whole module: its start is most of the time. The last test kills its engine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from descendants import descendants
from environment import HERMETIC

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # openai_kit: what hears an engine

from openai_kit import Listener, engine_of, request, soon

from harness.engines.base import Engine, EngineStats, Key
from harness.engines.openai.scrape import read_page
from harness.wire.data import PREFILL

LAUNCHER = Path(__file__).with_name("serve_vllm.py")
SERVE = [
    *(sys.executable, str(LAUNCHER), "serve", "{model}", "--served-model-name", "{served_model}"),
    *("--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16", "--max-model-len", "4096", "--enforce-eager"),
    *("--max-num-seqs", "16", "--max-num-batched-tokens", "4096", "--no-enable-prefix-caching"),
    *("--kv-cache-memory-bytes", str(64 * 2**20), "--disable-uvicorn-access-log"),
]
ENV = {**HERMETIC, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
STARTS_WITHIN_S = 280.0

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]


def prompt(seed: int, length: int = 40) -> bytes:
    return np.random.default_rng(seed).integers(10, 250, length, dtype="<i4").tobytes()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tiny_llama: Path) -> AsyncIterator[tuple[Engine, Listener]]:
    listener = Listener()
    args: dict[str, Any] = {"command": SERVE, "env": ENV, "start_s": STARTS_WITHIN_S, "scrape_s": 0.2}
    engine = engine_of(args, listener, model={"name": "tiny", "path": str(tiny_llama)}, sampling={"min_tokens": 2})
    await engine.start()
    try:
        yield engine, listener
    finally:
        await engine.stop()


def url_of(engine: Engine) -> str:
    return str(engine.facts()["base_url"])


async def asked_directly(url: str, ids: bytes, max_tokens: int) -> list[int]:
    """Greedy, not streamed, by nobody's client but aiohttp."""
    body = {
        "model": "tiny",
        "prompt": np.frombuffer(ids, "<i4").tolist(),
        "max_tokens": max_tokens,
        "min_tokens": 2,
        "temperature": 0.0,
        "return_token_ids": True,
    }
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
    ids_given: list[int] = answer["choices"][0]["token_ids"]
    assert len(ids_given) == answer["usage"]["completion_tokens"]
    return ids_given


async def test_complete_carries_the_very_ids_that_the_server_generates(served: tuple[Engine, Listener]) -> None:
    engine, listener = served
    for seq in range(6):
        engine.submit(request(seq, 24, prompt=prompt(seq)))
    await listener.ends(6, deadline_s=60)
    assert not listener.failures
    for seq in range(6):
        tokens = listener.completes[Key(1, seq, 1)]
        assert listener.firsts[Key(1, seq, 1)] == tokens[:4]
        assert np.frombuffer(tokens, "<i4").tolist() == await asked_directly(url_of(engine), prompt(seq), 24)


async def test_warm_up_requests_are_as_long_as_asked_whatever_the_model_says(served: tuple[Engine, Listener]) -> None:
    engine, listener = served
    engine.submit(request(100, 37, epoch=0, prompt=prompt(1)))
    await listener.until(lambda: Key(0, 100, 1) in listener.completes, deadline_s=60)
    assert len(listener.completes[Key(0, 100, 1)]) == 4 * 37


async def test_the_servers_metrics_add_up_to_the_tokens_delivered(served: tuple[Engine, Listener]) -> None:
    engine, listener = served
    await soon(lambda: engine.stats().outstanding == 0, within_s=60)
    counted = await counted_by(url_of(engine))
    await soon(lambda: engine._scraped._latest.of("tokens_out") >= counted, within_s=60)  # what was before has been read
    engine.stats()
    total = EngineStats()
    running = 0
    wanted: list[Key] = []
    deadline_s = time.monotonic() + 120
    while running <= 2 and time.monotonic() < deadline_s:  # a fast machine is done between two readings of the page
        wave = [Key(1, 200 + len(wanted) + n, 1) for n in range(16)]
        wanted += wave
        for key in wave:
            engine.submit(request(key.seq, 48, prompt=prompt(key.seq)))
        while not all(key in listener.completes for key in wave) and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)
            running = max(running, _add(total, engine))
    tokens = sum(len(listener.completes[key]) // 4 for key in wanted)
    while (
        total.tokens_out < tokens and time.monotonic() < deadline_s
    ):  # told by the next reading, which is late on a busy machine
        await asyncio.sleep(0.1)
        _add(total, engine)
    await asyncio.sleep(0.6)
    _add(total, engine)  # and no token twice
    assert total.tokens_out == tokens
    assert 0 < total.steps <= tokens
    assert 2 < running <= 16
    assert total.step_ms > 0
    await soon(lambda: _at_rest(engine.stats()), within_s=60)


def _at_rest(last: EngineStats) -> bool:
    return (last.running, last.waiting, last.outstanding) == (0, 0, 0)


async def counted_by(url: str) -> float:
    """Generated tokens, by the server's own page."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        page = read_page(await response.read())
    assert page is not None
    return page.of("tokens_out")


def _add(total: EngineStats, engine: Engine) -> int:
    part = engine.stats()
    total.tokens_out += part.tokens_out
    total.steps += part.steps
    total.step_ms = max(total.step_ms, part.step_ms)
    return part.running


async def test_a_cancelled_request_is_aborted_in_the_server(served: tuple[Engine, Listener]) -> None:
    engine, listener = served
    key = Key(0, 300, 1)  # of epoch 0: goes on to its length
    engine.submit(request(300, 4000, epoch=0, prompt=prompt(3)))
    await listener.until(lambda: key in listener.firsts, deadline_s=60)
    engine.cancel(key)
    await soon(lambda: engine.stats().running == 0, within_s=60)
    assert key not in listener.completes


async def test_a_request_that_does_not_fit_fails_with_the_servers_words(served: tuple[Engine, Listener]) -> None:
    engine, listener = served
    engine.submit(request(400, 8, prompt=prompt(4, 5000)))
    await listener.until(lambda: Key(1, 400, 1) in listener.failures, deadline_s=60)
    assert listener.failures[Key(1, 400, 1)].startswith("HTTP 400 ")
    assert "maximum" in listener.failures[Key(1, 400, 1)]


async def test_chat_answers_carry_ids_too(served: tuple[Engine, Listener], tiny_llama: Path) -> None:
    listener = Listener()
    args = {"base_urls": [url_of(served[0])], "endpoint": "chat", "tokenizer": str(tiny_llama), "metrics_path": ""}
    chat = engine_of(args, listener, model={"name": "tiny"}, sampling={"min_tokens": 2})
    await chat.start()
    try:
        chat.submit(request(0, 20, prompt=prompt(7)))
        await listener.ends(1, deadline_s=60)
    finally:
        await chat.stop()
    assert not listener.failures
    assert 2 <= len(listener.completes[Key(1, 0, 1)]) // 4 <= 20
    assert not listener.deaths


async def test_a_prefill_without_a_kv_connector_says_what_is_missing(served: tuple[Engine, Listener]) -> None:
    engine, listener = served
    engine.submit(request(600, prompt=prompt(6), stage=PREFILL))
    await listener.until(lambda: Key(1, 600, 1) in listener.failures, deadline_s=60)
    assert "--kv-transfer-config" in listener.failures[Key(1, 600, 1)]


async def test_versions_name_the_server_and_facts_the_arguments(served: tuple[Engine, Listener]) -> None:
    engine, _ = served
    assert engine.versions()["vllm"][0].isdigit()
    assert engine.facts()["statistics"] == "the server's metrics"
    assert engine.facts()["arg.token_ids"] == "server"


async def test_a_killed_engine_core_ends_the_replica_at_once_and_leaves_nothing(served: tuple[Engine, Listener]) -> None:
    engine, listener = served
    core = next(pid for pid, title in descendants().items() if title.startswith("VLLM::EngineCore"))
    engine.submit(request(500, 4000, epoch=0, prompt=prompt(5)))
    await listener.until(lambda: Key(0, 500, 1) in listener.firsts, deadline_s=60)
    began_s = time.monotonic()
    os.kill(core, signal.SIGKILL)
    await listener.until(lambda: listener.deaths, deadline_s=60)
    print(f"death told after {time.monotonic() - began_s:.2f} s: {listener.deaths[0]}")
    assert Key(0, 500, 1) not in listener.completes
    assert engine.stats().outstanding == 0
    await engine.stop()
    await soon(lambda: not [title for title in descendants().values() if title.startswith("VLLM::")], within_s=30)
