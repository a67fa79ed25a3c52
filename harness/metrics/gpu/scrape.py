"""Direct scrape: the exporters' own pages, read by the head, for fleets without a Prometheus (and for the simulated exporter).

All targets at once, each with its own deadline and its own trouble; the round ends in time whoever is silent. Pages are
scanned one after the other and in slices, so that the loop's other work goes on: 512 GPUs x 20 metrics take some 25 ms of CPU,
and most of a second the first time, when every head is new; that is 8 ms at a stretch, the first time 40 ms.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final
from urllib.parse import urlsplit

import httpx
import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.base import MetricInfo, QueryAnswer, Reading, RoleReading, SourceError
from harness.metrics.gpu.http import make_client_of_many, refusal, shown, trouble_of
from harness.metrics.gpu.profiles import Profile, in_use, why_missing, window_s
from harness.metrics.gpu.scan import Scanner, names_on
from harness.metrics.gpu.series import SeriesTable
from harness.metricspec import GpuSourceSpec

AT_ONCE: Final = 32
MOST_PAGE_BYTES: Final = 64 << 20
LINES_A_SLICE: Final = 250
MOST_PAGES_FOR_NAMES: Final = 8
_ACCEPT: Final = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_CHANGES: Final = 8  # that a resolution is taken from
_MOST_PROBLEMS: Final = 6


@dataclass(slots=True)
class _Target:
    url: str
    host: str
    scanner: Scanner
    numbers: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))  # the series of its last page
    changed_unix: float = 0.0
    apart_s: deque[float] = field(default_factory=lambda: deque(maxlen=_CHANGES))  # between pages that differ

    def saw(self, changed: bool, unix: float) -> None:
        if changed:
            if self.changed_unix:
                self.apart_s.append(unix - self.changed_unix)
            self.changed_unix = unix


class ScrapeSource:
    """A MetricsSource. `clock` is the wall clock, in seconds since 1970."""

    def __init__(
        self,
        urls: Sequence[str],
        spec: GpuSourceSpec,
        profiles: Sequence[Profile],
        *,
        kind: str = "scrape",
        name: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.kind = kind
        self.name = name or (f"exporter {urlsplit(urls[0]).netloc}" if len(urls) == 1 else f"{len(urls)} exporters")
        self._spec, self._profiles, self._clock = spec, list(profiles), clock
        self._window_s = window_s(spec.interval_s)
        self._table = SeriesTable(self._profiles, spec.prefix, window_s=self._window_s, ring_s=self._window_s + 60)
        self._targets = [self._target(url) for url in dict.fromkeys(urls)]
        self._client: httpx.AsyncClient | None = None
        self._one_round, self._one_page = asyncio.Lock(), asyncio.Lock()

    async def read(self, roles: Sequence[str]) -> Reading:
        async with self._one_round:
            if not self._targets:
                raise SourceError("setup", "there is no page to read: metrics.gpu.targets is empty")
            now_unix = self._clock()
            failed, problems = await self._scrape_all()
            if len(failed) == len(self._targets):
                raise _of_all(failed)
            self._table.end_round(now_unix := max(now_unix, self._clock()), self._spec.stale_after_s)
            self._thin_out()
            active = in_use(self._profiles, self._table.is_there)
            found = {role: reading for role in roles if (reading := self._role(role, active, now_unix)) is not None}
            missing = {role: self._why_not(role, active) for role in roles if role not in found}
            return Reading(
                now_unix, found, missing, self._resolution_s(), tuple(profile.name for profile in active),
                problems=tuple([*_in_words(failed, len(self._targets)), *problems][:_MOST_PROBLEMS]),
            )  # fmt: skip

    async def query(
        self,
        promql: str,
        start_unix: float | None = None,
        end_unix: float | None = None,
        step_s: float | None = None,
        *,
        most: int = 200,
    ) -> QueryAnswer:
        raise SourceError(
            "setup",
            f"{self.name}: pages are read directly, nobody here answers PromQL; metrics.gpu.url names a Prometheus to ask, "
            "metrics.gpu.with_prometheus = true starts one",
        )

    async def metrics(self) -> list[MetricInfo]:
        """Of one page of each kind (port and path): hosts of a fleet show the same."""
        kinds: dict[tuple[int | None, str], _Target] = {}
        for target in self._targets:
            parts = urlsplit(target.url)
            kinds.setdefault((parts.port, parts.path), target)
        read_by = {
            f"{profile.prefix(self._spec.prefix)}{leaf.metric}": role
            for profile in self._profiles for role, recipe in profile.recipes.items() for step in recipe.steps
            for leaf in step.leaves
        }  # fmt: skip
        told: dict[str, MetricInfo] = {}
        troubles: list[SourceError] = []
        for target in list(kinds.values())[:MOST_PAGES_FOR_NAMES]:
            try:
                body = await self._page(target)
            except SourceError as trouble:
                troubles.append(trouble)
                continue
            for name, (kind, help_text) in (await asyncio.to_thread(names_on, body)).items():
                roles = (read_by[name],) if name in read_by else ()
                told.setdefault(name, MetricInfo(name, kind, help_text, roles))
        if troubles and not told:
            raise troubles[0]
        return sorted(told.values(), key=lambda info: info.name)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    # --- pages --------------------------------------------------------------------------------------------------

    def _target(self, url: str) -> _Target:
        host = urlsplit(url).hostname or ""
        return _Target(url, host, Scanner(self._table.wanted, self._table.admit(host)))

    async def _scrape_all(self) -> tuple[list[SourceError], list[str]]:
        """Who failed, and what else is wrong with pages. Ends within the source's timeout."""
        gate = asyncio.Semaphore(AT_ONCE)
        tasks = {asyncio.create_task(self._scrape(target, gate)): target for target in self._targets}
        failed: list[SourceError] = []
        problems: list[str] = []
        try:
            await asyncio.wait(tasks, timeout=self._spec.timeout_s)
        finally:
            for task in tasks:
                task.cancel()  # who is done does not mind
        for task, outcome in zip(tasks, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
            if isinstance(outcome, SourceError):
                failed.append(outcome)
            elif isinstance(outcome, BaseException):
                if isinstance(outcome, asyncio.CancelledError):
                    failed.append(trouble_of(TimeoutError(), tasks[task].url))
                else:
                    text = f"{shown(tasks[task].url)} cannot be read: {type(outcome).__name__}: {outcome}"
                    failed.append(SourceError("bad_answer", text))
            elif outcome:
                problems.append(outcome)
        return failed, problems

    async def _scrape(self, target: _Target, gate: asyncio.Semaphore) -> str:
        """Returns what is wrong with the page, "" for nothing."""
        async with gate:
            asked_unix = self._clock()
            body = await self._page(target)
        async with self._one_page:  # a slice of each of 64 pages would be one long stretch
            lines = target.scanner.begin(body)
            for first in range(0, len(lines), LINES_A_SLICE):
                target.scanner.feed(lines[first : first + LINES_A_SLICE])
                await asyncio.sleep(0)
        page = target.scanner.end()
        target.numbers, changed = self._table.put(page, target.numbers, asked_unix)
        target.saw(changed, asked_unix)
        if not body.strip():
            return f"{shown(target.url)} is an empty page (an exporter whose agent is late shows one)"
        if not len(target.numbers):
            return f"{shown(target.url)} shows no metric that a profile knows"
        return f"{page.broken} lines of {shown(target.url)} are not in the format of Prometheus" if page.broken else ""

    async def _page(self, target: _Target) -> bytes:
        if self._client is None:
            self._client = make_client_of_many(self._spec, accept=_ACCEPT)
        # Packing a page costs more CPU than sending it within one machine.
        headers = {"Accept-Encoding": "identity"} if target.host in _LOOPBACK else None
        try:
            async with asyncio.timeout(self._spec.timeout_s), self._client.stream("GET", target.url, headers=headers) as answer:
                if answer.status_code != 200:
                    raise refusal(answer, self._spec)
                if answer.headers.get("content-type", "").startswith("text/html"):
                    raise SourceError("bad_answer", f"{shown(target.url)} is a page for people (HTML), not for Prometheus")
                return await _bounded(answer, target.url)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError) as error:
            raise trouble_of(error, target.url) from None

    def _thin_out(self) -> None:
        """Labels come and go with pods and jobs; what no page has had for long is dropped."""
        alive = sum(len(target.numbers) for target in self._targets)
        heads = sum(len(target.scanner.known) for target in self._targets)
        if len(self._table) <= 2 * alive + 2000 and heads <= 3 * alive + 20_000:
            return
        renumbered = self._table.thin_out(np.unique(np.concatenate([target.numbers for target in self._targets])))
        for target in self._targets:
            target.numbers = renumbered[target.numbers]
            kept = ((head, int(renumbered[n])) for head, n in target.scanner.known.items() if n >= 0)
            target.scanner.known = {head: number for head, number in kept if number >= 0}

    # --- roles --------------------------------------------------------------------------------------------------

    def _role(self, role: str, active: Sequence[Profile], now_unix: float) -> RoleReading | None:
        parts = [part for profile in active if (part := self._table.role(profile, role, now_unix)) is not None]
        if len(parts) < 2:
            return parts[0] if parts else None
        return RoleReading(
            [key for part in parts for key in part.keys],
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.unix for part in parts]),
            ", ".join(part.metric for part in parts),
        )

    def _why_not(self, role: str, active: Sequence[Profile]) -> str:
        if any(self._table.may_come(profile, role) for profile in active):
            return "it is a change over time: known from the next rounds on"
        return why_missing(role, active, self._spec.prefix)

    def _resolution_s(self) -> float:
        """How far apart pages are that differ; exporters keep theirs for 15 to 60 s."""
        seen = [fmean(target.apart_s) for target in self._targets if target.apart_s]
        return max(self._spec.interval_s, median(seen)) if seen else self._spec.interval_s


async def _bounded(answer: httpx.Response, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in answer.aiter_bytes():
        size += len(part)
        if size > MOST_PAGE_BYTES:
            raise SourceError("bad_answer", f"{shown(url)} has more than {MOST_PAGE_BYTES >> 20} MiB: is it an exporter's page?")
        parts.append(part)
    return b"".join(parts)


def _of_all(failed: Sequence[SourceError]) -> SourceError:
    if len(failed) == 1:
        return failed[0]
    worst = next((one for one in failed if not one.passing), failed[0])
    return SourceError(worst.trouble, f"none of {len(failed)} exporters answers: {worst}", worst.retry_after_s)


def _in_words(failed: Sequence[SourceError], targets: int) -> list[str]:
    if not failed:
        return []
    troubles = Counter(one.trouble for one in failed)
    kinds = ", ".join(f"{count} {trouble}" for trouble, count in troubles.most_common())
    return [f"{len(failed)} of {targets} exporters do not answer ({kinds})", *(str(one) for one in failed[:_MOST_PROBLEMS])]
