"""One page over HTTP, for whoever scrapes: an asyncio server that answers GET and HEAD of one path and closes the connection.

By hand because each worker of a node has one: the HTTP libraries we have cost 200 ms of CPU to import, and a thread beside the
loop would be forked into replicas. Nothing but the page is served, and no request body is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from http import HTTPStatus

Render = Callable[[str], tuple[bytes, str]]  # the Accept header → body and content type

_MOST_HEADER_BYTES = 16_384
_PATIENCE_S = 5.0
_MOST_AT_ONCE = 16

log = logging.getLogger("paceline.page")


class PageServer:
    def __init__(self, render: Render, path: str = "/metrics") -> None:
        """`render` runs in the loop; when it raises, the answer is a 500 and the log tells."""
        self._render, self._path = render, path
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> str:
        """Listen (port 0: a free one) and return the page's URL. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, host or None, port, limit=_MOST_HEADER_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
        return f"http://{shown}:{port}{self._path}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_PATIENCE_S):
                writer.write(self._answer(await _head_of(reader)))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or does not speak HTTP
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"GET only\n", "text/plain")
        if path != self._path:
            return _response(HTTPStatus.NOT_FOUND, f"only {self._path} is here\n".encode(), "text/plain")
        if self._open > _MOST_AT_ONCE:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, b"too many requests at once\n", "text/plain")
        try:
            body, kind = self._render(headers.get("accept", ""))
        except Exception:
            log.exception("the page could not be made")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, b"see the log\n", "text/plain")
        return _response(HTTPStatus.OK, body, kind, with_body=method == "GET")


async def _head_of(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n")


def _response(status: HTTPStatus, body: bytes, kind: str, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
