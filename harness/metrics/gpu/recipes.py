"""Recipes: how a role is made from an exporter's metrics, once as PromQL and once for numbers that were scraped.

A recipe is steps in order of preference; per GPU the first step that has a value gives it. A step takes its metrics
(*leaves*: one metric, its filter, what is done to each series), folds the series of one GPU, takes the largest of several,
adds others, divides by another, and scales to the role's unit. Both ways are held equal by tests against a real Prometheus.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

How = Literal["value", "counter", "mean", "growth"]
Fold = Literal["max", "min", "sum", "avg"]
Floats = NDArray[np.float64]

#: Exporters write numbers of this size for "blank" (DCGM: 9223372036854775794).
SENTINEL: Final = 1e15


@dataclass(frozen=True, slots=True)
class Leaf:
    """Series that are read alike. `how`: value and counter as they stand, mean of a window, growth a second over a window."""

    metric: str
    where: tuple[tuple[str, str], ...] = ()
    partition_label: str = ""  # not "": only partition 0, the others of this metric are always 0
    how: How = "value"
    fold: Fold = "max"
    limit: float = SENTINEL

    @property
    def windowed(self) -> bool:
        return self.how in ("mean", "growth")

    def takes(self, labels: dict[str, str]) -> bool:
        if self.partition_label and labels.get(self.partition_label, "") not in ("", "0"):
            return False
        return all(labels.get(name, "") == value for name, value in self.where)

    def selector(self, matchers: str = "", prefix: str = "") -> str:
        """As PromQL, `matchers` (the user's own) included."""
        parts = [f"{name}={quoted(value)}" for name, value in self.where]
        if self.partition_label:
            parts.append(f'{self.partition_label}=~"|0"')
        if matchers.strip():
            parts.append(matchers.strip().strip(","))
        return f"{prefix}{self.metric}" + (f"{{{','.join(parts)}}}" if parts else "")

    def promql(self, by: str, matchers: str, prefix: str, window_s: float) -> str:
        chosen = self.selector(matchers, prefix)
        kept = f"{chosen} < {self.limit:g}"
        if self.windowed:
            function = "rate" if self.how == "growth" else "avg_over_time"
            kept = f"{function}({chosen}[{duration(window_s)}]) and {kept}"
        return f"{self.fold} by ({by}) ({kept})"


@dataclass(frozen=True, slots=True)
class Step:
    leaves: tuple[Leaf, ...]  # the largest of these
    plus: tuple[Leaf, ...] = ()
    of: Leaf | None = None
    scale: float = 1.0
    share: bool = False  # of time: between 0 and 1 whatever rounding says

    @property
    def plain(self) -> bool:
        """One metric as it stands, folded by max, and scaled: many such roles can be asked for by one query."""
        first = self.leaves[0]
        return len(self.leaves) == 1 and not self.plus and self.of is None and not first.windowed and first.fold == "max"

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(leaf.metric for leaf in self.leaves)

    def all_leaves(self) -> tuple[Leaf, ...]:
        return (*self.leaves, *self.plus, *(() if self.of is None else (self.of,)))

    def promql(self, by: str, matchers: str, prefix: str, window_s: float) -> str:
        text = [leaf.promql(by, matchers, prefix, window_s) for leaf in self.leaves]
        if len(text) == 1:
            made = text[0]
        else:  # PromQL has no larger-of for two vectors: mark them, unite them, fold them
            marked = [f'label_replace({one}, "leaf", "{i}", "", "")' for i, one in enumerate(text)]
            made = f"max by ({by}) ({' or '.join(marked)})"
        for leaf in self.plus:
            made = f"{made} + {leaf.promql(by, matchers, prefix, window_s)}"
        if self.of is not None:
            numerator = f"({made})" if self.plus else made
            made = f"{numerator} / ({self.of.promql(by, matchers, prefix, window_s)} > 0)"
        if self.scale != 1.0:
            made = f"({made}) * {self.scale!r}"
        return f"clamp({made}, 0, 1)" if self.share else made

    def evaluate(self, column: Callable[[Leaf], Floats]) -> Floats:
        """`column` gives a leaf's folded values by key, NaN where there is none."""
        made = column(self.leaves[0])
        for leaf in self.leaves[1:]:
            made = np.fmax(made, column(leaf))
        for leaf in self.plus:
            made = made + column(leaf)
        if self.of is not None:
            below = column(self.of)
            with np.errstate(invalid="ignore", divide="ignore"):
                made = np.where(below > 0, made / below, np.nan)
        made = made * self.scale
        return np.clip(made, 0.0, 1.0) if self.share else made


@dataclass(frozen=True, slots=True)
class Recipe:
    role: str
    steps: tuple[Step, ...]
    labels: tuple[str, ...]  # that tell whose a series is, in PromQL's `by`
    prefixed: bool = False
    absent: str = ""  # why an exporter of this kind may not show it

    @property
    def plain(self) -> bool:
        return all(step.plain for step in self.steps)

    @property
    def windowed(self) -> bool:
        return any(leaf.windowed for step in self.steps for leaf in step.all_leaves())

    def metrics(self, prefix: str = "") -> tuple[str, ...]:
        """Every metric that it may read, as the exporter calls it."""
        found = dict.fromkeys(leaf.metric for step in self.steps for leaf in step.all_leaves())
        return tuple(f"{prefix if self.prefixed else ''}{name}" for name in found)

    def promql(self, matchers: str = "", prefix: str = "", window_s: float = 60.0) -> str:
        """One vector in the role's unit, with `labels` alone."""
        by, before = ", ".join(self.labels), prefix if self.prefixed else ""
        return " or ".join(step.promql(by, matchers, before, window_s) for step in self.steps)


def fold_by_key(fold: Fold, values: Floats, keys: NDArray[np.intp], count: int) -> Floats:
    """One value for each of `count` keys from values whose key is `keys[i]`; NaN is left out, and what no value is for."""
    there = ~np.isnan(values)
    if not there.all():
        values, keys = values[there], keys[there]
    if fold in ("sum", "avg"):
        sums, numbers = np.bincount(keys, values, count), np.bincount(keys, minlength=count)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(numbers > 0, sums / numbers if fold == "avg" else sums, np.nan)
    made = np.full(count, np.nan)
    (np.fmax if fold == "max" else np.fmin).at(made, keys, values)
    return made


# --- windows of one series, as PromQL computes them --------------------------------------------------------------------


def growth_a_second(times: Floats, values: Floats, start: float, end: float) -> Floats:
    """rate() of Prometheus for columns of samples (rows in order of time, NaN where a row has none).

    A fall is a restart from 0. The growth between the first and last sample is extrapolated to the window's ends where
    samples lie close to them, else by half an interval, and never to before a counter was 0: as extrapolatedRate does.
    """
    inside = (times >= start) & (times <= end) & ~np.isnan(values)
    number = inside.sum(axis=0)
    columns = values.shape[1]
    first_t, first_v = np.full(columns, np.nan), np.full(columns, np.nan)
    last_t, last_v, grown = np.full(columns, np.nan), np.full(columns, np.nan), np.zeros(columns)
    for t, v, valid in zip(times, values, inside, strict=True):
        step = v - last_v
        grown += np.where(valid & (number > 0) & ~np.isnan(last_v), np.where(step < 0, v, step), 0.0)
        fresh = valid & np.isnan(first_t)
        first_t[fresh], first_v[fresh] = t[fresh], v[fresh]
        last_t[valid], last_v[valid] = t[valid], v[valid]
    with np.errstate(invalid="ignore", divide="ignore"):
        sampled = last_t - first_t
        average = sampled / (number - 1)
        to_start, to_end = first_t - start, end - last_t
        to_zero = np.where((grown > 0) & (first_v >= 0), sampled * (first_v / grown), np.inf)
        to_start = np.minimum(to_start, to_zero)
        near = 1.1 * average
        covered = sampled + np.where(to_start < near, to_start, average / 2) + np.where(to_end < near, to_end, average / 2)
        rate = grown * (covered / sampled) / (end - start)
    return np.where((number >= 2) & (sampled > 0), rate, np.nan)


def mean_of_window(times: Floats, values: Floats, start: float, end: float) -> Floats:
    """avg_over_time() of Prometheus."""
    inside = (times >= start) & (times <= end) & ~np.isnan(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns without a sample, whose mean is NaN
        return np.nanmean(np.where(inside, values, np.nan), axis=0) if len(values) else np.full(values.shape[1], np.nan)


# --- text --------------------------------------------------------------------------------------------------------------


def quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def duration(window_s: float) -> str:
    """Whole milliseconds, as PromQL writes them."""
    milliseconds = max(1, round(window_s * 1000))
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"
