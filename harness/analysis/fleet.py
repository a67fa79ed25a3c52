"""Replicas and nodes over a whole attempt, beside each other: figures, and how far each is from the fleet.

z = (median of its values - median over the fleet) / (1.4826 x median absolute deviation over the fleet); a fleet that agrees
better than 1 % is taken to spread by 1 %. Where prefill and decode are split, a replica is compared within its role.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from harness.analysis.table import AttemptTable, in_order, node_of
from harness.analysis.views import FleetRow, Metric

if TYPE_CHECKING:
    from harness.analysis.moment import Story

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]

MIN_FLEET: Final = 4  # fewer have no z
MIN_SPREAD: Final = 0.01
PERCENTS: Final = (0.5, 0.99)


def fleet(
    table: AttemptTable, story: Story, by: Literal["replica", "node"], limits_ms: Mapping[Metric, float | None]
) -> list[FleetRow]:
    """By name; who had no sample is there too. With roles split, a prefill replica's samples are those that it prefilled: it has
    a TTFT and no tokens."""
    steps = steps_of(story)
    slots = [*table.slots, *(slot for slot in steps if slot not in set(table.slots))]
    members: dict[str, list[str]] = {}
    for slot in slots:
        members.setdefault(slot if by == "replica" else node_of(slot), []).append(slot)
    place = {slot: number for number, name in enumerate(members) for slot in members[name]}
    to_group = np.array([*(place[slot] for slot in table.slots), -1], np.int16 if len(members) < 32767 else np.int32)
    found: dict[str, FleetRow] = {}
    idle: dict[str, FleetRow] = {}
    for codes, decodes in [(table.slot, True), *([(table.prefill_slot, False)] if table.split else [])]:
        rows = _rows(table, story, to_group[codes], members, steps, limits_ms, decodes=decodes)
        busy = [row for row in rows if row.name not in found and (row.samples or row.failed)]
        score(busy)
        found |= {row.name: row for row in busy}
        idle = {row.name: row for row in rows}
    return [found.get(name) or idle[name] for name in sorted(members, key=in_order)]


def _rows(
    table: AttemptTable,
    story: Story,
    codes: Ints,
    members: Mapping[str, list[str]],
    steps: Mapping[str, float | None],
    limits_ms: Mapping[Metric, float | None],
    *,
    decodes: bool,
) -> list[FleetRow]:
    n = len(members)
    placed = codes >= 0
    at, done = codes[placed], table.done[placed]
    samples, of_all = np.bincount(at[done], minlength=n), np.bincount(at, minlength=n)
    tokens = np.bincount(at, weights=table.tokens()[placed], minlength=n) if decodes else np.zeros(n)
    again = np.bincount(at, weights=table.again()[placed], minlength=n)
    duration_s = duration_of(table)
    ttft, over_ttft = _times(table, "ttft", codes, n, limits_ms)
    tpot, over_tpot = _times(table, "tpot", codes, n, limits_ms) if decodes else (np.full((2, n), np.nan), np.zeros(n))
    return [
        FleetRow(
            name=name,
            host=story.hosts.get(node_of(name)),
            replicas=len(slots),
            samples=int(samples[i]),
            failed=int(of_all[i] - samples[i]),
            tokens=int(tokens[i]),
            tokens_per_s=float(tokens[i] / duration_s) if duration_s else 0.0,
            ttft_p50_ms=known(ttft[0, i]),
            ttft_p99_ms=known(ttft[1, i]),
            tpot_p50_ms=known(tpot[0, i]),
            tpot_p99_ms=known(tpot[1, i]),
            step_ms=_median([steps[slot] for slot in slots if slot in steps]),
            over_ttft=int(over_ttft[i]),
            over_tpot=int(over_tpot[i]),
            redispatched=int(again[i]),
            z_ttft=None,
            z_tpot=None,
            z_step=None,
        )
        for i, (name, slots) in enumerate(members.items())
    ]


def _times(
    table: AttemptTable, metric: Metric, codes: Ints, n: int, limits_ms: Mapping[Metric, float | None]
) -> tuple[Floats, npt.NDArray[np.intp]]:
    """p50 and p99 of each group, and how many of its samples are over the limit."""
    values, limit_ms = table.metric(metric), limits_ms.get(metric)
    over = np.zeros(n, np.intp)
    if limit_ms is not None:
        too_long = codes[values > limit_ms]
        over = np.bincount(too_long[too_long >= 0], minlength=n)
    return grouped(values, codes, n, PERCENTS), over


def grouped(values: Floats, codes: Ints, groups: int, qs: tuple[float, ...] = PERCENTS) -> Floats:
    """Percentiles of the values of each group; NaN where a group has none. Values that are NaN, and codes below 0, are left out.

    One radix sort brings the groups together; each is then partitioned. A quarter of a second for 2.4 million values."""
    known_rows = ~np.isnan(values) & (codes >= 0)
    whole = bool(known_rows.all())
    codes, values = (codes, values) if whole else (codes[known_rows], values[known_rows])
    order = np.argsort(codes.astype(np.int16) if groups < 32768 else codes, kind="stable")
    together = values[order].astype(np.float64)
    ends = np.cumsum(np.bincount(codes, minlength=groups))
    found = np.full((len(qs), groups), np.nan)
    start = 0
    for group, end in enumerate(ends[:groups].tolist()):
        if end > start:
            ranks = [int((end - start) * q) for q in qs]
            placed = np.partition(together[start:end], ranks)
            found[:, group] = placed[ranks]
        start = end
    return found


def steps_of(story: Story) -> dict[str, float | None]:
    """Median step time of each replica of the timeline; None of one that never stepped."""
    import polars as pl

    frame = story.timeline.group_by("slot").agg(pl.col("step_ms").filter(pl.col("step_ms") > 0).median())
    rows = frame.with_columns(pl.col("slot").cast(pl.String)).drop_nulls("slot").iter_rows()
    return dict(sorted(rows, key=lambda row: in_order(row[0])))


def duration_of(table: AttemptTable) -> float | None:
    """Time zero to the last completion."""
    done_s = table.done_s()[table.done]
    last_s = float(done_s.max()) if len(done_s) else 0.0
    return last_s if last_s > 0 else None


def score(rows: list[FleetRow]) -> None:
    """Fills in the z of each row that has the figure."""
    for name, figure in (("z_ttft", "ttft_p50_ms"), ("z_tpot", "tpot_p50_ms"), ("z_step", "step_ms")):
        told = [(row, float(value)) for row in rows if (value := getattr(row, figure)) is not None]
        for (row, _), z in zip(told, robust_z(np.array([value for _, value in told])), strict=True):
            setattr(row, name, float(z) if math.isfinite(z) else None)


def robust_z(values: Floats) -> Floats:
    """NaN for fewer than four."""
    if len(values) < MIN_FLEET:
        return np.full(len(values), np.nan)
    middle = np.median(values)
    spread = max(1.4826 * float(np.median(np.abs(values - middle))), MIN_SPREAD * abs(float(middle)), 1e-9)
    return (values - middle) / spread


def known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _median(values: list[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return float(np.median(told)) if told else None
