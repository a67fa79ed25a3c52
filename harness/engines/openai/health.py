"""Whether a server is there: waiting for it at the start, watching it afterwards.

While serving, only what cannot be load counts: a refused connection, or 503 from its health page (vLLM's engine is dead
then), twice in a row. A page that is slow to come says nothing; samples have deadlines of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from math import inf

import aiohttp
import msgspec

from harness.engines.base import ArgumentError, EngineError
from harness.engines.openai.args import WHERE, OpenAIArgs
from harness.engines.openai.client import Client
from harness.engines.openai.server import Server
from harness.engines.openai.stream import shortened

log = logging.getLogger("paceline.engine.openai")

PROBE_S = 5.0
PROBE_EVERY_S = (0.1, 1.0)  # at first, and after a while
TELL_EVERY_S = 5.0
WATCH_EVERY_S = 2.0
AGAIN_S = 0.3
UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class _Version(msgspec.Struct):
    version: str = ""


async def wait_until_healthy(client: Client, args: OpenAIArgs, server: Server | None, say: Callable[[str], None]) -> None:
    """Raises EngineError after `start_s`, or at once when our own server ends. `say`: what it waits for, every few seconds."""
    began_s = time.monotonic()
    told_s = -inf
    every_s = PROBE_EVERY_S[0]
    ending = asyncio.ensure_future(server.ended()) if server is not None else None
    try:
        while True:
            state = await _state(client, args)
            if ending is not None and ending.done():
                raise EngineError(f"before it was ready the server {ending.result()}")
            if not state:
                return
            now_s = time.monotonic()
            if now_s - began_s > args.start_s:
                said = f"; its last line: {server.last_line}" if server is not None else ""
                raise EngineError(f"{client.base_url} is not ready after {WHERE}.start_s = {args.start_s:g}: {state}{said}")
            if now_s - told_s > TELL_EVERY_S:
                told_s = now_s
                note = f"waiting for {client.base_url}, {now_s - began_s:.0f} of {args.start_s:g} s: {state}"
                log.info("%s", note)
                say(note)
            if ending is not None:
                await asyncio.wait({ending}, timeout=every_s)
            else:
                await asyncio.sleep(every_s)
            every_s = min(every_s * 1.5, PROBE_EVERY_S[1])
    finally:
        if ending is not None:
            ending.cancel()
            await asyncio.wait({ending})


async def _state(client: Client, args: OpenAIArgs) -> str:
    """What is wrong with it; "" when nothing is."""
    path = args.health_path or "/v1/models"
    try:
        status, text = await client.get(path, PROBE_S)
    except (aiohttp.ClientConnectorSSLError, aiohttp.ClientConnectorCertificateError) as error:
        raise ArgumentError(f"{client.base_url}: no TLS that can be trusted: {in_words(error)}; is it http://?") from None
    except UNREACHABLE as error:
        return f"{path}: {in_words(error)}"
    if status == 404 and args.health_path:
        raise ArgumentError(f'{WHERE}.health_path = "{path}": {client.base_url} has no such page; "" asks /v1/models instead')
    if status in (401, 403):
        raise ArgumentError(f"{client.base_url}{path} answers {status}; {WHERE}.api_key_env names the variable with the key")
    return "" if status == 200 else f"{path} answers {status}: {shortened(text)}"


async def check_model(client: Client, args: OpenAIArgs) -> None:
    try:
        status, text = await client.get("/v1/models", args.connect_s)
    except UNREACHABLE as error:
        raise EngineError(f"{client.base_url}/v1/models: {in_words(error)}") from None
    if status in (401, 403):
        raise ArgumentError(f"{client.base_url}/v1/models answers {status}; {WHERE}.api_key_env names the variable with the key")
    if status != 200:
        kind = ArgumentError if status == 404 else EngineError
        hint = f"; is {WHERE}.base_urls the address of an OpenAI-compatible server?" if status == 404 else ""
        raise kind(f"{client.base_url}/v1/models answers {status}: {shortened(text)}{hint}")
    try:
        names = [model.id for model in msgspec.json.decode(text, type=_Models).data]
    except msgspec.MsgspecError as error:
        raise ArgumentError(
            f"{client.base_url}/v1/models cannot be read ({error}): {shortened(text)}; is it an OpenAI-compatible server?"
        ) from None
    if args.served_model not in names:
        raise ArgumentError(
            f"{WHERE}.served_model = {args.served_model!r}: {client.base_url} serves {', '.join(map(repr, names)) or 'nothing'}"
        )


async def version_of(client: Client) -> str:
    """As the server tells it; "" from one that does not."""
    try:
        status, text = await client.get("/version", PROBE_S)
        return msgspec.json.decode(text, type=_Version).version if status == 200 else ""
    except (*UNREACHABLE, msgspec.MsgspecError):
        return ""


async def watch(client: Client, args: OpenAIArgs, suspect: asyncio.Event) -> str:
    """Returns why the server is gone. `suspect` brings the next look forward."""
    bad = 0
    while True:
        if bad:
            await asyncio.sleep(AGAIN_S)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(suspect.wait(), WATCH_EVERY_S)
        suspect.clear()
        reason = await _gone(client, args)
        bad = bad + 1 if reason else 0
        if bad == 2:
            return reason


async def _gone(client: Client, args: OpenAIArgs) -> str:
    path = args.health_path or "/v1/models"
    try:
        status, _ = await client.get(path, PROBE_S)
    except aiohttp.ClientConnectorError as error:
        return f"{client.base_url}: {in_words(error)}"
    except UNREACHABLE:
        return ""
    return f"{client.base_url}{path} answers 503: its engine is dead" if status == 503 else ""


def in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection before it answered"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the stream ended early: the connection broke in the middle of the answer"
    return shortened(str(error)) or type(error).__name__
