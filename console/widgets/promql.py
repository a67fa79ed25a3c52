"""Panes of the Metrics screen: what came of the question, its series as a table, and every metric that could be asked for."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from rich.style import Style
from textual.strip import Strip

from console.store.gpus import COLUMN_OF
from console.store.promql import DRAWN, Series, Span, series_of, together
from console.widgets import fmt
from console.widgets.chart import Line, Picture
from console.widgets.listing import LinesPane
from console.widgets.paint import Painted, Run, fitting, spread, strip_of
from harness.wire.inquiry import MetricCurves, MetricName

#: Inks of the lines of a chart, one after the other and round again.
INKS: Final = (
    "chart-offered", "chart-completed", "chart-p99", "chart-target", "heat-6", "state-warming", "state-drained", "chart-p50",
)  # fmt: skip
_PROBLEM_LINES: Final = 4
_FIGURE: Final = 10
_SPAN_WORDS: Final = {"now": "now", "15 min": "last 15 min", "attempt": "the attempt", "run": "the whole run"}


@dataclass(slots=True)
class Asked:
    """What the screen knows of its question. `problem`: why there is no answer; `wrong`: why it was not even sent."""

    query: str = ""
    span: Span = "now"
    wrong: str = ""
    problem: str = ""
    waiting: bool = False
    heard_s: float = math.nan
    answer: MetricCurves | None = None
    answered: str = ""  # the query that `answer` is of: one that was refused leaves the last answer there
    series: list[Series] = field(default_factory=list)

    def take(self, answer: MetricCurves, query: str, now_s: float) -> None:
        self.waiting, self.wrong, self.heard_s = False, "", now_s
        self.problem = answer.problem
        if not answer.problem:
            self.answer, self.answered, self.series = answer, query, series_of(answer)

    @property
    def over_time(self) -> bool:
        return self.answer is not None and self.answer.kind == "matrix"


def figure(value: float) -> str:
    """Any metric's value, whatever its unit: four digits that matter."""
    if math.isnan(value):
        return fmt.UNKNOWN
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if (value == int(value) or abs(value) >= 1000) and abs(value) < 1e7:
        return f"{value:,.0f}"
    return fmt.big(value) if abs(value) >= 1e4 else f"{value:.4g}"


class AskedPane(Painted):
    """Over which time, how many series, how old and how dear the answer is; or, in words, why there is none."""

    def __init__(self, asked: Asked, source: Callable[[], str], now_s: Callable[[], float], *, id: str | None = None) -> None:
        super().__init__(1, id=id)
        self._asked, self._source, self._now_s = asked, source, now_s

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, asked, answer = self.inks, self._asked, self._asked.answer
        left: list[list[Run]] = [[(f" {_SPAN_WORDS[asked.span]}", ink.primary), (" (w) ", ink.faint)]]
        if asked.waiting:
            left.append([("· asking … ", ink.warn)])
        if answer is not None:
            more = f" of {fmt.count(len(answer.curves) + answer.left_out)}" if answer.left_out else ""
            left.append([(f"· {fmt.count(len(answer.curves))}{more} series ", ink.plain)])
            if asked.answered != asked.query:
                left.append([("· of the query before ", ink.warn)])
            if answer.step_s:
                left.append([(f"· step {answer.step_s:g} s ", ink.muted)])
            left.append([(f"· took {fmt.millis(answer.took_ms)} ", ink.muted)])
            age_s = self._now_s() - asked.heard_s
            if age_s >= 1.5:
                left.append([(f"· {fmt.age(age_s)} ago ", ink.muted)])
        if answer is not None and answer.warnings:
            left.insert(1, [(f" {len(answer.warnings)} {'WARNINGS' if len(answer.warnings) > 1 else 'WARNING'} ", ink.badge),
                            (" ", ink.plain)])  # fmt: skip
        source = [(f"{self._source()} ", ink.muted)]
        lines = [strip_of(spread(fitting(left, width), source if width >= 100 else [], width), width)]
        for text in self._said():
            style = ink.bad if text in (asked.wrong, asked.problem) else ink.warn
            parts = textwrap.wrap(text, max(20, width - 4))[:_PROBLEM_LINES]
            lines += [strip_of([(f" {' ' if row else '▲'} {part}", style)], width) for row, part in enumerate(parts)]
        self.set_lines(len(lines))
        return lines

    def _said(self) -> list[str]:
        asked = self._asked
        warnings = asked.answer.warnings if asked.answer is not None else []
        return [text for text in (asked.wrong, asked.problem, *warnings[:2]) if text]


