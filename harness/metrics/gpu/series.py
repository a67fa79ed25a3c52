"""Every series that direct scrape reads, of all targets in one table, and roles computed from it.

A series is admitted once (labels → key, which leaves of which recipes take it) and from then on is a number: a page becomes
two arrays, and a role some numpy over all GPUs. Series whose growth or mean is wanted, and only those, have a ring of their
last samples. What is on no page any more is NaN; what a silent target said stays, with its time, until it is `keep_s` old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.base import RoleReading, SeriesKey
from harness.metrics.gpu.profiles import Profile
from harness.metrics.gpu.recipes import Floats, Leaf, fold_by_key, growth_a_second, mean_of_window
from harness.metrics.gpu.scan import IGNORED, Samples

Indices = NDArray[np.intp]


@dataclass(slots=True)
class _Columns:
    """The series of one leaf: their numbers and keys, as arrays when they are asked for."""

    numbers: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    arrays: tuple[Indices, Indices] | None = None

    def add(self, number: int, key: int) -> None:
        self.numbers.append(number)
        self.keys.append(key)
        self.arrays = None

    def get(self) -> tuple[Indices, Indices]:
        if self.arrays is None:
            self.arrays = np.array(self.numbers, np.intp), np.array(self.keys, np.intp)
        return self.arrays

    def keep(self, renumbered: Indices) -> None:
        kept = [(int(renumbered[n]), key) for n, key in zip(self.numbers, self.keys, strict=True) if renumbered[n] >= 0]
        self.numbers, self.keys = [n for n, _ in kept], [key for _, key in kept]
        self.arrays = None


class _OfProfile:
    """The keys and leaves of one profile."""

    def __init__(self, profile: Profile, prefix: str) -> None:
        self.profile, self.prefix = profile, profile.prefix(prefix)
        self.keys: list[SeriesKey] = []
        self.number_of: dict[SeriesKey, int] = {}
        self.probes: list[int] = []  # series that tell that this exporter is there
        self.leaves: dict[Leaf, _Columns] = {
            leaf: _Columns() for recipe in profile.recipes.values() for step in recipe.steps for leaf in step.all_leaves()
        }
        self.by_metric: dict[str, list[Leaf]] = {}
        for leaf in self.leaves:
            self.by_metric.setdefault(f"{self.prefix}{leaf.metric}", []).append(leaf)
        self.probe_metrics = {f"{self.prefix}{name}" for name in profile.probe}
        self._told: dict[str, tuple[bytes, list[SeriesKey]]] = {}

    def metrics(self) -> set[str]:
        return set(self.by_metric) | self.probe_metrics

    def key(self, key: SeriesKey) -> int:
        number = self.number_of.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number

    def keys_of(self, role: str, there: NDArray[np.bool_]) -> list[SeriesKey]:
        """The same list as last time where the same series are there: whoever joins them keeps what it made of it."""
        mask = there.tobytes()
        told = self._told.get(role)
        if told is None or told[0] != mask:
            told = self._told[role] = (mask, [self.keys[i] for i in np.flatnonzero(there)])
        return told[1]


class SeriesTable:
    def __init__(self, profiles: Sequence[Profile], prefix: str, *, window_s: float, ring_s: float, most_rows: int = 256) -> None:
        self._of = [_OfProfile(profile, prefix) for profile in profiles]
        self.wanted = frozenset(name.encode() for one in self._of for name in one.metrics())
        self._window_s, self._ring_s, self._most_rows = window_s, ring_s, most_rows
        self._count = 0
        self._values, self._unix = np.empty(0), np.empty(0)
        self._ring_of = np.empty(0, np.intp)  # column of the ring, -1: none
        self._ring_numbers: list[int] = []
        self._ring: list[tuple[Floats, Floats]] = []  # times and values of one round, oldest first
        self._windows: dict[str, Floats] = {}

    def __len__(self) -> int:
        return self._count

    # --- what comes in ------------------------------------------------------------------------------------------

    def admit(self, host: str) -> Callable[[str, dict[str, str]], int]:
        """For the scanner of a target on `host`."""

        def admitted(name: str, labels: dict[str, str]) -> int:
            return self._admit(name, labels, host)

        return admitted

    def _admit(self, name: str, labels: dict[str, str], host: str) -> int:
        number, windowed = self._count, False
        taken = False
        for one in self._of:
            for leaf in one.by_metric.get(name, ()):
                if leaf.takes(labels):
                    one.leaves[leaf].add(number, one.key(one.profile.key_of(labels, host)))
                    taken, windowed = True, windowed or leaf.windowed
            if name in one.probe_metrics and all(labels.get(label) for label in one.profile.probe_labels):
                one.probes.append(number)
                taken = True
        if not taken:
            return IGNORED
        self._count += 1
        if self._count > len(self._values):
            more = max(1024, self._count)
            self._values = np.concatenate([self._values, np.full(more, np.nan)])
            self._unix = np.concatenate([self._unix, np.full(more, np.nan)])
            self._ring_of = np.concatenate([self._ring_of, np.full(more, -1, np.intp)])
        if windowed:
            self._ring_of[number] = len(self._ring_numbers)
            self._ring_numbers.append(number)
        return number

    def put(self, page: Samples, before: Indices, unix: float) -> tuple[Indices, bool]:
        """A page of a target whose last page had the series `before`. Returns its series, and whether any value is another."""
        numbers, values = np.array(page.numbers, np.intp), np.array(page.values)
        changed = len(before) != len(numbers) or not np.array_equal(self._values[numbers], values, equal_nan=True)
        self._values[before] = np.nan
        self._values[numbers] = values
        self._unix[numbers] = unix
        for number, stamp in page.stamped.items():
            self._unix[number] = min(stamp, unix)
        return numbers, changed

    def end_round(self, now_unix: float, keep_s: float) -> None:
        """All pages of a round are in: forget what is too old, and remember what windows need."""
        values, unix = self._values[: self._count], self._unix[: self._count]
        with np.errstate(invalid="ignore"):
            values[now_unix - unix > keep_s] = np.nan
        if self._ring_numbers:
            numbers = np.array(self._ring_numbers, np.intp)
            times, row = unix[numbers].copy(), values[numbers].copy()
            if self._ring:
                last = self._ring[-1][0]
                row[: len(last)][times[: len(last)] <= last] = np.nan  # said before: it is there already
            self._ring.append((times, row))
            while len(self._ring) > self._most_rows or np.nanmax(self._ring[0][0], initial=0.0) < now_unix - self._ring_s:
                del self._ring[0]
        self._windows.clear()

    def thin_out(self, alive: Indices) -> Indices:
        """Drop all series but these. Returns the new number of each old one, -1: gone."""
        renumbered = np.full(self._count, -1, np.intp)
        renumbered[alive] = np.arange(len(alive))
        for name in ("_values", "_unix"):
            setattr(self, name, getattr(self, name)[alive].copy())
        columns = [i for i, number in enumerate(self._ring_numbers) if renumbered[number] >= 0]
        kept = np.array(columns, np.intp)
        self._ring = [(times[kept[kept < len(times)]], row[kept[kept < len(row)]]) for times, row in self._ring]
        self._ring_numbers = [int(renumbered[self._ring_numbers[i]]) for i in columns]
        self._ring_of = np.full(len(alive), -1, np.intp)
        self._ring_of[self._ring_numbers] = np.arange(len(columns))
        self._count = len(alive)
        for one in self._of:
            one.probes = [int(renumbered[n]) for n in one.probes if renumbered[n] >= 0]
            for series in one.leaves.values():
                series.keep(renumbered)
        self._windows.clear()
        return renumbered

    # --- what goes out ------------------------------------------------------------------------------------------

    def is_there(self, profile: Profile) -> bool:
        one = self._with(profile)
        return bool(one.probes) and bool(np.any(~np.isnan(self._values[one.probes])))

    def may_come(self, profile: Profile, role: str) -> bool:
        """Its series are there, but too young for a value that needs two samples."""
        recipe = profile.recipes.get(role)
        if recipe is None or not recipe.windowed or len(self._ring) > 3:
            return False
        columns = [self._with(profile).leaves[leaf].numbers for step in recipe.steps for leaf in step.leaves if leaf.windowed]
        return any(bool(np.any(~np.isnan(self._values[numbers]))) for numbers in columns if numbers)

    def role(self, profile: Profile, role: str, now_unix: float) -> RoleReading | None:
        """None where no series gives it."""
        one = self._with(profile)
        recipe = profile.recipes.get(role)
        if recipe is None or not one.keys:
            return None
        count = len(one.keys)
        values, unix, metrics = np.full(count, np.nan), np.full(count, np.nan), []
        for step in recipe.steps:
            if not any(one.leaves[leaf].numbers for leaf in step.leaves):
                continue
            made = step.evaluate(lambda leaf: self._column(one, leaf, now_unix))
            fresh = np.isnan(values) & np.isfinite(made)
            if fresh.any():
                values[fresh] = made[fresh]
                unix[fresh] = self._newest(one, step.leaves)[fresh]
                metrics += [f"{one.prefix}{leaf.metric}" for leaf in step.leaves if one.leaves[leaf].numbers]
        there = ~np.isnan(values)
        if not there.any():
            return None
        return RoleReading(one.keys_of(role, there), values[there], unix[there], ", ".join(dict.fromkeys(metrics)))

    def _with(self, profile: Profile) -> _OfProfile:
        return next(one for one in self._of if one.profile is profile)

    def _column(self, one: _OfProfile, leaf: Leaf, now_unix: float) -> Floats:
        numbers, keys = one.leaves[leaf].get()
        values = self._values[numbers]
        with np.errstate(invalid="ignore"):
            usable = values < leaf.limit  # NaN is not
        if leaf.windowed:
            values = self._window(leaf, now_unix)[self._ring_of[numbers]] if self._ring else np.full(len(numbers), np.nan)
        return fold_by_key(leaf.fold, np.where(usable, values, np.nan), keys, len(one.keys))

    def _newest(self, one: _OfProfile, leaves: Sequence[Leaf]) -> Floats:
        found = np.full(len(one.keys), np.nan)
        for leaf in leaves:
            numbers, keys = one.leaves[leaf].get()
            unix = np.where(np.isnan(self._values[numbers]), np.nan, self._unix[numbers])
            found = np.fmax(found, fold_by_key("max", unix, keys, len(one.keys)))
        return found

    def _window(self, leaf: Leaf, now_unix: float) -> Floats:
        """Of all columns of the ring; the same for all leaves of a round."""
        found = self._windows.get(leaf.how)
        if found is None:
            columns, start = len(self._ring_numbers), now_unix - self._window_s
            recent = [rows for rows in self._ring if np.nanmax(rows[0], initial=0.0) >= start]
            times, values = (np.full((len(recent), columns), np.nan) for _ in range(2))
            for i, (row_times, row_values) in enumerate(recent):
                times[i, : len(row_times)], values[i, : len(row_values)] = row_times, row_values
            compute = growth_a_second if leaf.how == "growth" else mean_of_window
            with np.errstate(invalid="ignore"):
                found = self._windows[leaf.how] = compute(times, values, start, now_unix)
        return found
