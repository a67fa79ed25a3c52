"""One profile's round by PromQL: all roles in one query, and its answer as columns of roles.

Plain metrics share one aggregation (`max by (__name__, …) ({__name__=~"a|b|…"})`); what is computed (ratios, windows) and the
time of the newest sample are further parts, joined by `or`. `or` compares labels without the name, so each part but one is
marked by a label of its own. Labels of an answer are understood once and then found by their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness.metrics.gpu.base import RoleReading, SeriesKey
from harness.metrics.gpu.profiles import KeyField, Profile
from harness.metrics.gpu.promanswer import Sample
from harness.metrics.gpu.recipes import Leaf, Recipe, Step, quoted

_MARK: Final = "paceline_part"
_AGE: Final = "age"
_PLACE: Final[tuple[KeyField, ...]] = ("host", "pod", "slot")  # what one target is told by
_MOST_KNOWN: Final = 100_000  # label sets that are remembered: pods come and go

Floats = NDArray[np.float64]
_Filter = tuple[tuple[tuple[str, str], ...], str, float]  # of a leaf: where, partition label, limit


@dataclass(frozen=True)
class Part:
    """A vector of its own, for some roles; none: it tells the time of the newest samples."""

    expression: str
    mark: str
    roles: tuple[str, ...] = ()

    @property
    def promql(self) -> str:
        return marked(self.expression, self.mark) if self.mark else self.expression


def marked(expression: str, mark: str) -> str:
    return f'label_replace({expression}, "{_MARK}", "{mark}", "", "")'


def mark_of(sample: Sample) -> str:
    return msgspec.json.decode(sample.metric, type=dict[str, str]).get(_MARK, "")


@dataclass
class Columns:
    """Values by metric and key, NaN where there is none, as one answer gave them."""

    keys: list[SeriesKey]
    values: dict[tuple[str, str], Floats] = field(default_factory=dict)  # (mark, metric)
    sampled_unix: Floats = field(default_factory=lambda: np.zeros(0))  # by key
    evaluated_unix: float = float("nan")  # by the server's clock


class ProfileRounds:
    def __init__(self, profile: Profile, matchers: str, spec_prefix: str) -> None:
        self.profile = profile
        self._matchers, self._spec_prefix = matchers.strip().strip(","), spec_prefix
        self._by = ", ".join(profile.by)
        filters: dict[_Filter, int] = {}
        for recipe in profile.recipes.values():
            for step in recipe.steps if recipe.plain else ():
                filters[_filter_of(step)] = filters.get(_filter_of(step), 0) + 1
        by_size = sorted(filters, key=lambda one: -filters[one])
        self._marks = {one: f"g{number}" if number else "" for number, one in enumerate(by_size)}
        self._forget()

    def _forget(self) -> None:
        self._columns: dict[tuple[str, str], int] = {}
        self._keys: list[SeriesKey] = []
        self._numbers: dict[SeriesKey, int] = {}
        self._known: dict[bytes, tuple[int, int]] = {}
        self._picked: dict[bytes, list[SeriesKey]] = {}
        self._example = b"{}"

    # --- asking --------------------------------------------------------------------------------------------------

    def parts(self, roles: Iterable[str], window_s: float) -> list[Part]:
        """Of those roles that this profile has; none: nothing to ask."""
        metrics: dict[_Filter, dict[str, None]] = {}
        served: dict[_Filter, dict[str, None]] = {}
        computed: list[Part] = []
        for recipe in (self.profile.recipes[role] for role in roles if role in self.profile.recipes):
            if not recipe.plain:
                expression = recipe.promql(self._matchers, self._spec_prefix, window_s)
                computed.append(Part(expression, f"r:{recipe.role}", (recipe.role,)))
                continue
            for step in recipe.steps:
                metrics.setdefault(_filter_of(step), {})[self._metric(recipe, step)] = None
                served.setdefault(_filter_of(step), {})[recipe.role] = None
        plain = [Part(self._aggregation(one, metrics[one]), self._marks[one], tuple(served[one])) for one in metrics]
        if not plain and not computed:
            return []
        return [*sorted(plain, key=lambda part: part.mark), *computed, self._age()]

    def raw(self, roles: Iterable[str], window_s: float) -> str:
        """Samples as they are, of one target of the last answer: when they were taken, and when they change."""
        recipes = (self.profile.recipes[role] for role in roles if role in self.profile.recipes)
        names = {self._metric(recipe, step): None for recipe in recipes if recipe.plain for step in recipe.steps}
        for name in self.profile.probe:
            names[self.profile.prefix(self._spec_prefix) + name] = None
        labels = msgspec.json.decode(self._example, type=dict[str, str])
        chosen = [f"{label}={quoted(labels[label])}" for label in self._place_labels() if labels.get(label)]
        where = [f"__name__=~{quoted('|'.join(names))}", *chosen, *self._own()]
        return f"{{{','.join(where)}}}[{round(window_s)}s]"

    def _metric(self, recipe: Recipe, step: Step) -> str:
        return f"{self._spec_prefix if recipe.prefixed else ''}{step.leaves[0].metric}"

    def _own(self) -> list[str]:
        return [self._matchers] if self._matchers else []

    def _aggregation(self, chosen: _Filter, metrics: Iterable[str]) -> str:
        where, partition_label, limit = chosen
        inside = [f"__name__=~{quoted('|'.join(metrics))}"]
        if more := Leaf("", where, partition_label).selector(self._matchers):
            inside.append(more[1:-1])
        return f"max by (__name__, {self._by}) ({{{','.join(inside)}}} < {limit:g})"

    def _age(self) -> Part:
        """By the metrics that always come along. `timestamp` takes one name at a time."""
        inside = ",".join([*(f'{label}!=""' for label in self.profile.probe_labels), *self._own()])
        prefix = self.profile.prefix(self._spec_prefix)
        stamps = " or ".join(f"timestamp({prefix}{name}{{{inside}}})" for name in self.profile.probe)
        return Part(f"max by ({', '.join(self._place_labels())}) ({stamps})", _AGE)

    def _place_labels(self) -> list[str]:
        return [label for name in _PLACE for label in self.profile.labels.get(name, ())]

    # --- reading -------------------------------------------------------------------------------------------------

    def columns(self, samples: Sequence[Sample]) -> Columns:
        """Raises msgspec.DecodeError for labels that are none, ValueError for values."""
        if len(self._known) > _MOST_KNOWN:
            self._forget()
        known = self._known
        places: list[tuple[int, int]] = []
        values: list[float] = []
        evaluated_unix = float("nan")
        for sample in samples:
            if (point := sample.value) is None:
                continue
            raw = bytes(sample.metric)
            place = known.get(raw)
            places.append(self._place(raw) if place is None else place)
            values.append(float(point[1]))
            evaluated_unix, self._example = point[0], raw
        table = np.full((len(self._columns), len(self._keys)), np.nan)
        if places:
            rows, cells = np.array(places, np.intp).T
            numbers = np.array(values)
            np.fmax.at(table, (rows, cells), np.where(np.isinf(numbers), np.nan, numbers))
        found = {column: table[row] for column, row in self._columns.items() if not np.isnan(table[row]).all()}
        stamps = found.pop((_AGE, ""), np.full(len(self._keys), np.nan))
        return Columns(self._keys, found, self._sampled(stamps, evaluated_unix), evaluated_unix)

    def _place(self, raw: bytes) -> tuple[int, int]:
        labels = msgspec.json.decode(raw, type=dict[str, str])
        column = labels.get(_MARK, ""), labels.get("__name__", "")
        key = self.profile.key_of(labels)
        row = self._columns.setdefault(column, len(self._columns))
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        self._known[raw] = row, number
        return row, number

    def _sampled(self, stamps: Floats, evaluated_unix: float) -> Floats:
        """When each key was sampled: as its own target says, else the newest of its host, else the oldest of all.

        A server that cannot tell leaves the time of the question, as every chart of it does.
        """
        by_place: dict[tuple[str, str, str], float] = {}
        by_host: dict[str, float] = {}
        for number in np.flatnonzero(~np.isnan(stamps)):
            key, unix = self._keys[number], float(stamps[number])
            by_place[key.host, key.pod, key.slot] = unix
            by_host[key.host] = max(unix, by_host.get(key.host, 0.0))
        oldest = min(by_place.values(), default=evaluated_unix)
        found = [by_place.get((key.host, key.pod, key.slot)) or by_host.get(key.host, oldest) for key in self._keys]
        return np.array(found, np.float64)

    def role(self, role: str, columns: Columns) -> RoleReading | None:
        """None where no GPU (or engine) has a value."""
        recipe = self.profile.recipes[role]
        made, metric = np.full(len(columns.keys), np.nan), ""
        if not recipe.plain:
            made = columns.values.get((f"r:{role}", ""), made)
            metric = next(iter(recipe.metrics(self._spec_prefix)))
        for step in recipe.steps if recipe.plain else ():
            name = self._metric(recipe, step)
            column = columns.values.get((self._marks[_filter_of(step)], name))
            if column is not None:
                scaled = np.clip(column * step.scale, 0.0, 1.0) if step.share else column * step.scale
                made, metric = np.where(np.isnan(made), scaled, made), metric or name
        there = np.flatnonzero(~np.isnan(made))
        if not len(there):
            return None
        return RoleReading(self._keys_at(there), made[there], columns.sampled_unix[there], metric)

    def _keys_at(self, there: NDArray[np.intp]) -> list[SeriesKey]:
        """The same list for the same keys, round after round: whoever joins them need not do it again."""
        chosen = there.tobytes()
        keys = self._picked.get(chosen)
        if keys is None:
            if len(self._picked) > 64:
                self._picked.clear()
            keys = self._picked[chosen] = [self._keys[number] for number in there]
        return keys


def _filter_of(step: Step) -> _Filter:
    leaf = step.leaves[0]
    return leaf.where, leaf.partition_label, leaf.limit
