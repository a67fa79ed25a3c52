"""Sections on how it went: over time, distributions, where the tail comes from, acts and what they changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from harness.analysis.definitions import used_ids
from harness.analysis.views import By, Change, Effect, Mark, Tail, TailGroup
from harness.report import charts, tail_charts
from harness.report.charts import NAMES, Scope
from harness.report.document import Block, Cell, Column, Folded, Heading, Level, Remarks, Section, Table, Text, number, span
from harness.report.gather import Content

_MARKS_SHOWN: Final = 30
_GROUPS_SHOWN: Final = 12
_EFFECTS_SHOWN: Final = 20
_TOLD: Final[dict[str, Level]] = {"better": "good", "worse": "bad"}


def utc(unix: float | None) -> str:
    """The same everywhere: a report travels, and two of one record are equal."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix)) if unix else "-"
    except (OverflowError, ValueError, OSError):  # of a damaged record
        return "?"


def over_time(content: Content, scope: Scope) -> Section | None:
    chart = charts.timeline(scope, content.timeline, content.limits_ms)
    marks = sorted(content.timeline.marks, key=lambda mark: mark.at_s)
    blocks: list[Block] = [chart] if chart is not None else []
    if marks:
        drawn = {id(mark): str(order) for order, mark in enumerate(charts.numbered(content.timeline.marks), 1)}
        drawn |= {id(mark): "▲" for mark in marks if mark.kind == "straggler"}
        first = [mark for mark in marks if id(mark) in drawn][:_MARKS_SHOWN] if len(marks) > _MARKS_SHOWN else marks
        if first:
            blocks.append(_marks(first, drawn, "Numbers and triangles are those of the chart."))
        if len(first) < len(marks):
            cut = f"; {content.timeline.cut:,d} more are in the record" if content.timeline.cut else ""
            blocks.append(Folded(f"All {len(marks):,d} marks{cut}", [_marks(marks, drawn, "")]))
    return Section("time", "Over time", blocks) if blocks else None


def _marks(marks: Sequence[Mark], drawn: dict[int, str], caption: str) -> Table:
    columns = [Column("#"), Column("at s", 1), Column("until s", 1), Column("kind"), Column("subject"), Column("what")]
    rows = [(drawn.get(id(mark), ""), mark.at_s, mark.until_s, mark.kind, mark.subject, mark.text) for mark in marks]
    levels: list[Level | None] = [{"warn": "warn", "bad": "bad", "error": "bad"}.get(mark.level) for mark in marks]  # type: ignore[misc]
    return Table(columns, rows, caption, levels)


def distributions(content: Content, scope: Scope) -> Section | None:
    drawn = [chart for one in content.distributions if (chart := charts.distribution(scope, one)) is not None]
    return Section("distributions", "Distributions", drawn) if drawn else None


# --- the tail ----------------------------------------------------------------------------------------------------------


def tails(content: Content, scope: Scope) -> Section | None:
    blocks: list[Block] = []
    for tail in content.tails:
        if tail.tail_n:
            blocks += _tail(tail, scope)
    return Section("tail", "Where the tail comes from", blocks) if blocks else None


def _tail(tail: Tail, scope: Scope) -> list[Block]:
    above = f", from {number(tail.threshold_ms)} ms on" if tail.threshold_ms is not None else ""
    blocks: list[Block] = [
        Heading(f"{NAMES[tail.metric]}: {tail.rule}"),
        Text(f"{number(tail.tail_n)} of {number(tail.n)} samples{above}."),
    ]
    if tail.findings:
        blocks.append(Remarks([(one.level, one.text) for one in tail.findings]))
    chart = tail_charts.attribution(scope, tail)
    if chart is not None:
        blocks.append(chart)
    if tail.parts:
        columns = [
            Column("part"),
            Column("mean ms", 2),
            Column("p50 ms", 2),
            Column("p99 ms", 2),
            Column("mean in the tail ms", 2),
            Column("% of the excess", 1),
        ]
        rows = [
            (part.name, part.mean_ms, part.p50_ms, part.p99_ms, part.tail_mean_ms, _percent(part.share_of_excess))
            for part in tail.parts
        ]
        known = f"; of {number(tail.without_parts)} samples only the sum is known" if tail.without_parts else ""
        blocks.append(Table(columns, rows, f"Excess: what the tail's mean is above everybody's mean{known}."))
    groups = [_group_table(by, rows) for by, rows in tail.groups.items() if len(rows) > 1]
    if groups:
        names = ", ".join(by for by, rows in tail.groups.items() if len(rows) > 1)
        blocks.append(Folded(f"{NAMES[tail.metric]} tail by {names}", groups))
    return blocks


def _group_table(by: By, rows: Sequence[TailGroup]) -> Table:
    columns = [
        Column(by),
        Column("samples", 0),
        Column("in the tail", 0),
        Column("% of the tail", 1),
        Column("lift", 2),
        Column("p50 ms", 1),
        Column("p99 ms", 1),
    ]
    shown = rows if by not in ("replica", "node") else rows[:_GROUPS_SHOWN]
    cells = [(row.key, row.n, row.tail, _percent(row.share_of_tail), row.lift, row.p50_ms, row.p99_ms) for row in shown]
    left = f"; the first {len(shown)} of {len(rows)}" if len(shown) < len(rows) else ""
    return Table(columns, cells, f"Lift: share of the tail over share of all samples{left}.")


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


# --- acts --------------------------------------------------------------------------------------------------------------


def acts(content: Content) -> Section | None:
    effects = content.effects
    if not effects:
        return None
    blocks: list[Block] = []
    for effect in effects[:_EFFECTS_SHOWN]:
        blocks += _effect(effect)
    if len(effects) > _EFFECTS_SHOWN:
        columns = [Column("at s", 1), Column("act"), Column("subject"), Column("who"), Column("why")]
        rows = [(one.at_s, one.act, one.subject, one.who, one.why) for one in effects[_EFFECTS_SHOWN:]]
        blocks.append(Folded(f"{len(rows):,d} more acts", [Table(columns, rows)]))
    return Section("acts", "Acts and their effects", blocks)


def _effect(effect: Effect) -> list[Block]:
    subject = f" {effect.subject}" if effect.subject else ""
    why = f", because: {effect.why}" if effect.why else ""
    blocks: list[Block] = [
        Heading(f"{effect.act}{subject} at {number(effect.at_s)} s"),
        Text(f"By {effect.who or 'nobody named'} at {utc(effect.unix)}{why}."),
    ]
    if effect.remark:
        blocks.append(Text(effect.remark))
    if effect.changes:
        columns = [
            Column("figure"),
            Column("unit"),
            Column("before", 2),
            Column("95 % interval"),
            Column("after", 2),
            Column("95 % interval"),
            Column("difference, 95 % interval"),
            Column("judgement"),
        ]
        window = (
            f"Windows of {effect.window_s:g} s before and after, {number(effect.settle_s)} s between left out; "
            f"{number(effect.before_n)} and {number(effect.after_n)} samples. Before and after, not because of: whatever else "
            "changed in them is in the differences too."
        )
        levels = [_TOLD.get(change.told) for change in effect.changes]
        blocks.append(Table(columns, [_change(change) for change in effect.changes], window, levels))
    return blocks


def _change(one: Change) -> list[Cell]:
    known = used_ids([one.figure, f"{one.figure}_ms"])
    before, after, difference = (
        span(interval, 2) for interval in (one.before_interval, one.after_interval, one.difference_interval)
    )
    return [known[0].title if known else one.figure, one.unit, one.before, before, one.after, after, difference, one.told]
