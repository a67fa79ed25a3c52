"""Servers that misbehave: each becomes FAILED with a reason, in bounded time, and never an answer that counts."""

from __future__ import annotations

import asyncio
import time

import pytest
from clock_kit import Clock
from openai_kit import DONE, Asked, Behaviour, Fake, Listener, engine_of, request, running, serving, soon, token, usage

from harness.engines.base import Engine, Key
from harness.engines.openai import health

KEY = Key(1, 0, 1)


async def answer_of(behave: Behaviour, *, dropped: int = 0, within_s: float = 60.0, **args: object) -> tuple[Listener, Fake]:
    """One request to such a server, which sees that many clients go. Deadlines are long where a test gives none."""
    async with serving(behave) as fake, running({"base_urls": [fake.url], **args}) as (engine, listener):
        engine.submit(request(0))
        await listener.ends(1, within_s)
        await soon(lambda: fake.dropped >= dropped)
        stats = engine.stats()
        assert stats.outstanding == 0
        assert stats.failed == len(listener.failures)
    return listener, fake


def failure(heard: tuple[Listener, Fake]) -> str:
    listener, fake = heard
    assert len(fake.posts) == 1
    assert not listener.completes
    assert not listener.deaths
    return listener.failures[KEY]


async def test_a_half_open_stream_ends_at_the_read_deadline() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(token(11) + token(12))
        await asyncio.sleep(30)

    began_s = time.monotonic()
    assert failure(await answer_of(behave, read_s=0.3)) == "no further byte within 0.3 s: the stream is half open"
    assert time.monotonic() - began_s < 25, "the server would keep it open for 30 s"


async def test_a_slow_first_token_ends_at_its_own_deadline_although_keep_alives_come() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        for _ in range(200):
            await asked.send(b": still here\n\n")
            await asyncio.sleep(0.05)

    assert failure(await answer_of(behave, first_token_s=0.6)) == "no first token within 0.6 s"


async def test_a_server_that_accepts_and_never_answers_ends_at_the_first_tokens_deadline() -> None:
    async def behave(asked: Asked) -> None:
        await asyncio.sleep(30)

    assert failure(await answer_of(behave, first_token_s=0.6)) == "no first token within 0.6 s"


async def test_slow_tokens_within_the_read_deadline_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def behave(asked: Asked) -> None:
        await asked.begin()
        for one in (11, 12, 13, 14):
            await asked.send(token(one))
            await soon(lambda: KEY in listener.firsts)
            clock.passes(40)
            await asyncio.sleep(0.05)  # its deadline is looked at
        await asked.send(usage(4) + DONE)
        await asked.finish()

    async with serving(behave) as fake, running({"base_urls": [fake.url], "read_s": 60}) as (engine, listener):
        engine.submit(request(0))
        await listener.ends(1, deadline_s=1000)
    assert listener.completes[KEY] == b"".join(one.to_bytes(4, "little") for one in (11, 12, 13, 14))
    assert listener.times_us[KEY][2] > 120_000_000, "longer than the deadline in all"


async def test_a_429_with_retry_after_is_asked_once_more_and_the_wait_is_told_as_queue() -> None:
    seen = 0

    async def behave(asked: Asked) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            await asked.status(429, "busy", Retry_After="0.4")
            return
        await asked.begin()
        await asked.send(token(11, 12, finish="length") + usage(2) + DONE)
        await asked.finish()

    listener, fake = await answer_of(behave)
    assert len(fake.posts) == 2
    assert not listener.failures
    assert len(listener.completes[KEY]) == 8
    assert listener.times_us[KEY][0] > 390_000


async def test_a_server_that_is_still_busy_after_the_wait_has_failed() -> None:
    async def behave(asked: Asked) -> None:
        await asked.status(503, "busy", Retry_After="0.1")

    listener, fake = await answer_of(behave)
    assert len(fake.posts) == 2
    assert listener.failures[KEY] == "HTTP 503 Whatever: busy"


@pytest.mark.parametrize("headers", [{}, {"Retry_After": "3600"}, {"Retry_After": "soon"}])
async def test_a_429_that_asks_for_no_wait_or_too_long_a_one_has_failed_at_once(headers: dict[str, str]) -> None:
    async def behave(asked: Asked) -> None:
        await asked.status(429, '{"error": "too many\\n requests"}', **headers)

    assert failure(await answer_of(behave)) == 'HTTP 429 Whatever: {"error": "too many\\n requests"}'


async def test_a_500_tells_its_status_and_the_beginning_of_its_text() -> None:
    async def behave(asked: Asked) -> None:
        await asked.status(500, "engine core died " * 100)

    reason = failure(await answer_of(behave))
    assert reason.startswith("HTTP 500 Whatever: engine core died")
    assert len(reason) < 240


async def test_a_page_of_html_is_no_answer() -> None:
    async def behave(asked: Asked) -> None:
        await asked.status(200, "<html>a proxy</html>", "text/html")

    assert failure(await answer_of(behave)) == "content type text/html, not text/event-stream: <html>a proxy</html>"


async def test_a_redirect_is_not_followed() -> None:
    async def behave(asked: Asked) -> None:
        await asked.status(307, "", Location="http://127.0.0.1:9/")

    assert failure(await answer_of(behave)).startswith("HTTP 307")


