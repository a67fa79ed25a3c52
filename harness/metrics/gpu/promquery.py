"""Asks a Prometheus API: instant and range queries, names of metrics. Answers with SourceError or with what was found.

Queries travel as POST bodies, which have no limit of length. Live rounds (`vector`) are one at a time and skip instead of
queueing; after an unreachable or overloaded server they cost nothing until a growing, jittered pause is over. People's
queries are always tried, two at a time, and their slowness does not make the live rounds pause.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx

from harness.metrics.gpu import promanswer
from harness.metrics.gpu.base import MetricInfo, QueryAnswer, SourceError
from harness.metrics.gpu.http import make_client, refusal, trouble_of
from harness.metrics.gpu.promanswer import Sample
from harness.metricspec import GpuSourceSpec

MOST_POINTS: Final = 11_000  # steps of a range that Prometheus allows
MOST_BYTES: Final = 16 << 20  # of an answer, unpacked: the head's loop decodes it
MOST_SERIES: Final = 200
_IN_THREAD_BYTES: Final = 256 << 10
_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
_MOST_DOUBLINGS: Final = 10  # a server may be down for days
_OWN_TIME: Final = 0.9  # of the time-out, for the server: so that it says itself that it was too slow

T = TypeVar("T")


class Breaker:
    """When a server that failed is asked again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures, self._until_s = 0, 0.0
        self._last: SourceError | None = None

    def check(self) -> None:
        """Raises the last failure while its pause lasts."""
        left_s = self._until_s - self._clock()
        if self._last is not None and left_s > 0:
            raise SourceError(self._last.trouble, str(self._last), left_s)

    def failed(self, error: SourceError) -> None:
        if not error.passing:
            return
        pause_s = min(_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S) * random.uniform(0.75, 1.25)
        self._failures = min(self._failures + 1, _MOST_DOUBLINGS)
        self._until_s = self._clock() + max(pause_s, min(error.retry_after_s, _LONGEST_PAUSE_S))
        self._last = error

    def succeeded(self) -> None:
        self._failures, self._last = 0, None


