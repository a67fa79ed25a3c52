"""A live copy of one kind of object under one selector, kept by a watch that never gives up.

Why not the `kubernetes` package's own: its Watch ends at the first server-side close and trips over an ERROR event, its
informer calls back without a pause while the server is gone, and both build model objects, at 5-8 times the CPU. Here a
line of the stream becomes a dict, the dict one of views.py's structs, and the dict is gone.

A cycle is a list with its watch (WatchList; where the server has none, list then watch), resumed from the last version that
was seen when the server ends the stream, and begun afresh, with a difference against the store, when that version is too
old (410 inside the stream) or nothing at all has come for longer than the bookmarks' interval: a watch from a version of
the future hangs like that. Whatever happens ends up in `problem`, in words, and in a longer pause; nothing is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from harness.cluster.base import ClusterError
from harness.cluster.kube.api import Api, ApiProblem, lines_of, resource_of
from harness.cluster.kube.problems import of_event

V = TypeVar("V")
Change = Literal["ADDED", "MODIFIED", "DELETED"]
Raw = Mapping[str, Any]
OnChange = Callable[[Change, V | None, V | None], None]

_INITIAL_END = "k8s.io/initial-events-end"
_GO_ON_AFTER = (0, 401, 403, 429, 502, 503, 504)  # the version is still good
_NOT_A_WORD = ("Silence", "TimedOut")
_NO_WATCH_LIST = (400, 404, 405, 406, 415, 422)  # what servers without WatchList answer to it


@dataclass(frozen=True, slots=True)
class Pace:
    watch_s: float = 300.0  # the server ends a watch after this long
    reply_s: float = 30.0  # for a watch to begin
    silence_s: float = 75.0  # bookmarks come once a minute
    first_pause_s: float = 0.5  # doubles, with jitter
    longest_pause_s: float = 30.0
    forbidden_pause_s: float = 60.0
    initial_s: float = 30.0  # for all of the list to arrive inside a watch


class Reflector(Generic[V]):
    """`reduce` makes what is kept of a raw object; None leaves it out. `on_change(type, old, new)` is called for each change of
    a kept value, in the event loop; `new` of DELETED is its last state. `items` is by uid.

    `synced` is set once the first list is complete, `changed` whenever something changed (the reader clears it), `seen_unix`
    is the server's last word, and `problem` is "" while all is well, since `problem_unix` otherwise.
    """

    def __init__(
        self,
        api: Api,
        kind: str,
        reduce: Callable[[Raw], V | None],
        *,
        selector: str = "",
        fields: str = "",
        namespace: str | None = None,
        on_change: OnChange[V] | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
    ) -> None:
        self.kind = kind
        self.items: dict[str, V] = {}
        self.changed, self.synced = asyncio.Event(), asyncio.Event()
        self.seen_unix = self.problem_unix = 0.0
        self.problem = ""
        self.last_problem: ApiProblem | None = None  # why `problem` is as it is, for programs
        self.connects = self.lists = 0
        self._api, self._reduce, self._on_change = api, reduce, on_change
        self._path = api.path(kind, namespace=namespace)
        self._what = resource_of(kind).plural
        self._query: dict[str, str] = {}
        if selector:
            self._query["labelSelector"] = selector
        if fields:
            self._query["fieldSelector"] = fields
        self._selector, self._fields, self._namespace = selector, fields, namespace
        self._pace, self._clock, self._random = pace or Pace(), clock, random.Random(seed)
        self._has_watch_list = True
        self._version = ""  # to go on from; "": begin with a list
        self._failures, self._heard_any = 0, False
        self._task: asyncio.Task[None] | None = None

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """In a running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"watch {self._what}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def age_s(self) -> float:
        """Since the server's last word; infinite before the first."""
        return self._clock() - self.seen_unix if self.seen_unix else float("inf")

    async def _run(self) -> None:
        while True:
            pause_s = await self._cycle_and_pause_s()
            await asyncio.sleep(pause_s)

    async def _cycle_and_pause_s(self) -> float:
        """One connect until it ends, and how long to wait then."""
        began_s, self._heard_any = time.monotonic(), False
        try:
            await self._cycle()
        except ApiProblem as problem:
            if problem.expired:
                self._version = ""
                return self._pause_s() if self._ended_at_once(began_s) else 0.0
            if problem.code not in _GO_ON_AFTER or (problem.reason in _NOT_A_WORD and not self._heard_any):
                self._version = ""  # it may be junk, or one that the server has not reached
            if problem.reason == "Silence":
                return 0.0  # if the server is gone, the next connect says so
            return self._failed(problem)
        except ClusterError as problem:  # the credentials cannot be read
            return self._failed(ApiProblem(0, "Credentials", str(problem)))
        except Exception as problem:  # a fault of ours or of on_change must not end the watch for good
            self._version = ""
            return self._failed(ApiProblem(0, "Fault", f"an error in Paceline itself: {type(problem).__name__}: {problem}"))
        return self._pause_s() if self._ended_at_once(began_s) else 0.0

    def _ended_at_once(self, began_s: float) -> bool:
        """Then the next connect waits, whatever the reason: a server that hangs up on each watch is not to be hammered."""
        return time.monotonic() - began_s < self._pace.first_pause_s

    def _failed(self, problem: ApiProblem) -> float:
        text = f"{self._what} cannot be watched: {problem}"
        if text != self.problem:
            self.problem_unix = self.problem_unix or self._clock()
            self.problem, self.last_problem = text, problem
            self.changed.set()
        if problem.code == 403:
            return self._jittered(self._pace.forbidden_pause_s)
        return max(self._pause_s(), problem.retry_after_s or 0.0)

    def _pause_s(self) -> float:
        self._failures += 1
        return self._jittered(min(self._pace.first_pause_s * 2 ** min(self._failures - 1, 20), self._pace.longest_pause_s))

    def _jittered(self, pause_s: float) -> float:
        return pause_s * self._random.uniform(0.5, 1.0)

    def _heard(self) -> None:
        self._heard_any, self._failures = True, 0
        self._answered()

    def _answered(self) -> None:
        self.seen_unix = self._clock()
        if self.problem:
            self.problem, self.problem_unix, self.last_problem = "", 0.0, None
            self.changed.set()

    # --- list and watch --------------------------------------------------------------------------------------------

    async def _cycle(self) -> None:
        if self._version:
            await self._watch()
        elif self._has_watch_list:
            await self._watch_list()
        else:
            await self._list()
            await self._watch()

    async def _watch_list(self) -> None:
        query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        try:
            await self._stream(query, {})
        except ApiProblem as problem:
            if problem.code not in _NO_WATCH_LIST:
                raise
            self._has_watch_list = False

    async def _watch(self) -> None:
        await self._stream({"resourceVersion": self._version}, None)

    async def _stream(self, query: dict[str, str], fresh: dict[str, V] | None) -> None:
        """`fresh` collects what the server lists at the beginning of this stream; None: the stream goes on from a version."""
        pace = self._pace
        asked = self._query | query | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": f"{pace.watch_s:g}"}
        self.connects += 1
        waits = {"reply_s": pace.reply_s, "silence_s": pace.silence_s}
        async with self._api.stream(self._path, asked, what=self._what, **waits) as chunks:
            self._answered()
            listing_until_s = time.monotonic() + pace.initial_s if fresh is not None else float("inf")
            async for line in lines_of(chunks, longest=16 * 1024 * 1024):
                if not line.strip():
                    continue
                fresh = self._take(line, fresh)
                if fresh is None:
                    listing_until_s = float("inf")
                elif time.monotonic() > listing_until_s:
                    self._has_watch_list = False  # it took the query, and lists without saying where the list ends
                    return

    def _take(self, line: bytes, fresh: dict[str, V] | None) -> dict[str, V] | None:
        """One event. Returns what is listed so far, None once the list is complete."""
        try:
            event = msgspec.json.decode(line)
            kind, raw = event["type"], event["object"]
            meta = raw.get("metadata") or {}
        except (msgspec.DecodeError, TypeError, KeyError, AttributeError):
            raise ApiProblem(
                0, "NotAnEvent", f"a line of the watch is no event: {line[:200].decode('utf-8', 'replace')!r}"
            ) from None
        if kind == "ERROR":
            raise of_event(self._what, raw)
        version = str(meta.get("resourceVersion") or "")
        if kind == "BOOKMARK":
            if fresh is not None and (meta.get("annotations") or {}).get(_INITIAL_END) == "true":
                self._replace(fresh)
                fresh = None
        elif kind in ("ADDED", "MODIFIED", "DELETED"):
            self._put(kind, raw, meta, fresh)
        self._heard()
        if fresh is None and version:
            self._version = version  # before the list is complete there is nothing to go on from
        return fresh

    async def _list(self) -> None:
        fresh: dict[str, V] = {}
        version = ""
        self.lists += 1
        async for page in self._api.pages(self.kind, selector=self._selector, fields=self._fields, namespace=self._namespace):
            for raw in page.get("items") or ():
                self._put("ADDED", raw, raw.get("metadata") or {}, fresh)
            version = str((page.get("metadata") or {}).get("resourceVersion") or "")
        self._replace(fresh)
        self._heard()
        self._version = version

    # --- the store -------------------------------------------------------------------------------------------------

    def _put(self, kind: Change, raw: Raw, meta: Raw, fresh: dict[str, V] | None) -> None:
        key = str(meta.get("uid") or f"{meta.get('namespace', '')}/{meta.get('name', '')}")
        value = self._reduce(raw)
        if kind == "DELETED" or value is None:
            if fresh is not None:
                fresh.pop(key, None)
            old = self.items.pop(key, None)
            if old is not None:
                self._tell("DELETED", old, value if value is not None else old)
            return
        if fresh is not None:
            fresh[key] = value
        old = self.items.get(key)
        if old != value:
            self.items[key] = value
            self._tell("MODIFIED" if old is not None else "ADDED", old, value)

    def _replace(self, fresh: dict[str, V]) -> None:
        """The list is complete: what it lacks went while nobody was looking."""
        for key in [key for key in self.items if key not in fresh]:
            old = self.items.pop(key)
            self._tell("DELETED", old, old)
        if not self.synced.is_set():
            self.synced.set()
            self.changed.set()

    def _tell(self, kind: Change, old: V | None, new: V | None) -> None:
        self.changed.set()
        if self._on_change is not None:
            self._on_change(kind, old, new)
