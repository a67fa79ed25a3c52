"""Two to eight attempts side by side: figures with intervals and what their differences are worth, distributions, settings.

A difference is told as better or worse when its 95 % interval leaves zero out and it is at least half a per cent; with so many
figures beside each other one in twenty "clear" ones is chance. Sides are read one after the other and kept as some kilobytes:
eight attempts of 2.4 million samples take about ten seconds and half a gigabyte at the most (two slow cores).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from harness.analysis.definitions import define
from harness.analysis.intervals import difference_interval
from harness.analysis.settings import ConfigRow, config_of, said
from harness.analysis.shape import table
from harness.analysis.sides import Measured, Side, read_side
from harness.analysis.views import METRICS, Interval, Metric
from harness.metrics.histogram import CELLS, EDGES_MS
from harness.records.reader import Record

LEAST: Final = 2
MOST: Final = 8
#: Below this share of the baseline a difference is nothing to act on, however sure it is.
NEGLIGIBLE: Final = 0.005
_BINS: Final = 60

Told = Literal["better", "worse", "no clear difference", "too few samples", ""]


class CannotCompare(Exception):
    """What was asked for is no comparison; the text says what would be one."""


class SideHead(msgspec.Struct):
    """Whom a column is of. `name`: the run's, with `:N` where another attempt of it stands beside."""

    name: str
    run: str
    attempt: int
    record: str
    kind: str
    scenario: str
    verdict: str
    reasons: list[str]
    synthetic: bool
    imported: str
    model: str
    engine: str
    nodes: int
    replicas: int
    gpus: int
    samples: int
    started_unix: float


class Change(msgspec.Struct):
    """Against the baseline. `relative`: difference / baseline. `told` is empty where neither more nor less is better."""

    difference: float
    interval: Interval
    relative: float | None
    told: Told


class FigureRow(msgspec.Struct):
    id: str
    title: str
    unit: str
    group: str  # rates, TTFT, …
    better: int  # +1 where more is better, -1 where less is, 0 where neither
    values: list[Measured]
    changes: list[Change | None]  # None: the baseline itself, or a figure that one of the two does not have


class Overlay(msgspec.Struct):
    """One metric's distributions over shared edges. Entry i of `counts` and `cdfs` is side i; empty where it has no samples."""

    metric: Metric
    limits_ms: list[float | None]
    edges_ms: list[float]
    counts: list[list[int]]
    cdfs: list[list[tuple[float, float]]]


class Comparison(msgspec.Struct):
    baseline: int
    sides: list[SideHead]
    warnings: list[str]  # why figures may not be comparable
    figures: list[FigureRow]
    overlays: list[Overlay]
    config: list[ConfigRow]
    remarks: list[str]  # what was left out of a record


#: (group, ids, better): in the order of the table.
_TABLE: Final[tuple[tuple[str, tuple[str, ...], int], ...]] = (
    ("rates", ("target_qps", "scheduled_qps"), 0),
    ("rates", ("completed_qps", "tokens_per_s", "input_output_tokens_per_s", "goodput"), 1),
    *(("per node, replica, GPU", (f"tokens_per_s_{of}", f"completed_qps_{of}"), 1) for of in ("node", "replica", "gpu")),
    ("per user", ("tokens_per_user_p90", "tokens_per_user_turns", "tokens_per_user_median"), 1),
    *(
        (title, tuple(f"{name}_{place}_ms" for place in ("min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max")), -1)
        for name, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("latency", "latency"))
    ),
    ("samples", ("over_ttft_share", "over_tpot_share", "failed_share", "redispatched_share"), -1),
    ("samples", ("issued", "completed", "failed", "lost", "redispatched", "tokens", "acts", "duration_s"), 0),
    ("by LoadGen", ("loadgen_samples_per_s", "loadgen_tokens_per_s"), 0),
)  # fmt: skip

#: Groups that follow the rate of a Server load: where it differs, more of them is no better.
_OFFERED: Final = ("rates", "per node, replica, GPU")

#: One sample decides over these: no interval, no judgement.
_EXTREMES: Final = ("_min_ms", "_max_ms")


