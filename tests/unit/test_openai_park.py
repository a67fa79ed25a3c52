"""A parked stream: how often it wakes, that its end wakes it whatever the pieces, and what its connection is like afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from openai_kit import DONE, HEAD, Asked, ids_of, request, running, serving, soon, token, usage

from harness.engines.base import Key
from harness.engines.openai.park import LAST_CHUNK, Park

#: No wake-up within this time, and none is coming.
QUIET_S = 0.02


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Owner(asyncio.Protocol):
    """In the place of aiohttp's protocol."""

    heard: bytes = b""
    lost: bool = False

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


@dataclass
class Stream:
    park: Park
    owner: Owner
    writer: asyncio.StreamWriter
    sent: bytes = field(default=b"")

    async def send(self, data: bytes) -> None:
        """And give it the time to arrive, and to be read if it wakes anybody."""
        self.sent += data
        self.writer.write(data)
        await asyncio.sleep(QUIET_S)


@contextlib.asynccontextmanager
async def parked() -> AsyncIterator[Stream]:
    loop = asyncio.get_running_loop()
    writers: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: writers.put_nowait(writer), "127.0.0.1", 0)
    transport, owner = await loop.create_connection(Owner, *server.sockets[0].getsockname())
    writer = await writers.get()
    try:
        yield Stream(Park(transport, owner, 1 << 20), owner, writer)
    finally:
        transport.close()
        writer.close()
        server.close()


async def test_it_wakes_for_every_second_chunk() -> None:
    async with parked() as stream:
        await stream.send(chunk(token(10)))
        await soon(lambda: stream.park.size == len(stream.sent))
        for position in range(4):
            before = stream.park.size
            await stream.send(chunk(token(11 + position)))
            if position % 2:
                await soon(lambda: stream.park.size == len(stream.sent))
            else:
                assert stream.park.size == before


@pytest.mark.parametrize("tokens", range(1, 5))
async def test_the_end_of_an_answer_wakes_it_however_the_server_writes_it(tokens: int) -> None:
    last = chunk(token(9, text="", finish="stop"))
    ends = {
        "a write each": (last, chunk(usage(tokens + 1)), chunk(DONE), LAST_CHUNK),
        "one write": (last + chunk(usage(tokens + 1)) + chunk(DONE) + LAST_CHUNK,),
        "no usage": (last, chunk(DONE) + LAST_CHUNK),
        "cut within the last token": (last[:5], last[5:90], last[90:], chunk(usage(tokens + 1)) + chunk(DONE), b"0\r\n", b"\r\n"),
    }
    for how, pieces in ends.items():
        async with parked() as stream:
            for position in range(tokens):
                await stream.send(chunk(token(10 + position)))
            for piece in pieces:
                await stream.send(piece)
            owner = stream.owner
            await soon(lambda owner=owner: owner.heard)  # type: ignore[misc]
            assert owner.heard == LAST_CHUNK, how
            assert DONE in stream.park.payload, how
            owner.heard = b""
            await stream.send(b"x")
            await soon(lambda owner=owner: owner.heard)  # type: ignore[misc]
            assert owner.heard == b"x", "its connection is as it was before"


@pytest.mark.parametrize("size", [1, 1000])
async def test_events_without_a_finish_reason_or_too_long_for_a_mark_wake_it_each_time(size: int) -> None:
    data = b"data: {}\n\n" if size == 1 else token(5, text="x" * size)
    async with parked() as stream:
        for _ in range(4):
            await stream.send(chunk(data))
            await soon(lambda: stream.park.size == len(stream.sent))


async def test_what_was_below_the_mark_is_heard_when_the_connection_ends() -> None:
    async with parked() as stream:
        for position in range(2):
            await stream.send(chunk(token(10 + position)))
        assert stream.park.size < len(stream.sent)
        stream.writer.close()
        await soon(lambda: stream.owner.lost)
        assert stream.owner.heard == stream.sent


async def test_an_answer_that_comes_compressed_unasked_is_an_answer() -> None:
    async def behave(asked: Asked) -> None:
        press = zlib.compressobj(wbits=31)
        head, _, rest = HEAD.partition(b"\r\n")
        await asked.raw(head + b"\r\ncontent-encoding: gzip\r\n" + rest)
        for one in ids_of(0, 8):
            await asked.send(press.compress(token(one)) + press.flush(zlib.Z_SYNC_FLUSH))
            await asyncio.sleep(0.005)
        await asked.send(press.compress(usage(8) + DONE) + press.flush())
        await asked.finish()

    async with serving(behave) as fake, running({"base_urls": [fake.url]}) as (engine, listener):
        engine.submit(request(0))
        await listener.ends(1)
    assert not listener.failures
    assert len(listener.completes[Key(1, 0, 1)]) == 4 * 8
