"""Requests to the API server and streams from it, over one httpx client; credentials by access.py.

Every refusal is an ApiProblem, which is a ClusterError. Nothing is repeated here but a read over a connection that the
server had closed, and a request once after a 401 with credentials read anew. One connection belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec

from harness.cluster.kube import problems
from harness.cluster.kube.access import Access
from harness.cluster.kube.problems import ApiProblem

Raw = dict[str, Any]
Raws = list[Raw]
Query = Mapping[str, str | int | float]

_LONGEST_LINE = 256 * 1024
# Notices within about 30 s that the other side is gone without a word, also on streams that may be silent for long.
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class Connection:
    def __init__(self, access: Access, *, timeout_s: float) -> None:
        self.access, self.timeout_s = access, timeout_s
        self._client: httpx.AsyncClient | None = None
        self._made_with: object = None
        self._retired: list[httpx.AsyncClient] = []

    async def close(self) -> None:
        clients = [*self._retired, *([self._client] if self._client else [])]
        self._retired, self._client = [], None
        for client in clients:
            await client.aclose()

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
            sentence = f"{server} is no API server: its reply to {method} {path} is not JSON; {problems.CHECK_SERVER}"
            raise ApiProblem(0, "NotJson", sentence) from problem
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
            if reply.status_code == 401 and not renewed and await self._has_others_than(headers):
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

    async def _has_others_than(self, refused: dict[str, str]) -> bool:
        """Credentials: read anew now, or by another request that was refused at the same time."""
        if await asyncio.to_thread(self.access.renew):
            return True
        return (await asyncio.to_thread(self.access.headers)).get("Authorization") != refused.get("Authorization")

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
