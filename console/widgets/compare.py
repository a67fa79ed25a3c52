"""Runs side by side: figures with what their differences are worth, distributions over one another, settings that differ.

The first column is always the baseline; where there is no room for all others, ← and → go through them. That a difference is
good or bad is a word or a sign, not only a colour: `▴` better, `▾` worse, `=` no clear difference, `?` too few samples.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Final, Literal

from rich.style import Style
from textual.strip import Strip

from console.widgets import fmt
from console.widgets.curves import INKS
from console.widgets.listing import LinesPane
from console.widgets.paint import Paint, Run, strip_of

if TYPE_CHECKING:
    from harness.analysis.comparing import Change, Comparison, FigureRow, Overlay
    from harness.analysis.settings import ConfigRow
    from harness.analysis.sides import Measured

View = Literal["figures", "distributions", "settings"]
VIEWS: Final[tuple[View, ...]] = ("figures", "distributions", "settings")
_GLYPHS: Final = {"better": "▴", "worse": "▾", "no clear difference": "=", "too few samples": "?"}
_LEAST: Final = 19  # of a column: a value, and what it differs by
_WITH_INTERVAL: Final = 30
_INTERVAL: Final = 13
_MOST: Final = 46


def figure(value: float | None, unit: str) -> str:
    if value is None or not math.isfinite(value):
        return fmt.UNKNOWN
    if unit == "ms":
        return fmt.millis(value)
    if unit == "s":
        return fmt.clock(value)
    if unit == "%":
        return f"{value:.3g}%"
    return f"{value:,.1f}" if abs(value) < 1000 and value != int(value) else f"{value:,.0f}"


def changed(change: Change) -> str:
    """`+52%`, `x7.6`; empty where nothing changed."""
    if change.relative is None or not change.difference:
        return ""
    return f"{change.relative * 100:+.1f}%" if change.relative < 1 else f"x{change.relative + 1:,.1f}"


def between(one: Measured, unit: str) -> str:
    """`36.5 … 37.0 ms`, empty without an interval."""
    if one.interval is None:
        return ""
    return f"{figure(one.interval[0], unit)} … {figure(one.interval[1], unit)}"


def _narrow(one: Measured, unit: str) -> str:
    """`36.5–37.0`: the value beside it has the unit, unless the two ends do not share it. Of long numbers `±1.6%`."""
    if one.interval is None:
        return ""
    low, high = (figure(end, unit) for end in one.interval)
    number, _, word = low.partition(" ")
    text = f"{number}–{high.partition(' ')[0]}" if high.partition(" ")[2] == word else f"{low}–{high}"
    if len(text) < _INTERVAL or not one.value:
        return text
    return f"±{max(one.interval[1] - one.value, one.value - one.interval[0]) / abs(one.value) * 100:.2g}%"


class ComparePane(LinesPane):
    HEADINGS = 2

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.found: Comparison | None = None
        self.view: View = "figures"
        self.metric = 0  # which overlay
        self.first = 0  # of the sides beside the baseline, the first that is shown
        self.said = "reading …"
        self._lines: list[FigureRow | ConfigRow | str] = []

    def put(self, found: Comparison) -> None:
        self.found = found
        self.choose(self.view)

    def say(self, text: str) -> None:
        """Until there is something to show."""
        self.said = text
        self.repaint()

    def choose(self, view: View) -> None:
        self.view, self.at = view, 0
        self._lines = self._lines_of(view)
        self.scroll_to(y=0, animate=False, immediate=True)
        self._entitle()
        if self._lines and not self.can_choose(0):
            self.move(1)
        self.show_cursor()

    def _lines_of(self, view: View) -> list[FigureRow | ConfigRow | str]:
        if (found := self.found) is None:
            return []
        lines: list[FigureRow | ConfigRow | str] = []
        group: str
        if view == "settings":
            for group in dict.fromkeys(row.group for row in found.config):
                lines += ["", group, *(row for row in found.config if row.group == group)]
            return lines[1:]
        rows = found.figures
        if view == "distributions":
            name = self.overlay.metric if self.overlay is not None else ""
            return [row for row in rows if row.id.startswith(f"{name}_") or row.id == f"over_{name}_share"]
        width = max(40, self.scrollable_content_region.width - 4)
        for warning in found.warnings:
            first, *more = textwrap.wrap(warning, width)
            lines += [f"! {first}", *(f"  {text}" for text in more)]
        lines += [""] if found.warnings else []
        group = ""
        for row in rows:
            if row.group != group:
                lines += ["", row.group] if group else [row.group]
                group = row.group
            lines.append(row)
        return lines

    @property
    def overlay(self) -> Overlay | None:
        found = self.found
        return found.overlays[self.metric % len(found.overlays)] if found is not None and found.overlays else None

    def _entitle(self) -> None:
        if self.found is None:
            return
        rest = [view for view in VIEWS if view != self.view]
        base = self.found.sides[self.found.baseline].name
        self.entitle(f"{self.view} · {len(self.found.sides)} attempts, compared with {base} · tab: {', '.join(rest)}")

    # --- columns -------------------------------------------------------------------------------------------------

    def order(self) -> list[int]:
        """Sides from left to right, the baseline first."""
        if self.found is None:
            return []
        rest = [at for at in range(len(self.found.sides)) if at != self.found.baseline]
        return [self.found.baseline, *rest]

    def shown(self, width: int) -> tuple[int, int, list[int]]:
        """Width of the names, width of a column, and which sides are shown."""
        order = self.order()
        name = 26 if width >= 110 or 28 + len(order) * _LEAST <= width else 19
        fit = max(2, (width - name - 2) // _LEAST)
        beside = order[1:]
        last = max(0, len(beside) - (fit - 1))
        self.first = min(self.first, last)
        chosen = order[:1] + beside[self.first : self.first + fit - 1]
        return name, min(_MOST, (width - name - 2) // max(1, len(chosen))), chosen

    def scroll_sides(self, by: int) -> None:
        self.first = max(0, self.first + by)
        self.repaint()

    # --- lines ---------------------------------------------------------------------------------------------------

    def count(self) -> int:
        return len(self._lines)

    def can_choose(self, at: int) -> bool:
        return at < len(self._lines) and not isinstance(self._lines[at], str)

    @property
    def row(self) -> FigureRow | ConfigRow | None:
        one = self._lines[self.at] if self.at < len(self._lines) else None
        return None if isinstance(one, str) else one

    def nothing(self) -> str:
        if self.found is None:
            return self.said
        return {
            "settings": "no setting differs that the records state",
            "distributions": "none of these records has samples: there are no distributions",
            "figures": "these records have no figures",
        }[self.view]

    def headings(self, width: int) -> list[Strip]:
        found, ink = self.found, self.inks
        if found is None:
            return []
        name, each, order = self.shown(width)
        titles: list[Run] = [(" " * (name + 2), ink.muted)]
        about: list[Run] = [(" " * (name + 2), ink.muted)]
        for at in order:
            side = found.sides[at]
            mark = "base " if at == found.baseline else ""
            titles += [
                (f"{at + 1} ", ink.style(INKS[at % len(INKS)])),
                (mark, ink.muted),
                (fmt.pad(fmt.middle(side.name, each - 4 - len(mark)), each - 2 - len(mark)), ink.bold),
            ]
            style = {"VALID": ink.good, "INVALID": ink.bad, "CRASHED": ink.bad}.get(side.verdict, ink.warn)
            fake = "synthetic " if side.synthetic else ""
            fleet = f"{side.nodes}x{side.replicas // side.nodes} " if side.nodes else ""
            words = fmt.clip(side.verdict, each - 2)
            rest = fmt.clip(f" {fleet}{side.scenario} {fake}".rstrip(), each - 1 - len(words))
            about += [(words, style), (rest.ljust(each - len(words)), ink.muted)]
        hidden = len(found.sides) - len(order)
        if hidden:
            titles[0] = (f" ← → {hidden} more".ljust(name + 2), ink.warn)
        return [strip_of(titles, width), strip_of(about, width)]

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        ink, one = self.inks, self._lines[at]
        if isinstance(one, str):
            return strip_of([(f" {one}", ink.warn if one.startswith(("! ", "  ")) else ink.bold)], width)
        name, each, order = self.shown(width)
        runs: list[Run] = [(self.mark(chosen), ink.primary)]
        if hasattr(one, "field"):
            runs.append((f"{fmt.middle(one.field, name)} ".ljust(name + 1), ink.muted))
            base = one.values[order[0]]
            for side in order:
                text = fmt.UNKNOWN if one.values[side] is None else str(one.values[side])
                runs.append((fmt.pad(fmt.clip(text, each - 2), each), ink.plain if one.values[side] == base else ink.warn))
        else:
            runs.append((fmt.middle(one.title, name).ljust(name + 1), ink.muted))
            for side in order:
                runs += self._cell(one, side, each, ink)
        return strip_of(runs, width, ink.cursor if chosen else None)

    @staticmethod
    def _cell(row: FigureRow, side: int, each: int, ink: Paint) -> list[Run]:
        one, change = row.values[side], row.changes[side]
        runs: list[Run] = [(f"{figure(one.value, row.unit):>9}", ink.plain)]
        left = each - 9
        if each >= _WITH_INTERVAL:
            runs.append((f" {_narrow(one, row.unit)}".ljust(_INTERVAL), ink.faint))
            left -= _INTERVAL
        text, style = _told(change, ink)
        runs.append((fmt.clip(f" {text}", left).ljust(left), style))
        return runs


def _told(change: Change | None, ink: Paint) -> tuple[str, Style]:
    if change is None:
        return "", ink.muted
    glyph = _GLYPHS.get(change.told, "")
    if change.told in ("better", "worse"):
        return f"{changed(change)}{glyph}", ink.good if change.told == "better" else ink.bad
    return glyph or changed(change), ink.faint if glyph else ink.muted


def about(found: Comparison, row: FigureRow | ConfigRow | None) -> str:
    """The row under the cursor in a sentence: every side's value with its interval, and what the difference is worth."""
    if row is None:
        return ""
    if hasattr(row, "field"):
        return " · ".join(
            f"{side.name}: {fmt.UNKNOWN if value is None else value}" for side, value in zip(found.sides, row.values, strict=True)
        )
    told = []
    for side, one, change in zip(found.sides, row.values, row.changes, strict=True):
        interval = between(one, row.unit)
        text = f"{side.name}: {figure(one.value, row.unit)}" + (f" ({interval})" if interval else "")
        if change is not None and change.told:
            text += f", {changed(change)} {change.told}".replace("  ", " ")
        told.append(text)
    return f"{row.title}: " + " · ".join(told)
