"""Sections on what did the work: replicas and nodes, the slowest samples and one's life, GPU metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from harness.analysis.definitions import used_ids
from harness.analysis.views import FleetRow, Life, SampleRow
from harness.report import tail_charts
from harness.report.charts import Scope
from harness.report.document import Block, Column, Folded, Heading, Level, Remarks, Section, Table, Text, number
from harness.report.gather import Content

if TYPE_CHECKING:
    from harness.metrics.gpu.summary import RoleSummary

_ROWS_SHOWN: Final = 16
_JOURNAL_SHOWN: Final = 12
_FAR: Final = 3.5  # robust z from which a replica is called slow


def fleet(content: Content, scope: Scope) -> Section | None:
    if not content.replicas:
        return None
    chart = tail_charts.fleet(scope, content.replicas)
    blocks: list[Block] = [chart] if chart is not None else []
    for rows, name in ((content.nodes, "node"), (content.replicas, "replica")):
        if name == "node" and len(rows) < 2:
            continue
        table = _fleet_table(rows, name)
        blocks.append(table if len(rows) <= _ROWS_SHOWN else Folded(f"All {len(rows):,d} {name}s", [table]))
    blocks.append(Text(" ".join(f"{one.title}: {one.formula}." for one in used_ids(["z"]))))
    return Section("fleet", "Replicas and nodes", blocks)


def _fleet_table(rows: Sequence[FleetRow], name: str) -> Table:
    hosts = any(row.host for row in rows)
    several = any(row.replicas != 1 for row in rows)
    steps = any(row.step_ms is not None for row in rows)
    columns = [
        Column(name), *([Column("host")] if hosts else []), *([Column("replicas", 0)] if several else []), Column("samples", 0),
        Column("failed", 0), Column("tokens/s", 0), Column("TTFT p50 ms", 1), Column("TTFT p99 ms", 1), Column("TPOT p50 ms", 2),
        Column("TPOT p99 ms", 2), *([Column("step ms", 2)] if steps else []), Column("over TTFT", 0), Column("over TPOT", 0),
        Column("re-dispatched", 0), Column("z TTFT", 1), Column("z TPOT", 1), *([Column("z step", 1)] if steps else []),
    ]  # fmt: skip
    cells = [
        (
            row.name,
            *([row.host or "-"] if hosts else []),
            *([row.replicas] if several else []),
            row.samples,
            row.failed,
            row.tokens_per_s,
            row.ttft_p50_ms,
            row.ttft_p99_ms,
            row.tpot_p50_ms,
            row.tpot_p99_ms,
            *([row.step_ms] if steps else []),
            row.over_ttft,
            row.over_tpot,
            row.redispatched,
            row.z_ttft,
            row.z_tpot,
            *([row.z_step] if steps else []),
        )
        for row in rows
    ]
    levels: list[Level | None] = ["warn" if _far(row) else None for row in rows]
    return Table(columns, cells, f"Coloured: a robust z above {_FAR}." if any(levels) else "", levels)


def _far(row: FleetRow) -> bool:
    return any(z is not None and z > _FAR for z in (row.z_ttft, row.z_tpot, row.z_step))


# --- samples -----------------------------------------------------------------------------------------------------------


def slowest(content: Content, scope: Scope) -> Section | None:
    if not content.slowest:
        return None
    columns = [
        Column("sample"),
        Column("dataset index"),
        Column("replica"),
        Column("tries", 0),
        Column("prompt tokens", 0),
        Column("output tokens", 0),
        Column("scheduled s", 2),
        Column("TTFT ms", 1),
        Column("TPOT ms", 2),
        Column("latency ms", 1),
    ]
    blocks: list[Block] = [Table(columns, [_sample(row) for row in content.slowest], "By latency, the slowest first.")]
    if content.life is not None:
        blocks += _life(content.life, scope)
    return Section("slowest", "Slowest samples", blocks)


def _sample(row: SampleRow) -> tuple[str | int | float | None, ...]:
    where = row.slot or "-"
    if row.prefill_slot:
        where = f"{row.prefill_slot} → {where}"
    return (str(row.seq), str(row.index), where, row.tries, row.n_prompt, row.n_tokens, row.scheduled_s, row.ttft_ms, row.tpot_ms,
            row.latency_ms)  # fmt: skip


def _life(life: Life, scope: Scope) -> list[Block]:
    blocks: list[Block] = [Heading(f"Life of the slowest, sample {life.sample.seq}")]
    if life.remarks:
        blocks.append(Remarks([("info", remark) for remark in life.remarks]))
    chart = tail_charts.life(scope, life)
    if chart is not None:
        blocks.append(chart)
    columns = [
        Column("part"),
        Column("at"),
        Column("from ms", 2),
        Column("until ms", 2),
        Column("took ms", 2),
        Column("usual ms", 2),
        Column("% of samples were shorter", 1),
    ]
    rows = [
        (
            one.name,
            one.at,
            one.start_ms,
            one.end_ms,
            one.end_ms - one.start_ms,
            one.usual_ms,
            None if one.rank is None else 100 * one.rank,
        )
        for one in life.segments
    ]
    blocks.append(Table(columns, rows, "Usual: the median of that part over the attempt."))
    if life.gpus:
        blocks.append(
            Table([Column("GPU metric of its replica at that time"), Column("worst value", 2)], sorted(life.gpus.items()))
        )
    if life.journal:
        keys = ("at_s", "who", "what", "subject", "why")
        said = [tuple(_cell(entry.get(key)) for key in keys) for entry in life.journal[:_JOURNAL_SHOWN]]
        blocks.append(
            Folded("What the journal says of that time", [Table([Column("at s", 1), *(Column(key) for key in keys[1:])], said)])
        )
    return blocks


def _cell(value: object) -> str | float | None:
    return value if value is None or isinstance(value, float | int) else str(value)


# --- GPU metrics -------------------------------------------------------------------------------------------------------

#: Unit → what is written, what it is divided by, decimals.
_UNITS: Final[dict[str, tuple[str, float, int]]] = {
    "percent": ("%", 1.0, 1), "share": ("%", 0.01, 1), "watt": ("W", 1.0, 0), "joule": ("MJ", 1e6, 2), "celsius": ("°C", 1.0, 1),
    "byte": ("GB", 1e9, 1), "mhz": ("MHz", 1.0, 0), "count": ("", 1.0, 0),
}  # fmt: skip


def gpus(content: Content) -> Section | None:
    gauges, counts = ([one for one in content.gpus if one.count is count] for count in (False, True))
    blocks: list[Block] = []
    if gauges:
        columns = [Column("metric"), Column("unit"), *(Column(name, 2) for name in ("p50", "min", "max")), Column("GPUs", 0),
                   Column("every s", 0), Column("worst or oddest replicas (mean)")]  # fmt: skip
        rows = [
            (
                one.title,
                _unit(one)[0],
                *(_figure(value, one) for value in (one.p50, one.min, one.max)),
                one.gpus,
                one.every_s,
                _worst(one),
            )
            for one in gauges
        ]
        blocks.append(Table(columns, rows, "Over all GPUs and the whole attempt."))
    if counts:
        columns = [Column("count"), Column("unit"), Column("grew by", 2), Column("GPUs", 0), Column("where most")]
        grown = [(one.title, _unit(one)[0], _figure(one.grew, one), one.gpus, _worst(one)) for one in counts]
        blocks.append(Table(columns, grown, "What running counts grew by while they were watched, fleet together."))
    return Section("gpus", "GPU metrics", blocks) if blocks else None


def _unit(one: RoleSummary) -> tuple[str, float, int]:
    return _UNITS.get(one.unit, (one.unit, 1.0, 2))


def _figure(value: float | None, one: RoleSummary) -> float | None:
    return None if value is None or not math.isfinite(value) else value / _unit(one)[1]


def _worst(one: RoleSummary) -> str:
    return ", ".join(f"{slot}\u00a0{number(_figure(value, one), _unit(one)[2])}" for slot, value in one.worst) or "-"