def compare(
    attempts: Sequence[tuple[Record, int | None]], baseline: int = 0, progress: Callable[[str], None] | None = None
) -> Comparison:
    """`attempts`: records with the number of an attempt (None: the last that measured anything). Blocking; `progress` is told
    what is being read. Raises CannotCompare, NoSuchAttempt, RecordError."""
    if not LEAST <= len(attempts) <= MOST:
        raise CannotCompare(f"a comparison takes {LEAST} to {MOST} attempts; {len(attempts)} given")
    if not 0 <= baseline < len(attempts):
        raise CannotCompare(f"there is no side {baseline + 1} to compare with; there are {len(attempts)}")
    sides: list[Side] = []
    for record, attempt in attempts:
        if progress is not None:
            progress(f"reading {record.folder.name} ({len(sides) + 1} of {len(attempts)})")
        sides.append(read_side(record, attempt))
    heads = [_head(side, name) for side, name in zip(sides, names_of(sides), strict=True)]
    repeated = [name for name, times in Counter((side.folder, side.attempt.number) for side in sides).items() if times > 1]
    if repeated:
        raise CannotCompare(f"attempt {repeated[0][1]} of {repeated[0][0]} was given twice; give each once, as in RUN:1 RUN:2")
    return Comparison(
        baseline=baseline,
        sides=heads,
        warnings=warnings_of(sides, heads),
        figures=list(_rows(sides, baseline)),
        overlays=[overlay for metric in METRICS if (overlay := _overlay(sides, metric)) is not None],
        config=list(config_of(sides)),
        remarks=[f"{head.name}: {problem}" for side, head in zip(sides, heads, strict=True) for problem in side.problems],
    )


def names_of(sides: Sequence[Side]) -> list[str]:
    """Of their folders: with the folder above where two have one name, with the attempt where a run is there more than once."""
    paths = [Path(side.folder) for side in sides]
    alike = Counter(path.name for path in set(paths))
    runs = Counter(paths)
    names = [f"{path.parent.name}/{path.name}" if alike[path.name] > 1 else path.name for path in paths]
    return [
        f"{name}:{side.attempt.number}" if runs[path] > 1 else name for name, path, side in zip(names, paths, sides, strict=True)
    ]


def _head(side: Side, name: str) -> SideHead:
    run, attempt, shape = side.run, side.attempt, side.shape
    return SideHead(
        name=name, run=run.run, attempt=attempt.number, record=side.folder, kind=attempt.kind, scenario=attempt.scenario,
        verdict=attempt.verdict or attempt.state or run.phase, reasons=list(attempt.reasons), synthetic=run.synthetic,
        imported=run.imported.kind if run.imported is not None else "", model=shape.model, engine=shape.engine, nodes=shape.nodes,
        replicas=shape.replicas, gpus=shape.gpus, samples=side.samples, started_unix=attempt.started_unix,
    )  # fmt: skip


# --- figures -------------------------------------------------------------------------------------------------


def _rows(sides: Sequence[Side], baseline: int) -> Iterator[FigureRow]:
    sampled = sides[baseline].samples
    asked = _differently_asked(sides)
    for group, names, towards in _TABLE:
        if asked and group in _OFFERED:
            towards = 0
        for name in names:
            values = [side.figures.get(name, Measured(None)) for side in sides]
            if all(one.value is None for one in values) or (name.endswith("_share") and not any(one.value for one in values)):
                continue
            what = define(name)
            better = 0 if name.endswith(_EXTREMES) else towards
            changes = [
                None
                if side is sides[baseline]
                else change_of(values[baseline], one, better, sampled=bool(side.samples and sampled))
                for side, one in zip(sides, values, strict=True)
            ]
            yield FigureRow(name, what.title, what.unit, group, better, values, changes)


def _differently_asked(sides: Sequence[Side]) -> bool:
    return len({side.attempt.target_qps for side in sides}) > 1 and {side.attempt.scenario for side in sides} == {"Server"}


def rebased(found: Comparison, baseline: int) -> Comparison:
    """The same sides compared with another one of them; nothing is read again."""
    before = found.sides[baseline].samples
    rows = [
        msgspec.structs.replace(
            row,
            changes=[
                None
                if at == baseline
                else change_of(row.values[baseline], one, row.better, sampled=bool(side.samples and before))
                for at, (side, one) in enumerate(zip(found.sides, row.values, strict=True))
            ],
        )
        for row in found.figures
    ]
    return msgspec.structs.replace(found, baseline=baseline, figures=rows)


def change_of(before: Measured, after: Measured, better: int, *, sampled: bool = True) -> Change | None:
    """`sampled`: both sides had samples, so that a missing interval means that they were too few."""
    if before.value is None or after.value is None:
        return None
    difference = after.value - before.value
    interval = difference_interval(before.value, before.interval, after.value, after.interval)
    relative = difference / before.value if before.value else None
    return Change(difference, interval, relative, _told(difference, interval, relative, better, sampled))


def _told(difference: float, interval: Interval, relative: float | None, better: int, sampled: bool) -> Told:
    if not better:
        return ""
    if interval is None:
        return "too few samples" if sampled else ""
    if interval[0] <= 0.0 <= interval[1] or (relative is not None and abs(relative) < NEGLIGIBLE):
        return "no clear difference"
    return "better" if (difference > 0) == (better > 0) else "worse"


