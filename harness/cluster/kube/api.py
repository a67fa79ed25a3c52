"""One-shot requests to the API server, and the two streams: watches and logs.

All over one httpx client, credentials by access.py. The `kubernetes` package could do the writes in a thread; it is not
used for them, because it checks what it creates against its own models (a field newer than the package cannot be sent), a
thread cannot be cancelled, and there would be two settings of TLS, time-outs and refusals. What remains is paths.

Every refusal is an ApiProblem, which is a ClusterError. Nothing is repeated here but a read over a connection that the
server had closed, and a request once after a 401 with credentials read anew. One Api belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, Self, TypeVar

import httpx
import msgspec

from harness.cluster.kube import names, problems
from harness.cluster.kube.access import Access
from harness.cluster.kube.problems import ApiProblem, Cause
from harness.cluster.kube.resources import ACCESS_REVIEWS, Allowed, Rule, Rules, path_of, resource_of

__all__ = ["Allowed", "Api", "ApiProblem", "Cause", "Rules", "once", "path_of", "resource_of"]

T = TypeVar("T")
Raw = dict[str, Any]
Raws = list[Raw]
Query = Mapping[str, str | int | float]
Propagation = Literal["Foreground", "Background", "Orphan"]

_PAGE = 500
_LONGEST_LINE = 256 * 1024
_PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
# Notices within about 30 s that the other side is gone without a word, also on streams that may be silent for long.
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class Api:
    def __init__(self, access: Access, namespace: str | None = None, *, timeout_s: float = 10.0) -> None:
        self.access, self.timeout_s = access, timeout_s
        self.namespace = namespace or access.namespace
        self._client: httpx.AsyncClient | None = None
        self._made_with: object = None
        self._retired: list[httpx.AsyncClient] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        clients = [*self._retired, *([self._client] if self._client else [])]
        self._retired, self._client = [], None
        for client in clients:
            await client.aclose()

    # --- objects ---------------------------------------------------------------------------------------------------

    async def get(self, kind: str, name: str, *, namespace: str | None = None) -> Raw:
        return await self.request("GET", self.path(kind, name, namespace=namespace), what=_what(kind, name))

    async def list(self, kind: str, *, selector: str = "", fields: str = "", namespace: str | None = None) -> Raws:
        """All of them, page by page. `namespace` "*": of the whole cluster."""
        found: Raws = []
        async for page in self.pages(kind, selector=selector, fields=fields, namespace=namespace):
            found += page.get("items") or []
        return found

    async def pages(self, kind: str, *, selector: str = "", fields: str = "", namespace: str | None = None) -> AsyncIterator[Raw]:
        """The list's pages; the last one's metadata.resourceVersion is where a watch goes on."""
        query: dict[str, str | int | float] = _selected(selector, fields) | {"limit": _PAGE}
        while True:
            page = await self.request("GET", self.path(kind, namespace=namespace), query, what=resource_of(kind).plural)
            yield page
            query["continue"] = str((page.get("metadata") or {}).get("continue") or "")
            if not query["continue"]:
                return

    async def create(self, obj: Raw, *, dry_run: bool = False) -> Raw:
        kind, name, namespace = _named(obj)
        query = _dry(dry_run) | {"fieldManager": names.FIELD_MANAGER}
        path = self.path(kind, namespace=namespace, version=str(obj.get("apiVersion") or ""))
        return await self.request("POST", path, query, obj, what=_what(kind, name))

    async def apply(self, obj: Raw, *, dry_run: bool = False, force: bool = True) -> Raw:
        """Server-side apply: creates it or changes what is ours of it. Returns the object as the server has it."""
        kind, name, namespace = _named(obj)
        query = _dry(dry_run) | {"fieldManager": names.FIELD_MANAGER, "force": "true" if force else "false"}
        path = self.path(kind, name, namespace=namespace, version=str(obj.get("apiVersion") or ""))
        return await self.request("PATCH", path, query, obj, what=_what(kind, name), content="application/apply-patch+yaml")

    async def patch(
        self,
        kind: str,
        name: str,
        change: Raw | Raws,
        *,
        how: Literal["merge", "strategic", "json"] = "merge",
        subresource: str = "",
        dry_run: bool = False,
        namespace: str | None = None,
    ) -> Raw:
        query = _dry(dry_run) | {"fieldManager": names.FIELD_MANAGER}
        path = self.path(kind, name, subresource, namespace=namespace)
        return await self.request("PATCH", path, query, change, what=_what(kind, name), content=_PATCHES[how])

    async def delete(
        self,
        kind: str,
        name: str,
        *,
        uid: str = "",
        propagation: Propagation = "Foreground",
        grace_s: int | None = None,
        dry_run: bool = False,
        namespace: str | None = None,
    ) -> None:
        """Foreground: what it owns goes before it. The API's own default would orphan the pods of a Job. `uid`: only if it
        is still that one. An object that is gone already is ApiProblem.not_found."""
        options: Raw = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = self.path(kind, name, namespace=namespace)
        await self.request("DELETE", path, _dry(dry_run), options, what=_what(kind, name))

    # --- pods ------------------------------------------------------------------------------------------------------

    async def evict(
        self, pod: str, *, uid: str = "", grace_s: int | None = None, dry_run: bool = False, namespace: str | None = None
    ) -> None:
        """policy/v1 Eviction: goes only as the pod's disruption budget allows. 429 with `ApiProblem.budget`: not now."""
        namespace = namespace or self.namespace
        options: Raw = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if dry_run:
            options["dryRun"] = ["All"]
        meta = {"name": pod, "namespace": namespace}
        body: Raw = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        if options:
            body["deleteOptions"] = options
        path = self.path("Pod", pod, "eviction", namespace=namespace)
        await self.request("POST", path, {}, body, what=_what("Pod", pod), act="evict")

    async def log(
        self,
        pod: str,
        *,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        timestamps: bool = False,
        since_time: str = "",
        tail_lines: int | None = None,
        namespace: str | None = None,
    ) -> AsyncIterator[str]:
        """Lines without their ends. With `follow` until the container has ended. `since_time` is RFC 3339."""
        query: dict[str, str | int | float] = {}
        for name, on in (("follow", follow), ("previous", previous), ("timestamps", timestamps)):
            if on:
                query[name] = "true"
        query |= {"container": container} if container else {}
        query |= {"sinceTime": since_time} if since_time else {}
        query |= {"tailLines": tail_lines} if tail_lines is not None else {}
        path = self.path("Pod", pod, "log", namespace=namespace)
        async with self.stream(path, query, what=f"the log of {_what('Pod', pod)}", silence_s=None if follow else 60.0) as chunks:
            async for line in lines_of(chunks):
                yield line.decode("utf-8", "replace")

    # --- rights and abilities --------------------------------------------------------------------------------------

    async def can_i(
        self,
        verb: str,
        resource: str,
        group: str = "",
        *,
        subresource: str = "",
        name: str = "",
        namespace: str | None = None,
    ) -> Allowed:
        """`namespace` "" asks for the whole cluster, None for the Api's own. Needs no right."""
        resource, _, sub = resource.partition("/")
        attributes = {
            "namespace": self.namespace if namespace is None else namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource or sub,
            "name": name,
        }
        spec = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
        body: Raw = {"apiVersion": ACCESS_REVIEWS, "kind": "SelfSubjectAccessReview", "spec": spec}
        found = await self.request("POST", f"/apis/{ACCESS_REVIEWS}/selfsubjectaccessreviews", {}, body, what="an access review")
        status = found.get("status") or {}
        return Allowed(status.get("allowed") is True, str(status.get("reason") or status.get("evaluationError") or ""))

    async def rules(self, *, namespace: str | None = None) -> Rules:
        spec = {"namespace": namespace or self.namespace}
        body: Raw = {"apiVersion": ACCESS_REVIEWS, "kind": "SelfSubjectRulesReview", "spec": spec}
        found = await self.request("POST", f"/apis/{ACCESS_REVIEWS}/selfsubjectrulesreviews", {}, body, what="a rules review")
        status = found.get("status") or {}
        keys = ("verbs", "apiGroups", "resources", "resourceNames")
        rules = [Rule(*(frozenset(rule.get(key) or ()) for key in keys)) for rule in status.get("resourceRules") or ()]
        return Rules(rules, status.get("incomplete") is True)

    async def groups(self) -> dict[str, tuple[str, ...]]:
        """API groups other than the core, each with its versions."""
        found = await self.request("GET", "/apis", what="the API groups")
        return {
            str(group.get("name")): tuple(str(v.get("version")) for v in group.get("versions") or ())
            for group in found.get("groups") or ()
        }

    async def has_group(self, group: str, version: str = "") -> bool:
        versions = (await self.groups()).get(group)
        return versions is not None and (not version or version in versions)

    async def version(self) -> str:
        """As in v1.36.2."""
        return str((await self.request("GET", "/version", what="the server's version")).get("gitVersion") or "unknown")

    # --- requests --------------------------------------------------------------------------------------------------

    def path(self, kind: str, name: str = "", subresource: str = "", *, namespace: str | None = None, version: str = "") -> str:
        """`namespace` None: the Api's own; "*": all of them."""
        return path_of(kind, name, subresource, namespace=namespace or self.namespace, version=version)

    async def request(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        body: Raw | Raws | None = None,
        *,
        what: str = "",
        act: str = "",
        content: str = "application/json",
        timeout_s: float | None = None,
    ) -> Raw:
        """The reply's JSON object. `what` and `act` go into the sentence of an ApiProblem. Raises ClusterError."""
        within_s = timeout_s or self.timeout_s
        raw = await self._replied(method, path, query, body, what or path, act, content, within_s)
        try:
            found = msgspec.json.decode(raw) if raw else {}
        except msgspec.DecodeError as problem:
            server = self.access.server
            raise ApiProblem(0, "NotJson", f"{server} is no API server: its reply to {method} {path} is not JSON") from problem
        return found if isinstance(found, dict) else {}

    async def _replied(
        self, method: str, path: str, query: Query | None, body: object, what: str, act: str, content: str, within_s: float
    ) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        renewed = read_again = False
        while True:
            client, headers = await self._ready()
            if data is not None:
                headers["Content-Type"] = content
            try:
                async with asyncio.timeout(within_s):
                    reply = await client.request(
                        method, path, params=dict(query or {}), content=data, headers=headers, extensions=self._extensions()
                    )
            except (httpx.RemoteProtocolError, httpx.ReadError) as problem:
                if method == "GET" and not read_again:
                    read_again = True  # the server closed the connection just when we used it again
                    continue
                raise problems.of_silence(self.access.server, act or method, what, problem, within_s) from problem
            except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as problem:
                raise problems.of_silence(self.access.server, act or method, what, problem, within_s) from problem
            if reply.is_success:
                return reply.content
            if reply.status_code == 401 and not renewed and await asyncio.to_thread(self.access.renew):
                renewed = True
                continue
            raise problems.of_reply(act or method, what, reply.status_code, reply.content, reply.headers, self.access.origin)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Query, *, what: str, reply_s: float | None = None, silence_s: float | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The chunks of a reply, which are no lines. Broken off, it is an ApiProblem of code 0 with a reason: `NoReply` no
        connection, `TimedOut` no reply began within `reply_s`, `Silence` nothing more came for `silence_s`, `Cut`. A 401 renews
        the credentials for the next connect."""
        client, headers = await self._ready()
        wait = httpx.Timeout(self.timeout_s, read=silence_s)
        request = client.build_request(
            "GET", path, params=dict(query), headers=headers, timeout=wait, extensions=self._extensions()
        )
        server = self.access.server
        try:
            async with asyncio.timeout(reply_s):
                reply = await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as problem:
            raise problems.of_silence(server, "GET", what, problem, reply_s or self.timeout_s) from problem
        try:
            if not reply.is_success:
                body = await reply.aread()
                if reply.status_code == 401:
                    await asyncio.to_thread(self.access.renew)
                raise problems.of_reply("GET", what, reply.status_code, body, reply.headers, self.access.origin)
            yield reply.aiter_bytes()
        except httpx.ReadTimeout as problem:
            raise ApiProblem(0, "Silence", f"the API server {server} has said nothing for {silence_s:g} s ({what})") from problem
        except (httpx.HTTPError, httpx.StreamError, ssl.SSLError) as problem:
            raise ApiProblem(0, "Cut", f"the connection to the API server {server} broke off ({what})") from problem
        finally:
            await reply.aclose()

    def _extensions(self) -> dict[str, str]:
        name = self.access.tls_server_name
        return {"sni_hostname": name} if name else {}

    async def _ready(self) -> tuple[httpx.AsyncClient, dict[str, str]]:
        """The client, made anew when certificates have changed, and the headers of now."""
        headers = await asyncio.to_thread(self.access.headers)
        secured = await asyncio.to_thread(self.access.ssl_context)
        if self._client is None or self._made_with is not secured:
            if self._client is not None:
                self._retired.append(self._client)  # streams over it go on
            self._client, self._made_with = self._made(secured), secured
        return self._client, headers

    def _made(self, secured: Any) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(
            verify=secured if secured is not None else False,  # plain HTTP has nothing to verify
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=30.0),
            proxy=self.access.proxy,
            socket_options=_KEEP_ALIVE,
        )
        return httpx.AsyncClient(
            base_url=self.access.server,
            transport=transport,
            timeout=self.timeout_s,
            trust_env=False,  # access.py has asked the environment
            headers={"Accept": "application/json", "User-Agent": "paceline"},
        )


def once(access: Access, do: Callable[[Api], Awaitable[T]], *, namespace: str | None = None, timeout_s: float = 10.0) -> T:
    """For commands: `once(access, lambda api: api.version())`, blocking. Raises ClusterError."""

    async def run() -> T:
        async with Api(access, namespace, timeout_s=timeout_s) as api:
            return await do(api)

    return asyncio.run(run())


async def lines_of(chunks: AsyncIterator[bytes], longest: int = _LONGEST_LINE) -> AsyncIterator[bytes]:
    """Chunks of a stream may end anywhere, also inside a character. A longer line is handed on in parts; the rest at the end
    is a line as well."""
    parts: list[bytes] = []
    held = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        held += len(first)
        if others:
            yield b"".join(parts)
            for line in others[:-1]:
                yield line
            parts, held = [others[-1]], len(others[-1])
        if held > longest:
            yield b"".join(parts)
            parts, held = [], 0
    if held:
        yield b"".join(parts)


# --- details -----------------------------------------------------------------------------------------------------------


def _named(obj: Raw) -> tuple[str, str, str | None]:
    meta = obj.get("metadata") or {}
    return str(obj.get("kind") or ""), str(meta.get("name") or meta.get("generateName") or ""), meta.get("namespace")


def _what(kind: str, name: str) -> str:
    return f"{kind[:1].lower()}{kind[1:]} {name}".strip()


def _selected(selector: str, fields: str) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {"labelSelector": selector} if selector else {}
    if fields:
        found["fieldSelector"] = fields
    return found


def _dry(on: bool) -> dict[str, str | int | float]:
    return {"dryRun": "All"} if on else {}
