"""The log lines of pods: a kubelet writes them, `pods/log` reads and follows them. They are gone with their pod."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from .clock import Clock, micro_stamp

_KEPT = 50_000  # lines a container


class Line(NamedTuple):
    number: int
    unix_s: float
    text: str


class _Stream:
    def __init__(self) -> None:
        self.lines: deque[Line] = deque(maxlen=_KEPT)
        self.count = 0
        self.ended = False
        self.previous: deque[Line] | None = None
        self.news = asyncio.Event()

    def wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class PodLogs:
    """`container` "" is the first container of a pod, as `first_of` names it. All calls in the server's loop."""

    def __init__(self, clock: Clock, first_of: Callable[[str], str]) -> None:
        self._clock = clock
        self._first_of = first_of
        self._streams: dict[tuple[str, str], _Stream] = {}

    def write(self, uid: str, line: str, container: str = "") -> None:
        stream = self._stream(uid, container)
        for text in line.rstrip("\n").split("\n"):
            stream.count += 1
            stream.lines.append(Line(stream.count, self._clock.unix_s(), text))
        stream.ended = False
        stream.wake()

    def end(self, uid: str, container: str = "") -> None:
        """The container ended: who follows is told so."""
        self._end(self._stream(uid, container))

    def end_all(self, uid: str) -> None:
        """Every container of the pod ended."""
        for key, stream in list(self._streams.items()):
            if key[0] == uid:
                self._end(stream)

    def restarted(self, uid: str, container: str = "") -> None:
        """A new start in the same pod: what was written until now is `previous`."""
        stream = self._stream(uid, container)
        stream.previous, stream.lines = stream.lines, deque(maxlen=_KEPT)
        stream.ended = False
        stream.wake()

    def drop(self, uid: str) -> None:
        """The pod is gone."""
        for key in [key for key in self._streams if key[0] == uid]:
            self._end(self._streams.pop(key))

    def lines(self, uid: str, container: str = "", *, previous: bool = False) -> list[Line] | None:
        """None: there is no such start of the container."""
        stream = self._streams.get((uid, container or self._first_of(uid)))
        if previous:
            return None if stream is None or stream.previous is None else list(stream.previous)
        return None if stream is None else list(stream.lines)

    async def follow(self, uid: str, container: str, after: int) -> AsyncIterator[Line]:
        """Lines with a number above `after` as they come, until the container has ended or the pod is gone."""
        stream = self._stream(uid, container)
        while True:
            news = stream.news
            for line in [line for line in stream.lines if line.number > after]:
                after = line.number
                yield line
            if stream.ended:
                return
            if news is stream.news:
                await news.wait()

    def _end(self, stream: _Stream) -> None:
        stream.ended = True
        stream.wake()

    def _stream(self, uid: str, container: str) -> _Stream:
        return self._streams.setdefault((uid, container or self._first_of(uid)), _Stream())


def shown(line: Line, *, timestamps: bool) -> bytes:
    text = f"{micro_stamp(line.unix_s)} {line.text}" if timestamps else line.text
    return f"{text}\n".encode()
