"""JSON lines over a pipe on an asyncio loop: commands to a replica process, status back from it.

Neither side ever blocks on the other: a process that is frozen (SIGSTOP) leaves its pipe full, and the worker must
still supervise its siblings. Configurations of many slots are larger than a pipe (64 KiB), so writes are buffered too.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

CHUNK_BYTES = 65536


class LineReader:
    """Calls `on_line` with each JSON object read from `fd`, and `on_end` once at EOF. Owns `fd`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        on_line: Callable[[dict[str, Any]], None],
        on_end: Callable[[], None],
        *,
        head: bytes = b"",
    ) -> None:
        self._loop, self._fd, self._on_line, self._on_end = loop, fd, on_line, on_end
        self._buffer = bytearray(head)
        self._open = True
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._ready)
        if head:
            loop.call_soon(self._split)

    def drain(self) -> None:
        """Read what the writer left behind (it may have ended a moment ago)."""
        while self._open and self._ready():
            pass

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _ready(self) -> bool:
        try:
            chunk = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            self._on_end()
            return False
        self._buffer += chunk
        self._split()
        return True

    def _split(self) -> None:
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a torn line of a process that was killed while writing
            if isinstance(message, dict):
                self._on_line(message)


class LineWriter:
    """Writes JSON objects to `fd` as lines, keeping what the pipe cannot take yet. Owns `fd`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self._loop, self._fd = loop, fd
        self._buffer = bytearray()
        self._open = True
        os.set_blocking(fd, False)

    def write(self, message: dict[str, Any]) -> None:
        if not self._open:
            return
        waiting = bool(self._buffer)
        self._buffer += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if not waiting:
            self._flush()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_writer(self._fd)
            os.close(self._fd)

    def _flush(self) -> None:
        try:
            while self._buffer:
                del self._buffer[: os.write(self._fd, self._buffer)]
        except BlockingIOError:
            self._loop.add_writer(self._fd, self._flush)
            return
        except OSError:
            self.close()  # the reader is gone; its end is noticed elsewhere
            return
        self._loop.remove_writer(self._fd)
