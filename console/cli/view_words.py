"""What views and the page of a run have in common: figures as text, the lines of limits and findings, tables as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from console.cli.output import clean, clock, number, say, table, typed
from harness.analysis.views import CALLED
from harness.metrics.kernels import InUse
from harness.records.runfile import plain as numpyless

if TYPE_CHECKING:
    from harness.analysis.views import Finding, Interval, Margin, PartShare, Where

_LEVELS: Final = {"bad": "!!", "warn": "! ", "info": "· ", "good": "+ "}


@dataclass(frozen=True)
class Shown:
    """`figures`: ids of definitions that explain it."""

    data: Any
    rows: list[dict[str, Any]]
    page: str
    figures: Sequence[str] = ()


def plain(value: Any) -> Any:
    """Structs as what JSON has."""
    return clean(msgspec.to_builtins(value, enc_hook=numpyless))


def say_csv(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    if names:
        writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)


def explained(ids: Iterable[str]) -> list[dict[str, Any]]:
    from harness.analysis.definitions import used_ids

    return [msgspec.to_builtins(one) for one in used_ids(ids)]


def say_definitions(definitions: list[dict[str, Any]]) -> None:
    if not definitions:
        return
    say("\nwhat these figures are")
    for one in definitions:
        unit = f" ({one['unit']})" if one["unit"] else ""
        say(f"  {one['title']}{unit}: {one['formula']}\n    window: {one['window']}; from {one['source']}")


def ms(value: float | None) -> str:
    return number(value, 2 if value is not None and abs(value) < 100 else 1)


def share(value: float | None) -> str:
    return "-" if value is None else f"{round(value * 100, 1) + 0.0:.1f}%"


def interval(found: Interval) -> str:
    return "-" if found is None else f"{ms(found[0])} to {ms(found[1])}"


def flat(value: Any, dotted: str = "") -> list[dict[str, Any]]:
    """name, value: of what is no table."""
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in flat(inner, f"{dotted}.{key}" if dotted else str(key))]
    if isinstance(value, list):
        named = [(inner.get("metric") if isinstance(inner, dict) else None) or number for number, inner in enumerate(value, 1)]
        return [row for key, inner in zip(named, value, strict=True) for row in flat(inner, f"{dotted}.{key}")]
    return [{"name": dotted, "value": value}]


def at(value: float) -> str:
    """Of the attempt; before it with a minus."""
    text = clock(abs(value))
    return f"-{text}" if value < 0 and text != "0:00" else text


def margin_lines(margins: Sequence[Margin]) -> list[str]:
    """A line a limit: how far from it, how sure, and how many samples it was broken by."""
    if not margins:
        return []
    rows = [
        [
            f"{CALLED[one.metric]} p99",
            ms(one.p99_ms),
            interval(one.p99_interval_ms),
            ms(one.limit_ms),
            share(one.head_room),
            number(one.over),
            "too few samples" if one.allowed_over is None else number(one.allowed_over),
        ]
        for one in margins
    ]
    titles = ["limits", "p99 ms", "95% interval", "limit ms", "head room", "over it", "allowed over"]
    return ["", table(titles, rows, right=range(1, 7))]


def finding_lines(findings: Sequence[Finding], run: str) -> list[str]:
    if not findings:
        return []
    lines = ["", "findings"]
    for one in findings:
        lines.append(f"  {_LEVELS.get(one.level, '· ')} {one.text}")
        if one.view:
            lines.append(f"       {typed(f'show {run} {way_to(one)}')}")
    return lines


def way_to(found: Finding) -> str:
    """The options that show what a finding speaks of."""
    options = [f"--view {found.view}"]
    if found.metric is not None and found.view in ("tail", "slowest", "distributions"):
        options.append(f"--metric {found.metric}")
    if found.by is not None and (found.view == "tail" or (found.view == "fleet" and found.by in ("replica", "node"))):
        options.append(f"--by {found.by.replace(' ', '-')}")
    if found.view in ("tail", "slowest"):
        options += _where_options(found.where)
    return " ".join(options)


def _where_options(where: Where) -> list[str]:
    given = [(name.replace("_", "-"), getattr(where, name)) for name in where.__struct_fields__]
    return [
        f"--{name} {value:.10g}" if isinstance(value, float) else f"--{name} {value}"
        for name, value in given
        if value is not None
    ]


def part_words(parts: Sequence[PartShare]) -> str:
    """The means of the parts of all samples, and of the slowest 1 %."""
    usual = " + ".join(f"{one.name} {ms(one.mean_ms)}" for one in parts)
    slow = " + ".join(f"{one.name} {ms(one.tail_mean_ms)}" for one in parts if one.tail_mean_ms is not None)
    return f"is on average {usual} ms" + (f"\n          in the slowest 1 % {slow} ms" if slow else "")


def kernel_lines(kernels: list[dict[str, Any]], shown: int = 4) -> list[str]:
    """Which MoE kernels ran with which tables; nothing of a model without such layers."""
    lines = [f"{'MoE kernel' if at == 0 else '':<10} {InUse(**row).words}" for at, row in enumerate(kernels[:shown])]
    return lines + ([f"{'':<10} and {len(kernels) - shown:,d} more (--json has all)"] if len(kernels) > shown else [])