class PromClient:
    def __init__(self, spec: GpuSourceSpec, clock: Callable[[], float] = time.monotonic) -> None:
        """Opens nothing yet. Raises SourceError (setup) when certificates cannot be loaded."""
        if spec.url is None:
            raise SourceError("setup", "metrics.gpu.url is not set: the Prometheus to ask, as in http://prometheus:9090")
        self._spec, self._base = spec, spec.url.rstrip("/")
        self.name = f"Prometheus {urlsplit(self._base).netloc}"
        self._http = make_client(spec)
        self._live, self._peoples = asyncio.Lock(), asyncio.Semaphore(2)
        self._breaker = Breaker(clock)

    async def vector(self, query: str) -> tuple[list[Sample], tuple[str, ...]]:
        """Of a live round: samples as they came, and warnings."""
        return await self._live_round(query, lambda body: promanswer.vector(body, self.name))

    async def raw_samples(self, query: str) -> QueryAnswer:
        """Of a live round too: anything else than a vector."""
        return await self._live_round(query, lambda body: promanswer.answer(body, self.name, most=MOST_SERIES))

    async def _live_round(self, query: str, decode: Callable[[bytes], T]) -> T:
        """Fails at once while another is under way, or while a failure's pause lasts."""
        if self._live.locked():
            raise SourceError("overloaded", f"{self.name} has not answered the last round yet")
        self._breaker.check()
        async with self._live:
            try:
                found = decode(await self._post("query", {"query": query}, query))
            except SourceError as error:
                self._breaker.failed(error)
                raise
        self._breaker.succeeded()
        return found

    def gave_up(self, error: SourceError) -> None:
        """Whoever asks has ended a live round itself."""
        self._breaker.failed(error)

    async def instant(self, query: str, at_unix: float | None = None, *, most: int = MOST_SERIES) -> QueryAnswer:
        """`at_unix` None: the server's now."""
        asked = {"query": query} if at_unix is None else {"query": query, "time": f"{at_unix:.3f}"}
        return await self._answer("query", asked, most=most)

    async def range(self, query: str, start: float, end: float, step: float, *, most: int = MOST_SERIES) -> QueryAnswer:
        """Both ends fall back to multiples of the step, so that a chart which is asked for again has the same points."""
        if not (math.isfinite(start) and math.isfinite(end) and start < end and step > 0):
            raise SourceError(
                "bad_query", f"a range needs a start before its end and a step above 0, not {start} to {end} by {step} s"
            )
        step_ms = max(math.ceil(step * 1000), math.ceil((end - start) * 1000 / (MOST_POINTS - 1)))
        first_ms, last_ms = (math.floor(moment * 1000 / step_ms) * step_ms for moment in (start, end))
        asked = {"query": query, "start": _seconds(first_ms), "end": _seconds(last_ms), "step": _seconds(step_ms)}
        return await self._answer("query_range", asked, most=most, step_s=step_ms / 1000)

    async def series_names(self) -> list[MetricInfo]:
        """Names of the last day, with types and helps where the server tells them (a proxy may not)."""
        async with self._peoples:
            since = {"start": _seconds(round((time.time() - 86_400) * 1000))}
            if self._spec.matchers:
                since["match[]"] = f"{{{self._spec.matchers}}}"
            found = promanswer.names(await self._request("GET", "label/__name__/values", since, ""), self.name)
            try:
                told = promanswer.metadata(await self._request("GET", "metadata", {"limit": "20000"}, ""), self.name)
            except SourceError as error:
                if error.passing:
                    raise
                told = {}
        return [MetricInfo(name, *told.get(name, ("", ""))) for name in sorted(found)]

    async def close(self) -> None:
        await self._http.aclose()

    async def _answer(self, path: str, asked: Mapping[str, str], *, most: int, step_s: float = 0.0) -> QueryAnswer:
        async with self._peoples:
            body = await self._post(path, asked, asked["query"])
        self._breaker.succeeded()
        if len(body) < _IN_THREAD_BYTES:
            return promanswer.answer(body, self.name, most=most, step_s=step_s)
        return await asyncio.to_thread(promanswer.answer, body, self.name, most=most, step_s=step_s)

    async def _post(self, path: str, asked: Mapping[str, str], query: str) -> bytes:
        timeout_ms = math.ceil(self._spec.timeout_s * 1000 * _OWN_TIME)
        return await self._request("POST", path, {**asked, "timeout": f"{timeout_ms}ms"}, query)

    async def _request(self, method: str, path: str, fields: Mapping[str, str], query: str) -> bytes:
        url = f"{self._base}/api/v1/{path}"
        sent: dict[str, Mapping[str, str]] = {"data": fields} if method == "POST" else {"params": fields}
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                async with self._http.stream(method, url, **sent) as response:  # type: ignore[arg-type]
                    body = await self._body(response)
        except TimeoutError as error:
            text = f"{self.name} has not answered within {self._spec.timeout_s:g} s (metrics.gpu.timeout_s)"
            raise SourceError("timeout", text) from error
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise self._broken_off(error) from error
        if response.status_code == 200:
            return body
        raise self._refusal(response, body, query)

    def _broken_off(self, error: Exception) -> SourceError:
        """A server that wants a client certificate may close so fast that its alert is lost."""
        trouble = trouble_of(error, self._base)
        fast = isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError))
        if fast and trouble.passing and self._base.startswith("https:") and self._spec.cert_file is None:
            return SourceError(trouble.trouble, f"{trouble}; it may want a client certificate: metrics.gpu.cert_file")
        return trouble

    def _refusal(self, response: httpx.Response, body: bytes, query: str) -> SourceError:
        bad_query = promanswer.refused_query(response.status_code, body, self.name, query)
        if bad_query is not None:
            return bad_query
        said = promanswer.said_in(body)
        if response.status_code == 404:
            where = "metrics.gpu.url ends before /api/v1 and has the server's path prefix, if it has one"
            said = f"{said}; {where}" if said else where
        return refusal(response, self._spec, said)

    async def _body(self, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                cure = "aggregate the query (sum by, topk), or take fewer points"
                text = f"the answer of {self.name} is larger than {MOST_BYTES >> 20} MiB: {cure}"
                raise SourceError("bad_query", text)
        return b"".join(parts)


def _seconds(moment_ms: int) -> str:
    return f"{moment_ms / 1000:.3f}"
