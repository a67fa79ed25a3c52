"""Watches: what happens to a kind, as a stream of lines; with initial events, bookmarks, a time limit and the 410.

A watch sees an object appear when it begins to match the selectors and disappear when it ceases to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from .errors import ApiError, Json, expired
from .selectors import Matches
from .store import Happened, Store
from .tables import Shape, shaped

_FOR_EVER_S = 1800.0


@dataclass(slots=True)
class Wanted:
    """What a watch was asked for."""

    kind: str
    ns: str | None
    matches: Matches
    version: str = ""
    initial: bool = False  # sendInitialEvents
    bookmarks: bool = False
    timeout_s: float | None = None
    shape: Shape = "object"
    include: str = "Metadata"


@dataclass(eq=False, slots=True)
class _Watch:
    wanted: Wanted
    request: web.Request
    events: deque[Happened] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    expired: bool = False


class Watches:
    def __init__(self, store: Store, *, bookmark_s: float = 60.0) -> None:
        self._store = store
        self.bookmark_s = bookmark_s
        self._open: set[_Watch] = set()
        store.on_change.append(self._hear)

    def __len__(self) -> int:
        return len(self._open)

    def cut(self) -> None:
        """Break every watch in mid-stream, as a lost connection does."""
        for watch in list(self._open):
            if watch.request.transport is not None:
                watch.request.transport.abort()

    def expire(self) -> None:
        """Every watch gets the 410 in its stream and ends."""
        for watch in list(self._open):
            watch.expired = True
            watch.news.set()

    async def serve(self, request: web.Request, wanted: Wanted) -> web.StreamResponse:
        version = _number(wanted.version)
        watch = _Watch(wanted, request)
        self._open.add(watch)  # from here on nothing is missed
        try:
            lines, start = self._beginning(wanted, version)
            response = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            if lines:
                await response.write(b"".join(lines))
            if start is not None:
                await self._stream(response, watch, start)
            await response.write_eof()
            return response
        finally:
            self._open.discard(watch)

    def _beginning(self, wanted: Wanted, version: int | None) -> tuple[list[bytes], int | None]:
        """The lines to begin with, and the version to go on from; None: that was all."""
        store = self._store
        if version is None or version == 0 or wanted.initial:
            lines = [self._line(wanted, "ADDED", obj) for obj in store.list(wanted.kind, wanted.ns) if wanted.matches(obj)]
            if wanted.initial and wanted.bookmarks:
                lines.append(self._bookmark(wanted, store.version, end_of_list=True))
            return lines, store.version
        missed = store.since(version)
        if missed is None:
            return [_error(expired(f"too old resource version: {version} ({store.compacted_to})"))], None
        return [line for happened in missed if (line := self._seen(wanted, happened))], max(version, store.version)

    async def _stream(self, response: web.StreamResponse, watch: _Watch, start: int) -> None:
        wanted = watch.wanted
        until_s = _now_s() + (_FOR_EVER_S if wanted.timeout_s is None else wanted.timeout_s)
        silent_until = start  # a version of the future: nothing is sent before it has come
        bookmark_at_s = _now_s() + self.bookmark_s
        while (left_s := until_s - _now_s()) > 0:
            if watch.expired:
                await response.write(_error(expired()))
                return
            lines = []
            while watch.events:
                happened = watch.events.popleft()
                if happened.version > silent_until and (line := self._seen(wanted, happened)):
                    lines.append(line)
            if wanted.bookmarks and _now_s() >= bookmark_at_s:
                bookmark_at_s = _now_s() + self.bookmark_s
                if self._store.version >= silent_until:
                    lines.append(self._bookmark(wanted, self._store.version))
            if lines:
                await response.write(b"".join(lines))
                continue
            watch.news.clear()
            wait_s = min(left_s, max(0.01, bookmark_at_s - _now_s()) if wanted.bookmarks else left_s)
            try:
                await asyncio.wait_for(watch.news.wait(), wait_s)
            except TimeoutError:
                continue

    def _hear(self, happened: Happened) -> None:
        for watch in self._open:
            if watch.wanted.kind == happened.kind:
                watch.events.append(happened)
                watch.news.set()

    def _seen(self, wanted: Wanted, happened: Happened) -> bytes | None:
        obj, before = happened.obj, happened.before
        if happened.kind != wanted.kind or (wanted.ns is not None and obj["metadata"].get("namespace", "") != wanted.ns):
            return None
        had = before is not None and wanted.matches(before)
        has = happened.type != "DELETED" and wanted.matches(obj)
        if has:
            return self._line(wanted, "MODIFIED" if had else "ADDED", obj)
        if not had:
            return None
        if happened.type != "DELETED":
            assert before is not None
            obj = {**before, "metadata": {**before["metadata"], "resourceVersion": str(happened.version)}}
        return self._line(wanted, "DELETED", obj)

    def _line(self, wanted: Wanted, change: str, obj: Json) -> bytes:
        found = shaped(wanted.shape, wanted.kind, obj, wanted.include, self._store.clock.unix_s())
        return msgspec.json.encode({"type": change, "object": found}) + b"\n"

    def _bookmark(self, wanted: Wanted, version: int, *, end_of_list: bool = False) -> bytes:
        about = self._store.kinds[wanted.kind]
        metadata: Json = {"resourceVersion": str(version), "creationTimestamp": None}
        if end_of_list:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj = {"kind": about.kind, "apiVersion": about.api_version, "metadata": metadata}
        return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def _error(error: ApiError) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": error.status()}) + b"\n"


def _number(version: str) -> int | None:
    if not version:
        return None
    if not version.isdigit():
        raise ApiError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    return int(version)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