class SeriesTable(LinesPane):
    """A line for each series, the largest first; the one under the cursor is drawn over all others."""

    #: Room for the scrollbar from the start: one that comes with the lines would cover the last digits.
    DEFAULT_CSS = """
    SeriesTable { overflow-y: auto; scrollbar-gutter: stable; }
    """

    HEADINGS = 1

    def __init__(self, asked: Asked, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._asked = asked

    def count(self) -> int:
        return len(self._asked.series)

    def headings(self, width: int) -> list[Strip]:
        columns = ("LAST", "MIN", "MEAN", "MAX") if self._asked.over_time else ("VALUE",)
        head = "".join(f"{name:>{_FIGURE}}" for name in columns)
        return [strip_of([(f"   {'SERIES':<{self._room(width) - 3}}{head}", self.inks.muted)], width)]

    def _room(self, width: int) -> int:
        return max(12, width - (4 if self._asked.over_time else 1) * _FIGURE)

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        ink, one = self.inks, self._asked.series[at]
        values = one.values[~np.isnan(one.values)]
        figures = [one.last]
        if self._asked.over_time:
            figures += [float(values.min()), float(values.mean()), float(values.max())] if len(values) else [math.nan] * 3
        over_all = self._asked.over_time and at in drawn(self.count())
        mark: Run = ("━ " if over_all else "  ", ink.style(INKS[at % len(INKS)]))
        room = self._room(width)
        style = ink.bold if chosen else ink.plain
        runs: list[Run] = [(self.mark(chosen), ink.primary), mark, (fmt.middle(one.label, room - 4).ljust(room - 3), style)]
        runs.append(("".join(f"{figure(value):>{_FIGURE}}" for value in figures), style))
        return strip_of(runs, width, ink.cursor if chosen and self.has_focus else None)

    def nothing(self) -> str:
        asked = self._asked
        if asked.answer is not None and asked.answer.text:
            return f" {asked.answer.text}"
        if asked.answer is not None:
            return " the answer has no series: nothing of that name, or nothing in this span"
        return " / types a query, m shows every metric there is"


def picture(asked: Asked, chosen: int) -> Picture:
    """At most DRAWN lines, and the one under the cursor over all others."""
    series = asked.series
    at = [number for number in drawn(len(series)) if number != chosen] + [chosen] * (0 <= chosen < len(series))
    unix, rows = together([series[number] for number in at])
    lines = [
        Line("", "foreground" if number == chosen else INKS[number % len(INKS)], row)
        for number, row in zip(at, rows, strict=True)
    ]
    return Picture(unix, lines, floor=None)


def drawn(count: int) -> Collection[int]:
    """Which of so many series, largest first, a chart shows: all, or both ends, since what is odd is at one of them."""
    return range(count) if count <= DRAWN else [*range(DRAWN // 2), *range(count - DRAWN // 2, count)]


class NamesPane(LinesPane):
    """Name, type, which role it feeds, and what it is."""

    DEFAULT_CSS = """
    NamesPane { overflow-y: auto; scrollbar-gutter: stable; }
    """

    HEADINGS = 1

    def __init__(self, names: Callable[[], Sequence[MetricName]], nothing: Callable[[], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._names, self._nothing = names, nothing

    def count(self) -> int:
        return len(self._names())

    def nothing(self) -> str:
        return f" {self._nothing()}"

    def _widths(self, width: int) -> tuple[int, int, int]:
        longest = max((len(one.name) for one in self._names()), default=len("METRIC"))
        return min(longest + 2, max(24, width // 2)), 10, 10

    def headings(self, width: int) -> list[Strip]:
        name, kind, role = self._widths(width)
        return [strip_of([(f"   {'METRIC':<{name}}{'TYPE':<{kind}}{'SHOWN AS':<{role}}WHAT IT IS", self.inks.muted)], width)]

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        ink, one = self.inks, self._names()[at]
        name, kind, role = self._widths(width)
        feeds = ", ".join(COLUMN_OF.get(each, each) for each in one.roles)
        runs: list[Run] = [
            ("▌  " if chosen else "   ", ink.primary),
            (fmt.middle(one.name, name - 1).ljust(name), ink.bold if chosen else ink.plain),
            (fmt.clip(one.type or fmt.UNKNOWN, kind - 1).ljust(kind), ink.muted),
            (fmt.clip(feeds, role - 1).ljust(role), ink.good if feeds else ink.faint),
            (fmt.clip(one.help or fmt.UNKNOWN, max(0, width - 3 - name - kind - role)), ink.muted),
        ]
        return strip_of(runs, width, ink.cursor if chosen else None)


class NamesBar(Painted):
    """How many metrics there are and how many of them are shown."""

    def __init__(self, told: Callable[[], tuple[int, int, str]], *, id: str | None = None) -> None:
        super().__init__(1, id=id)
        self._told = told

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        shown, all_of, source = self._told()
        left: list[Run] = [(f" {fmt.count(shown)} of {fmt.count(all_of)} metrics", ink.plain + Style(bold=True)),
                           (" · ↵ puts one into the query · esc goes back", ink.muted)]  # fmt: skip
        return [strip_of(spread(left, [(f"{source} ", ink.muted)] if width >= 100 else [], width), width)]
