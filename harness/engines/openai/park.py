"""A stream's connection, parked while nobody needs what it brings: bytes are kept as they come until the answer ends.

Reading HTTP chunk by chunk is most of what a token costs a client. Parked, the transport talks to this small protocol
instead; at the end all chunks are taken apart in one go, and aiohttp gets its transport back together with the last chunk,
sees the end of the answer and puts the connection back into its pool.

What is left is mostly wake-ups, so the kernel is asked for one every second chunk (SO_RCVLOWAT a byte above a chunk). No end
of an answer is later for that: after any chunk but the last one more comes, and the last comes with usage, [DONE] and the end
of the body, which are more than the mark too; from the finish_reason on every byte wakes again. Where that guess is wrong the
watch finds a stream that stands still. Measured at 50 streams: a third of the CPU that `vllm bench serve` spends on a request,
0.5 when every chunk wakes, 0.54 without parking.

Whatever else happens (an early end, an error, chunks that cannot be read because the parking began in the middle of one),
aiohttp gets all bytes and goes on as if nothing had been. The end is guessed from the last bytes; a wrong guess costs
nothing but the saving. A server that ends its answer otherwise (with trailers) is found by the watch, which looks at
streams that stand still.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import aiohttp

LAST_CHUNK = b"0\r\n\r\n"
#: The last token's event, usage and [DONE] are more than that together, whatever the server: a higher mark is not set.
MARK_MOST_BYTES = 400
_FINISH = b'"finish_reason":'

#: What a read fills before it is copied out: one for all streams, since a read and its copy are one step of the loop.
_BUFFER = memoryview(bytearray(65_536))


class Park(asyncio.BufferedProtocol):
    """In the place of aiohttp's own protocol until `leave()`."""

    def __init__(self, transport: asyncio.Transport, owner: asyncio.Protocol, limit_bytes: int) -> None:
        self._transport, self._owner, self._limit_bytes = transport, owner, limit_bytes
        self._parts: list[bytes] = []
        self._parked = True
        self._mark_bytes = 0  # how much must be there to wake us; 0: not chosen yet, 1: for good
        self.size = 0
        self.payload = b""  # what the chunks held, once the answer has ended
        transport.set_protocol(self)

    def leave(self) -> None:
        """Gives aiohttp its transport back, with all that has come. Repeats do nothing."""
        if not self._parked:
            return
        self._parked = False
        self._wake_at(1)
        self._transport.set_protocol(self._owner)
        raw, self._parts = b"".join(self._parts), []
        payload = unchunked(raw)
        if payload is not None:
            self.payload, raw = payload, LAST_CHUNK
        else:
            self.size = 0  # counted by aiohttp from now on
        if raw:
            self._owner.data_received(raw)

    # --- asyncio.BufferedProtocol -------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(_BUFFER[:nbytes])
        self._parts.append(data)
        self.size += len(data)
        if data.endswith(LAST_CHUNK) or (len(data) < len(LAST_CHUNK) and b"".join(self._parts[-5:]).endswith(LAST_CHUNK)):
            self.leave()
        elif self.size > self._limit_bytes:
            self._transport.pause_reading()  # the watch ends it
        elif self._mark_bytes != 1:
            if data.rpartition(_FINISH)[2].lstrip()[:4] != b"null":  # the end is near, or not to be seen coming
                self._wake_at(1)
            elif not self._mark_bytes:
                above_chunk = len(data) // max(data.count(b"\n\n"), 1) + 1
                self._wake_at(above_chunk if above_chunk <= MARK_MOST_BYTES else 1)

    def _wake_at(self, mark_bytes: int) -> None:
        if (self._mark_bytes or 1) != mark_bytes:
            with suppress(OSError):  # it has ended meanwhile
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)
        self._mark_bytes = mark_bytes

    def eof_received(self) -> bool | None:
        self.leave()
        return self._owner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self.leave()
        self._owner.connection_lost(error)

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()


def park(response: aiohttp.ClientResponse, limit_bytes: int) -> Park | None:
    """None where the end could not be seen (an answer without chunks), where chunks are not the text itself (compressed,
    although we ask for it plain), or where the connection has ended already."""
    connection, headers = response.connection, response.headers
    if headers.get("Transfer-Encoding", "").lower() != "chunked" or headers.get("Content-Encoding", "identity") != "identity":
        return None
    if connection is None or response.content.is_eof():
        return None
    transport, owner = connection.transport, connection.protocol
    if transport is None or owner is None or transport.is_closing() or not isinstance(transport, asyncio.Transport):
        return None
    return Park(transport, owner, limit_bytes)


def unchunked(raw: bytes) -> bytes | None:
    """What whole HTTP chunks hold; None unless `raw` is nothing but chunks and the last one ends it."""
    parts: list[bytes] = []
    at = 0
    while True:
        line_end = raw.find(b"\r\n", at)
        if line_end < 0:
            return None
        try:
            size = int(raw[at:line_end], 16)
        except ValueError:
            return None
        if size <= 0:
            return b"".join(parts) if raw[at:] == LAST_CHUNK else None
        at = line_end + 2 + size
        parts.append(raw[line_end + 2 : at])
        if raw[at : at + 2] != b"\r\n":
            return None
        at += 2