def rows_of(found: Comparison) -> list[dict[str, Any]]:
    """A row a figure and side: for CSV, exports and reports."""
    rows = []
    for row in found.figures:
        for side, one, change in zip(found.sides, row.values, row.changes, strict=True):
            low, high = one.interval or (None, None)
            of_low, of_high = (change.interval if change is not None else None) or (None, None)
            rows.append(
                {
                    "figure": row.id, "title": row.title, "unit": row.unit, "run": side.name, "attempt": side.attempt,
                    "baseline": side is found.sides[found.baseline], "value": one.value, "low": low, "high": high,
                    "difference": change.difference if change else None, "difference_low": of_low, "difference_high": of_high,
                    "relative": change.relative if change else None, "told": change.told if change else "",
                }
            )  # fmt: skip
    return rows


# --- distributions -------------------------------------------------------------------------------------------


def _overlay(sides: Sequence[Side], metric: Metric) -> Overlay | None:
    curves = [side.curves.get(metric) for side in sides]
    below = [np.asarray(curve.below) if curve is not None and curve.n else None for curve in curves]
    known = [cells for cells in below if cells is not None]
    if not known:
        return None
    # the narrowest stretch of the grid that holds every sample of every side
    first = min(int(np.searchsorted(cells, 0, side="right")) - 1 for cells in known)
    last = max(int(np.searchsorted(cells, cells[-1], side="left")) for cells in known)
    first, last = max(0, first), max(first + 1, min(CELLS, last))
    step = max(1, -(-(last - first) // _BINS))
    places = [*range(first, last, step), last]
    counts: list[list[int]] = []
    for cells, curve in zip(below, curves, strict=True):
        if cells is None or curve is None:
            counts.append([])
            continue
        edges = cells[places]
        edges[0], edges[-1] = 0, curve.n  # what lies beyond the grid belongs to its ends
        counts.append(np.diff(edges).tolist())
    limits = [{"ttft": side.shape.ttft_limit_ms, "tpot": side.shape.tpot_limit_ms}.get(metric) for side in sides]
    return Overlay(
        metric, limits, EDGES_MS[places].tolist(), counts, [list(curve.cdf) if curve is not None else [] for curve in curves]
    )


# --- is it a fair comparison? ----------------------------------------------------------------------------------


def warnings_of(sides: Sequence[Side], heads: Sequence[SideHead]) -> list[str]:
    found = []
    for what, values in (
        ("model", [head.model for head in heads]),
        ("scenario", [head.scenario for head in heads]),
        ("kind of attempt", [head.kind for head in heads]),
    ):
        if len(set(filter(None, values))) > 1:
            found.append(f"the {what} differs: {_told_by(values, heads)}")
    if "explore" in {head.kind for head in heads} and {head.kind for head in heads} != {"explore"}:
        found.append("an exploration has no LoadGen: its load is our own, its rate may have changed, and it is never VALID")
    data = [said(table(side.run.spec, "dataset")) for side in sides]
    fields = sorted({name for one in data for name in one if len({other.get(name) for other in data if other}) > 1})
    if fields:
        found.append(f"the dataset differs ({', '.join(fields)}): lengths and TTFT are not of the same work")
    for name, limits in (
        ("TTFT", [side.shape.ttft_limit_ms for side in sides]),
        ("TPOT", [side.shape.tpot_limit_ms for side in sides]),
    ):
        if len(set(limits)) > 1:
            found.append(f"the limit of {name} differs: {_told_by([f'{one:,g} ms' if one else 'none' for one in limits], heads)}")
    if len({head.synthetic for head in heads}) > 1:
        fake = ", ".join(head.name for head in heads if head.synthetic)
        found.append(f"synthetic engine in {fake}: a model's numbers beside hardware's")
    if _differently_asked(sides):
        asked = _told_by([f"{side.attempt.target_qps:,g}" for side in sides], heads)
        found.append(f"target QPS differs ({asked}): rates are what was asked for, not what the fleets can do")
    if len({head.replicas for head in heads if head.replicas}) > 1:
        found.append(f"replicas differ: {_told_by([f'{head.replicas:,}' for head in heads], heads)}; compare per replica or GPU")
    for side, head in zip(sides, heads, strict=True):
        if not side.samples:
            origin = f"imported from {head.imported} files" if head.imported else "its record has none"
            found.append(f"{head.name} has no samples ({origin}): figures as stated, without intervals or distributions")
        elif not side.run.ended_unix and side.attempt.state != "ENDED":
            found.append(f"{head.name} goes on, or its head is gone: figures until now")
    return found


def _told_by(values: Sequence[str], heads: Sequence[SideHead]) -> str:
    """`A: x; B and C: y`"""
    whose: dict[str, list[str]] = {}
    for value, head in zip(values, heads, strict=True):
        whose.setdefault(value or "not said", []).append(head.name)
    return "; ".join(f"{value} in {', '.join(names)}" for value, names in whose.items())
