"""A tiny API server of the tests: real HTTP on loopback, scripted replies, and one watched list of pods with faults to order.

It knows what a watch needs (versions, bookmarks, 410 inside the stream) and nothing of controllers.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

Raw = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PODS = "/api/v1/namespaces/ns/pods"


class Asked(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class TinyServer:
    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.url = ""
        self._handlers: dict[tuple[str, str], Handler] = {}

    def on(self, method: str, path: str, handler: Handler) -> None:
        self._handlers[method, path] = handler

    def answers(self, method: str, path: str, body: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        async def handler(_: web.Request) -> web.StreamResponse:
            return web.json_response(body, status=status, headers=headers)

        self.on(method, path, handler)

    def refuses(self, method: str, path: str, code: int, reason: str, message: str, **details: object) -> None:
        self.answers(method, path, status_of(code, reason, message, **details), code)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.asked.append(Asked(request.method, request.path, dict(request.query), dict(request.headers), body))
        handler = self._handlers.get((request.method, request.path))
        if handler is None:
            return web.json_response(status_of(404, "NotFound", f"{request.path} not found"), status=404)
        return await handler(request)


@asynccontextmanager
async def serving(tiny: TinyServer, *, port: int = 0, secured: ssl.SSLContext | None = None) -> AsyncIterator[TinyServer]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", tiny.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=secured)
    await site.start()
    bound = runner.addresses[0][1]
    tiny.url = f"{'https' if secured else 'http'}://127.0.0.1:{bound}"
    try:
        yield tiny
    finally:
        await runner.cleanup()


def status_of(code: int, reason: str, message: str, **details: object) -> Raw:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, "details": details}


def kubeconfig(folder: Path, server: str, *, name: str = "config", user: Raw | None = None, cluster: Raw | None = None) -> Path:
    """One context, `ctx`, of namespace `ns`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "ctx",
        "contexts": [{"name": "ctx", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "sesame"} if user is None else user}],
    }
    path = folder / name
    path.write_text(json.dumps(config))
    return path


def pod(name: str, **status: object) -> Raw:
    meta = {"name": name, "uid": f"uid-{name}", "namespace": "ns", "labels": {"app": "x"}}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {}, "status": {"phase": "Pending", **status}}


async def until(what: str, true: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = asyncio.get_running_loop().time() + within_s
    while not true():
        assert asyncio.get_running_loop().time() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.005)


class WatchedPods:
    """A list of pods and its watch. `faults` are taken one a watch: see _watch. Bookmarks come every `bookmark_s`."""

    def __init__(self, tiny: TinyServer, *, watch_list: bool = True, bookmark_s: float = 0.05) -> None:
        self.tiny, self.watch_list, self.bookmark_s = tiny, watch_list, bookmark_s
        self.version = 100
        self.pods: dict[str, Raw] = {}
        self.history: list[tuple[int, str, Raw]] = []
        self.oldest = 0  # what is older has been compacted
        self.faults: deque[str] = deque()
        self.watches = self.lists = 0
        self.cut = asyncio.Event()
        tiny.on("GET", PODS, self._get)

    def put(self, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        self._note("MODIFIED" if name in self.pods else "ADDED", raw)
        self.pods[name] = raw

    def remove(self, name: str) -> None:
        self._note("DELETED", self.pods.pop(name))

    def compact(self) -> None:
        """Versions until now are too old to go on from."""
        self.version += 1
        self.oldest, self.history = self.version, []

    def _note(self, kind: str, raw: Raw) -> None:
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, json.loads(json.dumps(raw))))

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await self._watch(request)
        self.lists += 1
        limit, start = int(request.query.get("limit", "500")), int(request.query.get("continue") or "0")
        items = list(self.pods.values())
        meta = {"resourceVersion": str(self.version)}
        if start + limit < len(items):
            meta["continue"] = str(start + limit)
        return web.json_response({"kind": "PodList", "metadata": meta, "items": items[start : start + limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        fault = self.faults.popleft() if self.faults else ""
        initial = request.query.get("sendInitialEvents") == "true"
        if fault.isdigit():
            return web.json_response(status_of(int(fault), "Fault", f"fault {fault}"), status=int(fault))
        if fault == "forbidden":
            message = 'pods is forbidden: User "eve" cannot watch resource "pods" in API group "" in the namespace "ns"'
            return web.json_response(status_of(403, "Forbidden", message), status=403)
        if initial and not self.watch_list:
            return web.json_response(status_of(422, "Invalid", "sendInitialEvents is forbidden for watch"), status=422)
        reply = web.StreamResponse()
        await reply.prepare(request)
        if fault == "hang":
            await self._cut_or(30.0)
            return reply
        if fault == "close":
            return reply
        stream = _Stream(reply, broken=fault == "chunks")
        if fault == "error":
            await stream.send("ERROR", status_of(500, "InternalError", "etcd is away"))
            return reply
        if fault == "junk":
            await reply.write(b'{"type": "ADDED", "obj\n')
            return reply
        seen = await self._initial(stream, fault) if initial else int(request.query.get("resourceVersion") or "0")
        await self._live(stream, seen, fault)
        return reply

    async def _initial(self, stream: _Stream, fault: str) -> int:
        for raw in list(self.pods.values()):
            await stream.send("ADDED", raw)
        if fault != "endless list":
            await stream.bookmark(self.version, {"k8s.io/initial-events-end": "true"})
        return self.version

    async def _live(self, stream: _Stream, seen: int, fault: str) -> None:
        for _ in range(2000):
            if seen < self.oldest:  # what it has not been sent is gone
                await stream.send("ERROR", status_of(410, "Expired", "too old resource version"))
                return
            for version, kind, raw in [change for change in self.history if change[0] > seen]:
                await stream.send(kind, raw)
                seen = version
            if fault == "cut" and seen:
                stream.abort()
                return
            if await self._cut_or(self.bookmark_s):
                stream.abort()
                return
            if seen >= self.oldest and not any(change[0] > seen for change in self.history):
                seen = max(seen, self.version)
                await stream.bookmark(seen, {})

    async def _cut_or(self, wait_s: float) -> bool:
        try:
            await asyncio.wait_for(self.cut.wait(), wait_s)
        except TimeoutError:
            return False
        return True


class _Stream:
    def __init__(self, reply: web.StreamResponse, *, broken: bool = False) -> None:
        self._reply, self._broken = reply, broken

    async def send(self, kind: str, raw: Raw) -> None:
        line = json.dumps({"type": kind, "object": raw}, ensure_ascii=False).encode() + b"\n"
        if not self._broken:
            await self._reply.write(line)
            return
        for start in range(0, len(line), 7):  # ends inside of lines, and of characters
            await self._reply.write(line[start : start + 7])
            await asyncio.sleep(0)

    async def bookmark(self, version: int, annotations: dict[str, str]) -> None:
        meta = {"resourceVersion": str(version), "annotations": annotations}
        await self.send("BOOKMARK", {"kind": "Pod", "metadata": meta})

    def abort(self) -> None:
        transport = self._reply._req.transport if self._reply._req is not None else None
        if isinstance(transport, asyncio.Transport):
            transport.abort()
