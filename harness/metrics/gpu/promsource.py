"""GPU metrics from a Prometheus API: roles through profiles, aggregated by the server, one query a round and profile.

Which profiles apply is asked by their probe metrics, again on every slow tick and as long as none is found; which roles are
asked for, and how often, is whose wish it is. A query that the server cannot compute is asked part by part, so that one broken
recipe costs one role and not the round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from harness.metrics.gpu.base import Curve, MetricInfo, QueryAnswer, Reading, RoleReading, SourceError
from harness.metrics.gpu.profiles import Profile, in_use, why_missing, window_s
from harness.metrics.gpu.promanswer import Sample
from harness.metrics.gpu.promquery import MOST_SERIES, PromClient
from harness.metrics.gpu.promround import Columns, Part, ProfileRounds, mark_of, marked
from harness.metrics.gpu.roles import ROLES
from harness.metricspec import GpuSourceSpec

_RAW_S: Final = 300.0  # of samples that tell how often they come: five of the slowest sources
_CHART_POINTS: Final = 300
_SKEW_S: Final = 2.0  # between our clock and the server's: less is latency
_MOST_WARNINGS: Final = 8


@dataclass
class _Kept:
    """What is carried from round to round for one profile."""

    rounds: ProfileRounds
    broken: dict[str, str] = field(default_factory=dict)  # role → what the server said of its query
    resolution_s: float = float("nan")


class PromqlSource:
    kind = "promql"

    def __init__(
        self,
        spec: GpuSourceSpec,
        profiles: Sequence[Profile],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = PromClient(spec, clock)
        self.name = self._client.name
        self._spec, self._clock, self._now = spec, clock, now
        self._profiles = list(profiles)
        self._kept = {one.name: _Kept(ProfileRounds(one, spec.matchers, spec.prefix)) for one in self._profiles}
        self._active: list[Profile] = []
        self._slow_due_s = float("-inf")

    # --- rounds --------------------------------------------------------------------------------------------------

    async def read(self, roles: Sequence[str]) -> Reading:
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                return await self._read(roles)
        except TimeoutError as error:
            text = f"{self.name} has not answered all of a round within {self._spec.timeout_s:g} s (metrics.gpu.timeout_s)"
            late = SourceError("timeout", text)
            self._client.gave_up(late)
            raise late from error

    async def _read(self, roles: Sequence[str]) -> Reading:
        asked_unix, warnings = self._now(), list[str]()
        slow_tick = self._clock() >= self._slow_due_s
        if slow_tick or not self._active:
            self._active = await self._detect(warnings)
        found: dict[str, list[RoleReading]] = {}
        for profile in self._active:
            for role, reading in (await self._round(self._kept[profile.name], roles, slow_tick, warnings)).items():
                found.setdefault(role, []).append(reading)
        if slow_tick and self._active:
            self._slow_due_s = self._clock() + self._spec.slow_interval_s
        together = {role: _together(readings) for role, readings in found.items()}
        return Reading(
            asked_unix,
            together,
            {role: self._why_missing(role) for role in roles if role not in together},
            self._resolution_s(),
            tuple(profile.name for profile in self._active),
            tuple(dict.fromkeys(warnings))[:_MOST_WARNINGS],
            () if self._active else (self._nothing_found(),),
        )

    async def _detect(self, warnings: list[str]) -> list[Profile]:
        probes = [marked(one.probe_promql(self._spec.matchers, self._spec.prefix), one.name) for one in self._profiles]
        if not probes:
            return []
        samples, told = await self._client.vector(" or ".join(probes))
        warnings += told
        there = {mark_of(sample) for sample in samples}
        return in_use(self._profiles, lambda profile: profile.name in there)

    async def _round(self, kept: _Kept, roles: Iterable[str], slow_tick: bool, warnings: list[str]) -> dict[str, RoleReading]:
        rounds = kept.rounds
        if slow_tick:
            kept.broken.clear()
        asked = [role for role in roles if role in rounds.profile.recipes and role not in kept.broken]
        found: dict[str, RoleReading] = {}
        asked_unix = self._now()
        if parts := rounds.parts(asked, window_s(kept.resolution_s)):
            samples = await self._answers(parts, kept, warnings)
            columns = await self._columns(rounds, samples, asked_unix, warnings)
            found = {role: reading for role in asked if (reading := rounds.role(role, columns)) is not None}
        if found and (slow_tick or np.isnan(kept.resolution_s)):
            await self._see_resolution(kept)
        return found

    async def _answers(self, parts: Sequence[Part], kept: _Kept, warnings: list[str]) -> list[Sample]:
        try:
            samples, told = await self._client.vector(" or ".join(part.promql for part in parts))
        except SourceError as error:
            if error.trouble != "bad_query" or len(parts) == 1:
                raise
            return await self._apart(parts, kept, warnings)
        warnings += told
        return samples

    async def _apart(self, parts: Sequence[Part], kept: _Kept, warnings: list[str]) -> list[Sample]:
        """Which part is it? The others are answered; its roles are left alone until the next slow tick."""
        samples: list[Sample] = []
        for part in parts:
            try:
                more, told = await self._client.vector(part.promql)
            except SourceError as error:
                if error.trouble != "bad_query":
                    raise
                kept.broken.update(dict.fromkeys(part.roles, str(error)))
                warnings.append(f"{kept.rounds.profile.title}: {error}")
                continue
            samples += more
            warnings += told
        return samples

    async def _columns(self, rounds: ProfileRounds, samples: Sequence[Sample], asked_unix: float, warnings: list[str]) -> Columns:
        """Times by our clock: where the server's differs by more than an answer takes, ages would be wrong by that."""
        try:
            columns = await asyncio.to_thread(rounds.columns, samples)  # of labels never seen before: 80 ms with 512 GPUs
        except (msgspec.DecodeError, ValueError) as error:
            raise SourceError("bad_answer", f"{self.name} sent labels or values of another form than Prometheus does") from error
        early_s, late_s = columns.evaluated_unix - asked_unix, columns.evaluated_unix - self._now()
        skew_s = early_s if early_s < -_SKEW_S else late_s if late_s > _SKEW_S else 0.0
        if skew_s:
            columns.sampled_unix = columns.sampled_unix - skew_s
            warnings.append(f"the clock of {self.name} is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} ours")
        return columns

    # --- how often values can change -----------------------------------------------------------------------------

    async def _see_resolution(self, kept: _Kept) -> None:
        """What it costs is not worth a failed round."""
        fast = [role for role in kept.rounds.profile.recipes if not ROLES[role].slow]
        try:
            answer = await self._client.raw_samples(kept.rounds.raw(fast, _RAW_S))
        except SourceError:
            return
        kept.resolution_s = resolution_of(answer.curves)

    def _resolution_s(self) -> float:
        """Of GPUs, where there are any."""
        known = [one for one in self._active if not np.isnan(self._kept[one.name].resolution_s)]
        first = next((one for one in known if not one.engine), next(iter(known), None))
        return float("nan") if first is None else self._kept[first.name].resolution_s

    # --- words ---------------------------------------------------------------------------------------------------

    def _why_missing(self, role: str) -> str:
        broken = [kept.broken[role] for one in self._active if role in (kept := self._kept[one.name]).broken]
        return broken[0] if broken else why_missing(role, self._active, self._spec.prefix)

    def _nothing_found(self) -> str:
        probes = ", ".join(dict.fromkeys(f"{one.prefix(self._spec.prefix)}{one.probe[0]}" for one in self._profiles))
        narrowed = f" with the matchers {self._spec.matchers} (metrics.gpu.matchers)" if self._spec.matchers else ""
        return (
            f"{self.name} has no metrics of a known exporter{narrowed} (looked for {probes}); does it scrape the exporters of "
            "the GPUs, and is metrics.gpu.prefix what their configuration puts before names?"
        )

    # --- people's questions --------------------------------------------------------------------------------------

    async def query(
        self,
        promql: str,
        start_unix: float | None = None,
        end_unix: float | None = None,
        step_s: float | None = None,
        *,
        most: int = MOST_SERIES,
    ) -> QueryAnswer:
        if start_unix is None:
            return await self._client.instant(promql, end_unix, most=most)
        end = self._now() if end_unix is None else end_unix
        resolution_s = self._resolution_s()
        fits_s = max((end - start_unix) / _CHART_POINTS, 1.0 if np.isnan(resolution_s) else resolution_s)
        return await self._client.range(promql, start_unix, end, step_s or fits_s, most=most)

    async def metrics(self) -> list[MetricInfo]:
        read_by: dict[str, list[str]] = {}
        for profile in self._active or self._profiles:
            for role, recipe in profile.recipes.items():
                for name in recipe.metrics(self._spec.prefix):
                    read_by.setdefault(name, []).append(role)
        found = await self._client.series_names()
        return [replace(one, roles=tuple(dict.fromkeys(read_by.get(one.name, ())))) for one in found]

    async def close(self) -> None:
        await self._client.close()


