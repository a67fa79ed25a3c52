"""The part that stands before the runs of a report on several: their figures side by side, and how they scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from harness.analysis.comparing import Comparison, FigureRow
from harness.analysis.scaling import Scaling
from harness.report import charts
from harness.report.charts import NAMES, overlaid
from harness.report.document import Block, Cell, Column, Folded, Heading, Level, Part, Remarks, Section, Table, number
from harness.report.settings import told

_FIRST: Final = (
    "target_qps", "completed_qps", "tokens_per_s", "tokens_per_s_gpu", "goodput", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms",
    "tpot_p99_ms", "latency_p99_ms", "completed", "failed",
)  # fmt: skip
_LEVELS: Final[dict[str, Level]] = {"better": "good", "worse": "bad"}


def part(found: Comparison, scaled: Scaling | None) -> Part:
    names = [side.name for side in found.sides]
    sections = [_sides(found), _differences(found), *_distributions(found), *_scaling(scaled), *_settings(found)]
    stamps = []
    if odd := [side.name for side in found.sides if side.synthetic]:
        stamps.append(f"SYNTHETIC: simulated replicas, no hardware was measured: {', '.join(odd)}")
    if odd := [side.name for side in found.sides if side.imported]:
        stamps.append(f"IMPORTED from other programs' files: {', '.join(odd)}")
    return Part(
        "comparison", "Comparison", f"{len(names)} attempts; the baseline is {names[found.baseline]}", sections, stamps=stamps
    )


def _sides(found: Comparison) -> Section:
    columns = [
        Column("attempt"),
        Column("verdict"),
        Column("kind"),
        Column("scenario"),
        Column("model"),
        Column("engine"),
        Column("nodes", 0),
        Column("replicas", 0),
        Column("GPUs", 0),
        Column("samples", 0),
        Column("marks"),
    ]
    acts = next(([one.value for one in row.values] for row in found.figures if row.id == "acts"), [None] * len(found.sides))
    rows = [
        (
            side.name,
            side.verdict,
            side.kind,
            side.scenario,
            side.model,
            side.engine,
            side.nodes,
            side.replicas,
            side.gpus,
            side.samples,
            " ".join(
                [
                    *(["SYNTHETIC"] if side.synthetic else []),
                    *(["IMPORTED"] if side.imported else []),
                    *([f"ACTS {acts[place]:,.0f}"] if acts[place] else []),
                ]
            )
            or "-",
        )
        for place, side in enumerate(found.sides)
    ]
    blocks: list[Block] = [Table(columns, rows)]
    lines: list[tuple[Level, str]] = [
        ("warn", f"{side.name} is {side.verdict}: {'; '.join(side.reasons)}") for side in found.sides if side.reasons
    ]
    lines += [("warn", line) for line in found.warnings]
    lines += [("info", line) for line in found.remarks]
    if lines:
        blocks.append(Remarks(lines))
    return Section("sides", "What is compared", blocks)


def _differences(found: Comparison) -> Section:
    first = [row for row in found.figures if row.id in _FIRST]
    others = [side.name for place, side in enumerate(found.sides) if place != found.baseline]
    blocks: list[Block] = [
        _figure_table(
            found, first or found.figures, "Told better or worse where the 95 % interval of the difference leaves zero out."
        )
    ]
    for name in others:
        place = next(at for at, side in enumerate(found.sides) if side.name == name)
        columns = [Column("figure"), Column("unit"), Column("baseline", 2), Column("here", 2), Column("difference", 2),
                   Column("95 % interval"), Column("%", 1), Column("judgement")]  # fmt: skip
        rows, levels = [], []
        for row in found.figures:
            change = row.changes[place]
            if change is None:
                continue
            interval = "-" if change.interval is None else f"{number(change.interval[0], 2)} to {number(change.interval[1], 2)}"
            relative = None if change.relative is None else 100 * change.relative
            rows.append(
                (
                    row.title,
                    row.unit,
                    _whole(row, row.values[found.baseline].value),
                    _whole(row, row.values[place].value),
                    _whole(row, change.difference),
                    interval,
                    relative,
                    change.told,
                )
            )
            levels.append(_LEVELS.get(change.told))
        blocks.append(
            Folded(f"{name} against {found.sides[found.baseline].name}, every figure", [Table(columns, rows, "", levels)])
        )
    return Section("differences", "Figures and differences", blocks)


def _figure_table(found: Comparison, rows: Sequence[FigureRow], caption: str) -> Table:
    columns = [Column("figure"), Column("unit")]
    for place, side in enumerate(found.sides):
        columns.append(Column(side.name, 2))
        if place != found.baseline:
            columns += [Column("%", 1), Column("judgement")]
    cells = []
    for row in rows:
        line: list[Cell] = [row.title, row.unit]
        for place, value in enumerate(row.values):
            line.append(_whole(row, value.value))
            change = row.changes[place]
            if place != found.baseline:
                relative = change.relative if change is not None else None
                line += [None if relative is None else 100 * relative, (change.told if change is not None else "") or "-"]
        cells.append(line)
    return Table(columns, cells, caption)


def _whole(row: FigureRow, value: float | None) -> float | None:
    """Counts of samples without decimals."""
    return int(value) if value is not None and row.group == "samples" and value == int(value) else value


def _distributions(found: Comparison) -> list[Section]:
    drawn: list[Block] = []
    for overlay in found.overlays:
        curves = [(side.name, curve) for side, curve in zip(found.sides, overlay.cdfs, strict=True) if curve]
        if not curves:
            continue
        n = max(sum(counts) for counts in overlay.counts)
        stamps = {"SYNTHETIC" for side in found.sides if side.synthetic} | {"IMPORTED" for side in found.sides if side.imported}
        caption = (
            f"Share of samples at or below, the upper end stretched. Window: each attempt whole; up to {n:,d} samples."
            f"{''.join(f' {stamp}.' for stamp in sorted(stamps))}"
        )
        name = NAMES[overlay.metric]
        drawn.append(overlaid(f"comparison-{overlay.metric}", f"{name} of all attempts", caption, curves, n))
    return [Section("distributions", "Distributions over each other", drawn)] if drawn else []


def _scaling(found: Scaling | None) -> list[Section]:
    """Where runs of one model and scenario differ in nodes."""
    blocks: list[Block] = []
    for group in found.groups if found is not None else ():
        if len(group.points) < 2:
            continue
        stamp = " SYNTHETIC." if group.synthetic else ""
        columns = [
            Column("nodes", 0), Column("run"), Column("verdict"), Column("tokens/s", 0), Column("a node", 1), Column("a GPU", 1),
            Column("completed QPS", 1), Column("efficiency %", 1), Column("TTFT p99 ms", 1), Column("TPOT p99 ms", 2),
        ]  # fmt: skip
        rows = [
            (
                point.nodes, f"{point.best.name}, attempt {point.best.attempt}", point.best.verdict, point.best.tokens_per_s,
                point.best.tokens_per_s_node, point.best.tokens_per_s_gpu, point.best.completed_qps, point.efficiency,
                point.best.ttft_p99_ms, point.best.tpot_p99_ms,
            )
            for point in group.points
        ]  # fmt: skip
        told = f"{found.formula if found else ''}. Output tokens/s of each run's best performance attempt.{stamp}"
        blocks += [Heading(f"{group.model}, {group.scenario}"), charts.scaling(group, stamp), Table(columns, rows, told)]
        if group.remarks:
            blocks.append(Remarks([("info", remark) for remark in group.remarks]))
    return [Section("scaling", "Scaling", blocks)] if blocks else []


def _settings(found: Comparison) -> list[Section]:
    if not found.config:
        return []
    columns = [Column("from"), Column("field"), *(Column(side.name) for side in found.sides)]
    rows = [
        (row.group, row.field, *(told(row.field, value) for value in row.values))
        for row in found.config
    ]  # fmt: skip
    return [Section("settings", "Settings in which they differ", [Table(columns, rows)])]
