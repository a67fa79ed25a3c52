"""The openai engine with a server that behaves: what every engine promises, and what this one does beyond."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai_kit import DONE, PROMPT, Asked, Listener, engine_of, event, ids_of, request, running, serving, soon, token, usage
from tokenizers import Tokenizer, models, pre_tokenizers

from harness.engines.base import ArgumentError, EngineError, EngineStats, Key, Request
from harness.engines.openai.client import PAGE_BYTES
from harness.wire.data import DECODE, PREFILL

KEY = Key(1, 0, 1)


def packed(*ids: int) -> bytes:
    return b"".join(one.to_bytes(4, "little") for one in ids)


# --- what tests/unit/test_engine_contract.py asks of every engine -------------------------------------------------------


async def test_first_comes_before_complete_once_each_and_is_its_first_token() -> None:
    async with serving() as fake, running({"base_urls": [fake.url]}) as (engine, listener):
        for seq in range(12):
            engine.submit(request(seq, 40))
        await listener.ends(12)
        assert Counter(what for what, _ in listener.order) == {"first": 12, "complete": 12}
        expected = packed(*ids_of(5 * 24, 40))
        for seq in range(12):
            key = Key(1, seq, 1)
            assert listener.order.index(("first", key)) < listener.order.index(("complete", key))
            assert listener.completes[key] == expected
            assert listener.firsts[key] == expected[:4]
        assert not listener.deaths


async def test_own_statistics_add_up_and_gauges_return_to_zero() -> None:
    async with serving() as fake, running({"base_urls": [fake.url]}) as (engine, listener):
        total = EngineStats()
        for seq in range(10):
            engine.submit(request(seq, 40))
            await asyncio.sleep(0.005)
            part = engine.stats()
            total.tokens_out += part.tokens_out
            total.steps += part.steps
        await listener.ends(10)
        last = engine.stats()
        assert total.tokens_out + last.tokens_out == 400
        assert total.steps + last.steps > 0
        assert 0 < last.step_ms < 1000
        assert (last.running, last.waiting, last.outstanding, last.kv_use) == (0, 0, 0, 0.0)
        assert engine.facts()["statistics"] == "own counts, steps estimated"


async def test_a_cancelled_request_closes_its_connection_and_says_nothing_more() -> None:
    async with serving() as fake, running({"base_urls": [fake.url]}) as (engine, listener):
        for seq in range(3):
            engine.submit(request(seq, 2000))
        engine.submit(request(3, 8))
        assert engine.stats().outstanding == 4
        engine.cancel(Key(1, 0, 1))  # before its first token
        assert engine.stats().outstanding == 3
        await listener.until(lambda: Key(1, 1, 1) in listener.firsts)
        engine.cancel(Key(1, 1, 1))  # after it
        await listener.ends(1)
        engine.cancel(Key(1, 3, 1))  # long complete: no matter
        await soon(lambda: fake.open_posts == 1)
        heard = [key.seq for _, key in listener.order]
        assert 0 not in heard
        assert heard.count(1) == 1
        assert engine.stats().outstanding == 1


async def test_a_retry_of_the_same_sample_gets_its_answer_under_its_own_key() -> None:
    async with serving() as fake, running({"base_urls": [fake.url]}) as (engine, listener):
        for attempt_try in (1, 2, 2):
            engine.submit(Request(Key(1, 0, attempt_try), PROMPT, 8, index=7))
        await listener.ends(2)
        assert listener.completes[Key(1, 0, 1)] == listener.completes[Key(1, 0, 2)]
        assert len(fake.posts) == 2


async def test_stop_leaves_nothing_pending() -> None:
    async with serving() as fake:
        listener = Listener()
        engine = engine_of({"base_urls": [fake.url]}, listener)
        before = asyncio.all_tasks()
        await engine.start()
        for seq in range(8):
            engine.submit(request(seq, 2000))
        await listener.until(lambda: listener.firsts)
        await engine.stop()
        heard = len(listener.order)
        assert engine.stats().outstanding == 0
        await soon(lambda: fake.open_posts == 0)
        assert len(listener.order) == heard
        ours = {task for task in asyncio.all_tasks() - before if "openai_kit" not in str(task.get_coro())}
        assert not {task for task in ours if "harness" in str(task.get_coro())}
        engine.submit(request(9))
        assert listener.failures == {Key(1, 9, 1): "the engine was stopped"}
        assert engine.stats().failed == 1


async def test_a_connection_is_used_again() -> None:
    async with serving() as fake, running({"base_urls": [fake.url]}) as (engine, listener):
        for seq in range(5):
            engine.submit(request(seq))
            await listener.ends(seq + 1)
        assert len({id(asked.writer) for asked in fake.posts}) == 1


# --- what is asked ----------------------------------------------------------------------------------------------------


async def body_of(asked: Request, args: dict[str, Any] | None = None, **tables: Any) -> dict[str, Any]:
    async with serving(models=["m"]) as fake:
        given = {"base_urls": [fake.url], "served_model": "m", **(args or {})}
        async with running(given, **tables) as (engine, listener):
            engine.submit(asked)
            await listener.ends(1)
            return fake.posts[0].body


async def test_the_sampling_of_the_spec_is_said_in_full() -> None:
    sampling = {"temperature": 1.0, "top_p": 0.9, "min_tokens": 20, "seed": 7, "stop_token_ids": [3]}
    assert await body_of(request(0, 10), sampling=sampling) == {
        "model": "m",
        "prompt": [5] * 24,
        "max_tokens": 10,
        "min_tokens": 10,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 7,
        "stop_token_ids": [3],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


async def test_every_sample_has_a_seed_of_its_own_which_its_tries_share() -> None:
    sampling = {"temperature": 1.0, "seed": 7}
    tries = [request(3, attempt_try=1), request(3, attempt_try=2), request(4)]
    assert [(await body_of(one, sampling=sampling))["seed"] for one in tries] == [10, 10, 11]
    assert "seed" not in await body_of(request(3))


async def test_warm_up_is_of_fixed_length_and_other_requests_are_not() -> None:
    warm = await body_of(request(0, 10, epoch=0))
    assert (warm["min_tokens"], warm["max_tokens"], warm["ignore_eos"]) == (10, 10, True)
    assert not {"min_tokens", "ignore_eos"} & (await body_of(request(0, 10))).keys()


async def test_a_plain_openai_server_is_asked_nothing_beyond_the_api() -> None:
    body = await body_of(request(0, 10, epoch=0), {"server": "openai", "token_ids": "count"})
    assert body.keys() == {"model", "prompt", "max_tokens", "temperature", "top_p", "stream", "stream_options"}


async def test_headers_key_and_session_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "secret-7")
    async with serving() as fake:
        args = {
            "base_urls": [f"{fake.url}/v1"],
            "api_key_env": "TEST_KEY",
            "headers": {"X-Team": "a"},
            "session_header": "X-Session",
        }
        async with running(args) as (engine, listener):
            engine.submit(request(41))
            await listener.ends(1)
            headers = fake.posts[0].headers
            assert (headers["authorization"], headers["x-team"], headers["x-session"]) == ("Bearer secret-7", "a", "41")
            assert "secret-7" not in str(engine.facts()) + str(engine.versions())


async def test_an_api_key_that_is_not_set_is_told_at_the_start() -> None:
    with pytest.raises(EngineError, match="api_key_env = 'NOT_SET_HERE': this variable is not set"):
        async with running({"base_urls": ["http://127.0.0.1:9"], "api_key_env": "NOT_SET_HERE"}):
            pass


# --- ids from servers that give none ------------------------------------------------------------------------------------


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """A tokenizer with a token a letter; its ids are their codes."""
    tokenizer = Tokenizer(models.WordLevel({chr(code): code for code in range(256)}, unk_token="\0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


async def texts(asked: Asked) -> None:
    await asked.begin()
    key = "text" if asked.path == "/v1/completions" else "delta"
    for text in ("", "he", "llo"):
        await asked.send(event({"choices": [{"index": 0, key: text if key == "text" else {"content": text}}]}))
    await asked.send(usage(2) + DONE)
    await asked.finish()


async def test_a_text_answer_is_tokenised_here(letters: Path) -> None:
    args = {"server": "sglang", "tokenizer": str(letters), "metrics_path": ""}
    async with serving(texts) as fake, running({**args, "base_urls": [fake.url]}) as (engine, listener):
        engine.submit(request(0))
        await listener.ends(1)
        assert listener.completes[KEY] == packed(*b"hello")
        assert listener.firsts[KEY] == packed(*b"h")
        assert engine.versions()["token_ids"] == "answers tokenised again"
        assert fake.posts[0].body["top_k"] == -1


async def test_counted_tokens_are_zeros_and_said_to_be_no_ids() -> None:
    args = {"server": "openai", "token_ids": "count"}
    async with serving(texts) as fake, running({**args, "base_urls": [fake.url]}) as (engine, listener):
        engine.submit(request(0))
        await listener.ends(1)
        assert listener.completes[KEY] == bytes(8)
        assert listener.firsts[KEY] == bytes(4)
        assert engine.versions()["token_ids"] == "counted only"
        assert engine.facts()["token_ids_are_real"] is False


async def test_chat_takes_the_prompt_as_text(letters: Path) -> None:
    args = {"server": "sglang", "endpoint": "chat", "tokenizer": str(letters), "metrics_path": ""}
    prompt = packed(*b"abc")
    async with serving(texts) as fake, running({**args, "base_urls": [fake.url]}) as (engine, listener):
        engine.submit(request(0, prompt=prompt))
        await listener.ends(1)
        assert fake.posts[0].path == "/v1/chat/completions"
        assert fake.posts[0].body["messages"][0]["content"].replace(" ", "") == "abc"
        assert listener.completes[KEY] == packed(*b"hello")


# --- prefill and decode -------------------------------------------------------------------------------------------------

SPLIT = {"fleet": {"replicas_per_node": 2, "roles": ["prefill", "decode"]}}


async def test_a_prefill_hands_over_what_its_server_gives_and_decode_passes_it_on() -> None:
    params = {"do_remote_prefill": True, "remote_engine_id": "e1", "remote_block_ids": [1, 2]}

    async def behave(asked: Asked) -> None:
        if not asked.body.get("stream"):
            await asked.status(200, json.dumps({"choices": [{"text": "a"}], "kv_transfer_params": params}))
            return
        await asked.begin()
        await asked.send(token(11, 12, finish="length") + usage(2) + DONE)
        await asked.finish()

    async with serving(behave) as fake, running({"base_urls": [fake.url], "shared": True}, **SPLIT) as (engine, listener):
        engine.submit(request(0, stage=PREFILL))
        await listener.ends(1)
        handoff = listener.prefilleds[KEY]
        assert json.loads(handoff) == params
        engine.submit(request(1, stage=DECODE, handoff=handoff))
        await listener.ends(2)
        prefill, decode = (asked.body for asked in fake.posts)
        assert prefill["max_tokens"] == 1
        assert prefill["kv_transfer_params"]["do_remote_decode"] is True
        assert decode["kv_transfer_params"] == params
        assert decode["max_tokens"] == 8
        assert listener.completes[Key(1, 1, 1)] == packed(11, 12)


async def test_a_prefill_without_a_kv_connector_has_failed_with_what_is_missing() -> None:
    async def behave(asked: Asked) -> None:
        await asked.status(200, json.dumps({"choices": [{"text": "a"}], "kv_transfer_params": None}))

    async with serving(behave) as fake, running({"base_urls": [fake.url], "shared": True}, **SPLIT) as (engine, listener):
        engine.submit(request(0, stage=PREFILL))
        await listener.ends(1)
        assert "--kv-transfer-config" in listener.failures[KEY]


# --- the server as it is at the start -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "args", "told"),
    [
        ({"models": ["other"]}, {}, "served_model = 'synthetic': http://.* serves 'other'"),
        ({"health": 503}, {"start_s": 0.3}, "is not ready after fleet.engine_args.start_s = 0.3: /health answers 503"),
        ({}, {"health_path": "/healthz"}, 'health_path = "/healthz": .* has no such page'),
        ({"health": 401}, {}, "answers 401; fleet.engine_args.api_key_env"),
    ],
)
async def test_a_server_that_cannot_be_used_is_told_at_the_start(
    options: dict[str, Any], args: dict[str, Any], told: str
) -> None:
    async with serving(**options) as fake:
        with pytest.raises(EngineError, match=told) as caught:
            async with running({"base_urls": [fake.url], **args}):
                pass
        assert isinstance(caught.value, ArgumentError) == (options.get("health") != 503), (
            "what a restart could not change is final"
        )


async def test_https_where_there_is_none_is_told_at_once() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ArgumentError, match=r"https://.*: no TLS that can be trusted: .*; is it http://\?"):
            async with running({"base_urls": [f"https://127.0.0.1:{port}"], "start_s": 3}):
                pass


async def test_a_page_without_end_is_not_read_to_its_end() -> None:
    async with serving(models=["x" * PAGE_BYTES]) as fake:
        with pytest.raises(EngineError, match="/v1/models: the page is longer than 8 MiB"):
            async with running({"base_urls": [fake.url]}):
                pass


async def test_nobody_there_is_told_after_start_s() -> None:
    with pytest.raises(EngineError, match=r"is not ready after .*Connect call failed"):
        async with running({"base_urls": ["http://127.0.0.1:9"], "start_s": 0.3}):
            pass


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    listener = Listener()
    engine = engine_of({"base_urls": ["http://127.0.0.1:9"]}, listener)
    before = asyncio.all_tasks()
    starting = asyncio.ensure_future(engine.start())
    await asyncio.sleep(0.2)
    starting.cancel()
    await asyncio.wait({starting}, timeout=60)
    await engine.stop()
    assert starting.cancelled()
    assert asyncio.all_tasks() == before


# --- metrics ------------------------------------------------------------------------------------------------------------


async def test_the_servers_metrics_are_told_once_scraped() -> None:
    tokens = 100

    def metrics() -> str:
        return "\n".join(
            (
                'vllm:num_requests_running{engine="0"} 3.0',
                f'vllm:generation_tokens_total{{engine="0"}} {tokens}.0',
                f'vllm:iteration_tokens_total_count{{engine="0"}} {tokens / 10}',
            )
        )

    async with serving(metrics=metrics) as fake, running({"base_urls": [fake.url], "scrape_s": 0.05}) as (engine, _):
        assert engine.facts()["statistics"] == "the server's metrics"
        assert engine.stats().tokens_out == 0  # what was before us is not ours
        tokens = 150
        told: list[EngineStats] = []

        def changed() -> bool:
            told.append(engine.stats())
            return told[-1].tokens_out > 0

        await soon(changed)
        assert (told[-1].tokens_out, told[-1].steps, told[-1].batch, told[-1].running) == (50, 5, 10.0, 3)


async def test_replicas_that_share_a_server_count_their_own_tokens_alone() -> None:
    def metrics() -> str:
        return "vllm:num_requests_running 3\nvllm:generation_tokens_total 5"

    async with serving(metrics=metrics) as fake, running({"base_urls": [fake.url], "shared": True}) as (engine, listener):
        assert engine.facts()["statistics"] == "own counts, steps estimated"
        engine.submit(request(0, 12))
        await listener.ends(1)
        stats = engine.stats()
        assert (stats.tokens_out, stats.running, stats.outstanding) == (12, 0, 0)


def test_no_more_of_the_machine_is_imported_than_needed(run_python: Callable[[str], str]) -> None:
    said = run_python(
        "import harness.engines.openai, sys; print([m for m in ('tokenizers', 'vllm', 'torch') if m in sys.modules])"
    )
    assert said.strip() == "[]"


@pytest.fixture
def run_python() -> Callable[[str], str]:
    import subprocess
    import sys

    def run(code: str) -> str:
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=root, check=True, env={**os.environ}
        )
        return done.stdout

    return run