def resolution_of(curves: Sequence[Curve]) -> float:
    """From samples of one target's series: how often it is scraped, or how often anything changes if that is rarer.

    An exporter that answers from a cache repeats itself: its values change together and less often than they are scraped.
    Series that rest say nothing, so the shorter gaps between changes count. NaN: fewer than two samples of anything.
    """
    gaps = [np.diff(curve.unix) for curve in curves if len(curve.unix) > 1]
    if not gaps:
        return float("nan")
    scraped_s = float(np.median(np.concatenate(gaps)))
    changed = [curve.unix[1:][np.diff(curve.values) != 0] for curve in curves if len(curve.unix) > 1]
    moments = np.unique(np.round(np.concatenate(changed), 1))
    if len(moments) < 5:
        return scraped_s
    return max(scraped_s, float(np.quantile(np.diff(moments), 0.25)))


def _together(readings: Sequence[RoleReading]) -> RoleReading:
    """Of several exporters: a GPU that two of them know is taken from the first."""
    if len(readings) == 1:
        return readings[0]
    keys, known = list(readings[0].keys), set(readings[0].keys)
    values, unix = [readings[0].values], [readings[0].unix]
    for reading in readings[1:]:
        fresh = [number for number, key in enumerate(reading.keys) if key not in known]
        keys += [reading.keys[number] for number in fresh]
        known.update(reading.keys[number] for number in fresh)
        values.append(reading.values[fresh])
        unix.append(reading.unix[fresh])
    return RoleReading(keys, np.concatenate(values), np.concatenate(unix), readings[0].metric)