async def test_a_connection_that_breaks_in_the_middle_has_failed() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(token(11) + token(12))
        asked.close()

    assert "ended early" in failure(await answer_of(behave))


async def test_a_clean_end_of_stream_without_done_or_finish_reason_has_failed() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(token(11) + token(12))
        await asked.finish()

    assert "neither [DONE] nor a finish_reason" in failure(await answer_of(behave))


async def test_an_end_in_the_middle_of_an_event_has_failed() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(token(11) + token(12)[:20])
        await asked.finish()

    assert "ended early" in failure(await answer_of(behave))


async def test_a_connection_closed_before_any_answer_has_failed() -> None:
    async def behave(asked: Asked) -> None:
        asked.close()

    assert failure(await answer_of(behave)) == "the server closed the connection before it answered"


@pytest.mark.parametrize("after", [0, 3])
async def test_an_error_event_is_a_failure_even_when_done_follows(after: int) -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        for one in range(after):
            await asked.send(token(11 + one))
        await asked.send(b'data: {"error": {"message": "EngineCore encountered an issue", "code": 500}}\n\n' + DONE)
        await asked.finish()

    reason = failure(await answer_of(behave))
    assert reason.startswith("an error event in the stream")
    assert "EngineCore encountered an issue" in reason


@pytest.mark.parametrize("ending", ["abort", "error"])
async def test_an_answer_that_was_aborted_has_failed(ending: str) -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(token(11) + token(12, finish=ending) + usage(2) + DONE)
        await asked.finish()

    assert failure(await answer_of(behave)) == f'the server ended the answer with finish_reason "{ending}"'


async def test_a_count_that_differs_from_the_ids_is_a_failure() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(token(11) + token(12, finish="length") + usage(3) + DONE)
        await asked.finish()

    assert failure(await answer_of(behave)) == "the server counts 3 output tokens and sent 2 ids"


async def test_text_without_ids_is_refused_with_what_to_set() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(b'data: {"choices": [{"index": 0, "text": "hello"}]}\n\n')
        await asyncio.sleep(30)

    assert 'token_ids = "tokenizer" or "count"' in failure(await answer_of(behave))


async def test_an_answer_without_a_token_has_failed() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(usage(0) + DONE)
        await asked.finish()

    assert failure(await answer_of(behave)) == "an answer without a token"


async def test_an_answer_without_end_is_broken_off_at_the_limit() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(token(11))
        while True:
            await asked.send(b": " + b"x" * 100_000 + b"\n\n")

    listener, fake = await answer_of(behave, answer_mib=1, dropped=1)
    assert failure((listener, fake)) == "the answer is longer than fleet.engine_args.answer_mib = 1"
    assert fake.dropped == 1


async def test_a_huge_first_event_is_broken_off_too() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        while True:
            await asked.send(b"x" * 100_000)

    assert "longer than" in failure(await answer_of(behave, answer_mib=1))


async def test_one_huge_chunk_below_the_limit_is_an_answer() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(b"".join(token(11, 12, 13, text="y" * 1000) for _ in range(4000)) + usage(12_000) + DONE)
        await asked.finish()

    listener, _ = await answer_of(behave)
    assert len(listener.completes[KEY]) == 4 * 12_000


async def test_a_stream_split_at_every_byte_with_crlf_and_comments_is_an_answer() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        whole = b": hello\n\nevent: message\nid: 1\n" + token(11, text="é\U0001f680") + token(12, finish="stop") + usage(2) + DONE
        for one in whole.replace(b"\n", b"\r\n"):
            await asked.send(bytes([one]))
        await asked.finish()

    listener, _ = await answer_of(behave)
    assert listener.firsts[KEY] == (11).to_bytes(4, "little")
    assert listener.completes[KEY] == (11).to_bytes(4, "little") + (12).to_bytes(4, "little")


async def test_a_server_that_keeps_the_connection_open_after_done_has_answered() -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin()
        await asked.send(token(11) + token(12, finish="length"))
        await asked.send(usage(2) + DONE)
        await asyncio.sleep(30)

    listener, _ = await answer_of(behave)
    assert len(listener.completes[KEY]) == 8


async def test_503_from_the_health_page_twice_ends_the_replica() -> None:
    async with serving() as fake, running({"base_urls": [fake.url]}) as (engine, listener):
        fake.health = 503
        await listener.until(lambda: listener.deaths)
        assert listener.deaths == [f"{fake.url}/health answers 503: its engine is dead"]
        engine.submit(request(1))
        assert listener.failures[Key(1, 1, 1)] == listener.deaths[0]


async def test_a_server_that_is_gone_ends_the_replica_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WATCH_EVERY_S", 3600.0)  # not when it is looked at next
    async with serving() as fake:
        engine, listener = engine_and_listener({"base_urls": [fake.url]})
        await engine.start()
    try:
        engine.submit(request(0))
        await listener.until(lambda: listener.deaths)
        assert "Connect call failed" in listener.deaths[0]
        assert engine.stats().outstanding == 0
        assert len(listener.failures) <= 1
    finally:
        await engine.stop()


def engine_and_listener(args: dict[str, object]) -> tuple[Engine, Listener]:
    listener = Listener()
    return engine_of(args, listener), listener
