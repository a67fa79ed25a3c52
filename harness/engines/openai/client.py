"""The HTTP client of one replica and one exchange with its server. Hot.

aiohttp, not httpx: receiving one streamed chunk costs httpx 85-97 µs of CPU and aiohttp 18-20 (bare clients against
tests/bench/sse_server.py, 50 streams). Even so, a wake-up and a parse a chunk were too much: after the first fragment the
task sleeps until the answer ends and the connection is parked (park.py). There is no timer a chunk either: the engine's watch
looks at every stream a few times a second and ends those whose byte count stands still (half-open connections).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version

import aiohttp
from yarl import URL

from harness.engines.base import Request
from harness.engines.openai.args import WHERE, OpenAIArgs, read_key
from harness.engines.openai.park import Park, park
from harness.engines.openai.stream import Choice, FirstFragment, StreamError, looks_done, shortened

KEEP_ALIVE_S = 2.0  # uvicorn closes idle connections after 5: a request must not meet one that is being closed
RETRY_AFTER_MOST_S = 30.0
ERROR_BYTES = 4096
PAGE_BYTES = 8 * 2**20
_EVENT_STREAM = ("text/event-stream",)
_JSON = ("application/json",)


@dataclass(slots=True, eq=False)
class Exchange:
    """One request under way, as the watch sees it."""

    request: Request
    begun_s: float = 0.0  # sent
    waited_s: float = 0.0  # as a Retry-After asked
    first_s: float = 0.0  # 0: no fragment yet
    deadline_s: float = 0.0
    bytes_seen: int = 0
    content: aiohttp.StreamReader | None = None
    parked: Park | None = None
    parts: list[bytes] = field(default_factory=list)  # of the answer, in order
    complete: bool = False  # all of the answer is here although the connection stays open
    reason: str = ""  # why the watch ended it
    task: asyncio.Task[None] | None = None


class Client:
    def __init__(self, args: OpenAIArgs, base_url: str) -> None:
        self.base_url = base_url
        self._args = args
        self._limit_bytes = int(args.answer_mib * 2**20)
        path = "/v1/completions" if args.endpoint == "completions" else "/v1/chat/completions"
        self._url = URL(base_url + path)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "User-Agent": f"paceline/{own_version()}"}
        headers |= args.headers
        if args.api_key_env:
            headers["Authorization"] = f"Bearer {read_key(args.api_key_env)}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=args.connect_s, sock_connect=args.connect_s),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=max(self._limit_bytes // 2, 1),
            trust_env=False,
        )

    async def get(self, path: str, within_s: float) -> tuple[int, bytes]:
        """Status and body of a small page; aiohttp.ClientError, OSError and TimeoutError pass through."""
        timeout = aiohttp.ClientTimeout(total=within_s)
        async with self._session.get(URL(self.base_url + path), timeout=timeout) as response:
            page = bytearray()
            async for part in response.content.iter_any():
                page += part
                if len(page) > PAGE_BYTES:
                    raise aiohttp.ClientError(f"the page is longer than {PAGE_BYTES // 2**20} MiB")
            return response.status, bytes(page)

    async def whole(self, exchange: Exchange, body: bytes) -> bytes:
        """An answer that is not streamed."""
        response = await self._accepted(exchange, body, _JSON)
        try:
            return await self._rest(exchange, response.content)
        finally:
            response.close()

    async def streamed(self, exchange: Exchange, body: bytes, on_first: Callable[[Choice], None]) -> bytes:
        """All bytes of the answer; `on_first` is called with the first fragment, when it comes."""
        response = await self._accepted(exchange, body, _EVENT_STREAM)
        try:
            content = response.content
            finder = FirstFragment()
            while True:
                part = await content.readany()
                if not part:
                    return b"".join(exchange.parts)
                exchange.parts.append(part)
                if content.total_bytes > self._limit_bytes:
                    raise self._too_long()
                choice = finder.feed(part)
                if choice is not None:
                    break
            exchange.first_s = time.monotonic()
            on_first(choice)
            exchange.parked = park(response, self._limit_bytes)
            return await self._rest(exchange, content)
        finally:
            if exchange.parked is not None:
                exchange.parked.leave()
            response.close()  # of a complete answer the connection is back in the pool already

    def look(self, exchange: Exchange, now_s: float) -> None:
        """Called by the watch a few times a second: sets `reason`, or `complete`, when there is one."""
        content, parked = exchange.content, exchange.parked
        size = content.total_bytes if content is not None else 0
        if parked is not None:
            size += parked.size
        if size != exchange.bytes_seen:
            exchange.bytes_seen = size
            if size > self._limit_bytes:
                exchange.reason = str(self._too_long())
            elif exchange.first_s:
                exchange.deadline_s = now_s + self._args.read_s
        elif exchange.first_s and content is not None and content.exception() is None:  # it stands still
            if parked is not None:
                parked.leave()
                exchange.bytes_seen = content.total_bytes + parked.size
            if part := content.read_nowait(-1):
                exchange.parts.append(part)
            exchange.complete = looks_done(b"".join(exchange.parts[-3:]))
        if now_s > exchange.deadline_s and not exchange.complete and not exchange.reason:
            if exchange.first_s:
                exchange.reason = f"no further byte within {self._args.read_s:g} s: the stream is half open"
            else:
                exchange.reason = f"no first token within {self._args.first_token_s:g} s"

    async def close(self) -> None:
        await self._session.close()

    # --- inside -------------------------------------------------------------------------------------------------

    async def _accepted(self, exchange: Exchange, body: bytes, content_types: tuple[str, ...]) -> aiohttp.ClientResponse:
        """The response once it is a 200 of the right type. A Retry-After is honoured once: nothing was received by then."""
        headers = None
        if self._args.session_header:
            headers = {self._args.session_header: str(exchange.request.index)}
        exchange.begun_s = time.monotonic()
        while True:
            exchange.deadline_s = time.monotonic() + self._args.first_token_s
            response = await self._session.post(self._url, data=body, headers=headers, allow_redirects=False)
            if response.status == 200 and response.content_type in content_types:
                exchange.content = response.content
                return response
            try:
                wait_s = None if exchange.waited_s else _retry_after_s(response)
                text = shortened(await response.content.read(ERROR_BYTES)) if wait_s is None else ""
            finally:
                response.close()
            if wait_s is None:
                if response.status == 200:
                    raise StreamError(f"content type {response.content_type}, not {content_types[0]}: {text}")
                raise StreamError(f"HTTP {response.status} {response.reason or ''}: {text or 'no text'}")
            exchange.deadline_s = time.monotonic() + wait_s + self._args.first_token_s
            await asyncio.sleep(wait_s)
            exchange.waited_s = max(time.monotonic() - exchange.begun_s, 1e-6)
            exchange.begun_s = time.monotonic()

    async def _rest(self, exchange: Exchange, content: aiohttp.StreamReader) -> bytes:
        """Sleeps until the end of the answer, however many chunks it has."""
        exchange.content = content
        exchange.deadline_s = time.monotonic() + (self._args.read_s if exchange.first_s else self._args.first_token_s)
        try:
            await content.wait_eof()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not exchange.complete or task is None:
                raise
            task.uncancel()
        parked = exchange.parked
        size = content.total_bytes + (parked.size if parked is not None else 0)
        if size > self._limit_bytes:
            raise self._too_long()
        if parked is not None and parked.payload:
            exchange.parts.append(parked.payload)
        exchange.parts.append(content.read_nowait(-1))
        return b"".join(exchange.parts)

    def _too_long(self) -> StreamError:
        return StreamError(f"the answer is longer than {WHERE}.answer_mib = {self._args.answer_mib:g}")


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    """How long the server asks to wait; None when it does not ask, or for longer than a sample should be kept here."""
    asked = response.headers.get("Retry-After", "")
    if response.status not in (429, 503) or not asked:
        return None
    try:
        wait_s = float(asked)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(asked).timestamp() - time.time()
        except ValueError:
            return None
    return max(wait_s, 0.0) if wait_s <= RETRY_AFTER_MOST_S else None


def own_version() -> str:
    try:
        return version("paceline")
    except PackageNotFoundError:  # run from its sources, in an environment of the engine's
        return "unknown"
