"""Pages and rows of `paceline compare`, `scaling` and `definitions`."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from console.cli.output import number, plural, say, table, typed

if TYPE_CHECKING:
    from harness.analysis.comparing import Change, Comparison, FigureRow, SideHead
    from harness.analysis.definitions import Definition
    from harness.analysis.scaling import Beside, ScaledRun, ScaleGroup, Scaling

#: Up to so many columns of runs, each figure has its interval beside it.
_WITH_INTERVALS: Final = 3
_LONGEST_VALUE: Final = 40
_WHYS: Final = 4  # of runs that a scaling view leaves out


def short(value: float | None) -> str:
    """Four digits that count, and no more: `1,234`, `123.4`, `12.34`."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    return f"{value:,.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 4}f}"


# --- compare -------------------------------------------------------------------------------------------------


def say_comparison(found: Comparison) -> None:
    base = found.sides[found.baseline]
    say(f"{plural(len(found.sides), 'attempt')}, compared with {base.name}\n")
    for warning in found.warnings:
        say(f"! {warning}")
    if found.warnings:
        say()
    intervals = len(found.sides) <= _WITH_INTERVALS
    rows: list[list[str]] = [["", *(_about(side) for side in found.sides)]]
    group = ""
    for row in found.figures:
        if row.group != group:
            group = row.group
            rows.append([group])
        unit = f" {row.unit}" if row.unit and row.unit not in row.title else ""
        rows.append([f"  {row.title}{unit}", *(_cell(row, at, intervals) for at in range(len(found.sides)))])
    width = len(found.sides) + 1
    say(table(["", *(side.name for side in found.sides)], [row + [""] * (width - len(row)) for row in rows]))
    how = "in brackets the 95 % interval" if intervals else "intervals: --csv, --json, or up to three runs at a time"
    say(f"\n{how}; = no clear difference, ? too few samples to tell; `{typed('definitions NAME')}` says what a figure is")
    if found.config:
        say("\nSettings that differ\n")
        named = [[f"{row.group} {row.field}", *(_value(value) for value in row.values)] for row in found.config]
        say(table(["", *(side.name for side in found.sides)], named))
    else:
        say("\nNo setting differs that both records state.")


def _about(side: SideHead) -> str:
    fleet = f"{side.nodes}x{side.replicas // side.nodes}" if side.nodes else "fleet not said"
    fake = ", synthetic" if side.synthetic else ""
    return f"{side.verdict}, {side.kind} {side.scenario}, {fleet}{fake}"


def _cell(row: FigureRow, at: int, intervals: bool) -> str:
    one, change = row.values[at], row.changes[at]
    text = short(one.value)
    if intervals and one.interval is not None:
        text += f" [{short(one.interval[0])}, {short(one.interval[1])}]"
    return f"{text} {_judged(change)}".rstrip() if change is not None else text


_MARKS: Final = {"no clear difference": "=", "too few samples": "?"}


def _judged(change: Change) -> str:
    """`+3.2 % worse`"""
    if change.told in _MARKS:
        return _MARKS[change.told]
    return f"{relative(change)} {change.told}".strip()


def relative(change: Change) -> str:
    """Against the baseline: `+3.2 %`, `x12`; empty where nothing changed or there was nothing."""
    if change.relative is None or not change.difference:
        return "" if not change.difference else f"({'+' if change.difference > 0 else ''}{short(change.difference)})"
    return f"{change.relative * 100:+.1f} %" if change.relative < 1 else f"x{change.relative + 1:,.1f}"


def _value(text: str | None) -> str:
    if text is None:
        return "-"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


# --- scaling -------------------------------------------------------------------------------------------------

_COLUMNS: Final = ("N", "", "verdict", "tokens/s", "a node", "a GPU", "QPS", "efficiency", "TTFT p99 ms", "TPOT p99 ms")


def say_scaling(found: Scaling, folder: Path | None) -> None:
    if not found.groups:
        say(f"no run with a performance attempt in {folder}" if folder is not None else "no run with a performance attempt")
    for group in found.groups:
        fake = " · synthetic: a model's numbers, not hardware's" if group.synthetic else ""
        say(f"{group.model} {group.scenario}{fake}\n")
        say(table(_COLUMNS, _scale_lines(group), right=(0, *range(3, len(_COLUMNS)))))
        for remark in group.remarks:
            say(f"! {remark}")
        for one in group.references:
            share = f"; {100 * one.share_per_gpu:.0f} % of its tokens/s a GPU here" if one.share_per_gpu is not None else ""
            say(f"published: {one.source}{share}")
        say()
    if found.groups:
        say(found.formula)
    if found.left_out and folder is None:
        say("\n".join(f"left out: {name}: {why}" for name, why in found.left_out))
    elif found.left_out:
        whys = Counter(why for _, why in found.left_out).most_common(_WHYS)
        say("\n".join(f"{plural(n, 'run')} left out: {why}" for why, n in whys))
        if len(found.left_out) > (told := sum(n for _, n in whys)):
            say(f"{plural(len(found.left_out) - told, 'run')} more left out (--json says which and why)")


def _scale_lines(group: ScaleGroup) -> list[list[str]]:
    lines = []
    for point in group.points:
        efficiency = f"{point.efficiency:.1f} %" if point.efficiency is not None else "-"
        lines.append([f"{point.nodes:,}", *_run_cells(point.best, efficiency)])
        lines += [["", *_run_cells(other, "")] for other in point.others]
    return lines + [[f"{one.point.nodes:,}", *_reference_cells(one)] for one in group.references]


def _run_cells(run: ScaledRun, efficiency: str) -> list[str]:
    figures = (run.tokens_per_s, run.tokens_per_s_node, run.tokens_per_s_gpu, run.completed_qps)
    return [run.name, run.verdict, *map(short, figures), efficiency, number(run.ttft_p99_ms), number(run.tpot_p99_ms)]


def _reference_cells(one: Beside) -> list[str]:
    point = one.point
    figures = (point.tokens_per_s, one.tokens_per_s_node, one.tokens_per_s_gpu, point.samples_per_s)
    return [one.title, "published", *map(short, figures), "", number(point.ttft_p99_ms), number(point.tpot_p99_ms)]


# --- definitions ---------------------------------------------------------------------------------------------


def say_found(found: Sequence[Definition], *, whole: bool) -> None:
    """One below the other: formulas are sentences, and a table of sentences is no table."""
    width = min(100, max(60, shutil.get_terminal_size().columns))
    for one in found:
        unit = f" ({one.unit})" if one.unit else ""
        say(f"{one.id}: {one.title}{unit}")
        lines = [one.formula, f"{one.window}; from {one.source}"] if whole else [one.formula]
        for line in lines:
            say(textwrap.fill(line, width, initial_indent="    ", subsequent_indent="    "))
    if not whole:
        say(f"\n`{typed('definitions NAME')}` also says of which time a figure is and where it comes from")
