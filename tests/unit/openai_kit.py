"""A server on loopback that speaks enough of the OpenAI API, and misbehaves exactly as a test wants.

`Fake.behave` answers POSTs; it may await, write any bytes and close. Everything is real TCP and HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from listening import Listener

from harness.engines import registry
from harness.engines.base import Engine, EngineContext, Key, Request
from harness.spec import RunSpec

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
PROMPT = b"\x05\x00\x00\x00" * 24
DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def token(*ids: int, text: str = "x", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "token_ids": list(ids), "finish_reason": finish}], "usage": None})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 24, "completion_tokens": tokens, "total_tokens": 24 + tokens}})


def ids_of(index: int, count: int) -> list[int]:
    return [10 + (index * 31 + position * 7) % 240 for position in range(count)]


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def begin(self) -> None:
        await self.raw(HEAD)

    async def send(self, data: bytes) -> None:
        """As one HTTP chunk."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def status(self, status: int, text: str = "", content_type: str = "application/json", **headers: str) -> None:
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        data = text.encode()
        head = f"HTTP/1.1 {status} Whatever\r\ncontent-type: {content_type}\r\ncontent-length: {len(data)}\r\n{more}\r\n"
        await self.raw(head.encode() + data)

    def close(self) -> None:
        self.writer.close()


Behaviour = Callable[[Asked], Awaitable[None]]


async def polite(asked: Asked) -> None:
    """What a good server does: max_tokens tokens, one a chunk, usage, [DONE]. Tokens depend on the prompt alone."""
    count = asked.body["max_tokens"]
    ids = ids_of(sum(asked.body["prompt"]), count)
    await asked.begin()
    for position, one in enumerate(ids):
        await asked.send(token(one, finish="length" if position == count - 1 else None))
        await asyncio.sleep(0.001)
    await asked.send(usage(count) + DONE)
    await asked.finish()


@dataclass
class Fake:
    behave: Behaviour = polite
    models: list[str] = field(default_factory=lambda: ["synthetic"])  # the default model.name of a spec
    health: int = 200
    metrics: Callable[[], str] | None = None
    posts: list[Asked] = field(default_factory=list)
    open_posts: int = 0
    dropped: int = 0  # clients that went away during an answer
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (asked := await self._read(reader, writer)) is not None:
                if asked.method == "POST":
                    self.posts.append(asked)
                    await self._post(asked, reader)
                else:
                    await self._get(asked)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
        first = (await reader.readline()).decode().split()
        if len(first) < 2:
            return None
        headers: dict[str, str] = {}
        while line := (await reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Asked(first[0], first[1], headers, json.loads(body) if body else {}, writer)

    async def _post(self, asked: Asked, reader: asyncio.StreamReader) -> None:
        self.open_posts += 1
        answering = asyncio.ensure_future(self.behave(asked))
        leaving = asyncio.ensure_future(reader.read(1))  # a client that waits for its answer sends nothing
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ConnectionError("the client went away")
            await answering
        except ConnectionError:
            self.dropped += 1
            raise
        finally:
            self.open_posts -= 1
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait({answering, leaving})

    async def _get(self, asked: Asked) -> None:
        if asked.path == "/health":
            await asked.status(self.health)
        elif asked.path == "/v1/models":
            await asked.status(200, json.dumps({"object": "list", "data": [{"id": name} for name in self.models]}))
        elif asked.path == "/metrics" and self.metrics is not None:
            await asked.status(200, self.metrics(), "text/plain")
        else:
            await asked.status(404, '{"detail": "Not Found"}')


@contextlib.asynccontextmanager
async def serving(behave: Behaviour = polite, **options: Any) -> AsyncIterator[Fake]:
    fake = Fake(behave, **options)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await fake._serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        if connections:
            await asyncio.wait(list(connections), timeout=5)


async def soon(met: Callable[[], object], within_s: float = 60.0) -> None:
    """For what nobody tells."""
    deadline_s = time.monotonic() + within_s
    while not met():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s"
        await asyncio.sleep(0.02)


def spec_of(args: dict[str, Any], **tables: Any) -> RunSpec:
    fleet = {"nodes": 1, "replicas_per_node": 1, "engine": "openai", "engine_args": args, **tables.pop("fleet", {})}
    return RunSpec.model_validate({"fleet": fleet, **tables})


def engine_of(args: dict[str, Any], listener: Listener, **tables: Any) -> Engine:
    spec = spec_of(args, **tables)
    context = EngineContext(spec, "node000/gpu0", node=0, gpu=0, ordinal=0, incarnation="i0", life=0, args=spec.fleet.engine_args)
    return registry.factory("openai")(context, listener)


@contextlib.asynccontextmanager
async def running(args: dict[str, Any], **tables: Any) -> AsyncIterator[tuple[Engine, Listener]]:
    """A started engine, stopped at the end."""
    listener = Listener()
    engine = engine_of(args, listener, **tables)
    await engine.start()
    try:
        yield engine, listener
    finally:
        await engine.stop()


def request(seq: int, max_tokens: int = 8, *, epoch: int = 1, attempt_try: int = 1, **more: Any) -> Request:
    return Request(Key(epoch, seq, attempt_try), more.pop("prompt", PROMPT), max_tokens, index=seq, **more)


async def serve_forever(port: int) -> None:
    """A polite server as a program of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await fake._serve(reader, writer)

    fake = Fake()
    async with await asyncio.start_server(serve, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve_forever(int(sys.argv[1])))
