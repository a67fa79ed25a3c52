"""Braille line chart with a limit line and marks for acts. Our own raster: a plot library costs 15 times as much a paint.

A cell is 2 x 4 dots. Series are drawn in order, so the last one wins the colour of a shared cell; the limit is a dashed
line in the cells that no series uses; the last line is the time axis with a mark under every act.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from textual.strip import Strip

from console.widgets.paint import Painted, Run, strip_of

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_LABEL = 7
SECONDS_BELOW_S = 600.0  # a span under ten minutes has seconds on its axis


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    ink: str  # theme variable
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Picture:
    """What a chart shows: lines of equal length over `unix`, newest last."""

    unix: NDArray[np.float64]
    lines: Sequence[Line]
    limit: float | None = None
    marks: Sequence[tuple[float, str, bool]] = field(default_factory=tuple)  # when, name, whether an act
    floor: float | None = 0.0


class BrailleChart(Painted):
    def __init__(
        self,
        title: Callable[[], str],
        picture: Callable[[], Picture],
        label: Callable[[float], str],
        *,
        span_s: int = 480,
        id: str | None = None,
    ) -> None:
        super().__init__(5, id=id)
        self._title, self._picture, self._label, self._span_s = title, picture, label, span_s

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, picture = self.inks, self._picture()
        legend = "  ".join(f"[${line.ink}]{line.name}[/]" for line in picture.lines)
        self.entitle(f"{self._title()}  {legend}")
        rows, columns = height - 1, width - _LABEL
        if len(picture.unix) < 2 or rows < 1 or columns < 8:
            return [strip_of([(" not enough time measured yet", ink.faint)], width)]
        newest = float(picture.unix[-1])
        oldest = max(newest - self._span_s, float(picture.unix[0]))
        if all(np.isnan(line.values[picture.unix >= oldest]).all() for line in picture.lines):
            return [strip_of([(" no values in this span", ink.faint)], width)]
        low, high = self._range(picture, oldest)
        cells, owner = self._raster(picture, oldest, newest, (low, high), (rows, columns))
        limit_row = -1
        if picture.limit is not None and low <= picture.limit <= high:
            limit_row = min(rows - 1, int((high - picture.limit) / (high - low) * rows))
        styles = [ink.style(line.ink) for line in picture.lines]
        lines = []
        for row in range(rows):
            label = self._axis_label(row, rows, low, high, limit_row, picture.limit)
            runs: list[Run] = [(label, ink.style("chart-limit") if row == limit_row else ink.faint)]
            for column in range(columns):
                if cells[row, column]:
                    runs.append((chr(0x2800 + int(cells[row, column])), styles[int(owner[row, column])]))
                else:
                    runs.append(("╌", ink.style("chart-limit")) if row == limit_row else (" ", ink.plain))
            lines.append(strip_of(runs, width))
        return [*lines, self._time_axis(picture, oldest, newest, columns, width)]

    def _range(self, picture: Picture, oldest: float) -> tuple[float, float]:
        recent = picture.unix >= oldest
        values = np.concatenate([line.values[recent] for line in picture.lines])
        values = values[~np.isnan(values)]
        high = float(values.max()) if len(values) else 1.0
        low = float(values.min()) if len(values) and picture.floor is None else (picture.floor or 0.0)
        if picture.limit is not None and high > 0.4 * picture.limit:
            high = max(high, picture.limit)
        return low, (high if high > low else low + 1.0) * 1.04

    @staticmethod
    def _raster(
        picture: Picture, oldest: float, newest: float, bounds: tuple[float, float], size: tuple[int, int]
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        (low, high), (rows, columns) = bounds, size
        cells = np.zeros((rows, columns), dtype=np.uint8)
        owner = np.zeros((rows, columns), dtype=np.uint8)
        wide, tall = columns * 2, rows * 4
        grid = np.linspace(oldest, newest, wide)
        for number, line in enumerate(picture.lines):
            known = ~np.isnan(line.values)
            if not known.any():
                continue
            values = np.interp(grid, picture.unix[known], line.values[known], left=math.nan, right=math.nan)
            dots = np.clip((high - values) / (high - low) * tall, 0, tall - 1)
            before = -1
            for x, dot in enumerate(dots):
                if math.isnan(dot):
                    before = -1
                    continue
                y = int(dot)
                start, end = (y, y) if before < 0 else (min(y, before + (before < y)), max(y, before - (before > y)))
                for step in range(start, end + 1):
                    cells[step // 4, x // 2] |= _DOTS[step % 4][x % 2]
                    owner[step // 4, x // 2] = number
                before = y
        return cells, owner

    def _axis_label(self, row: int, rows: int, low: float, high: float, limit_row: int, limit: float | None) -> str:
        if row == limit_row and limit is not None:
            text = self._label(limit)
        elif row == 0 and limit_row != 1:
            text = self._label(high / 1.04)
        elif row == rows - 1:
            text = self._label(low)
        else:
            text = ""
        return f"{text:>{_LABEL - 1}}" + ("┤" if text else "│")

    def _time_axis(self, picture: Picture, oldest: float, newest: float, columns: int, width: int) -> Strip:
        ink = self.inks
        axis = ["─"] * columns
        form = "%H:%M:%S" if newest - oldest < SECONDS_BELOW_S else "%H:%M"
        start, end = (time.strftime(form, time.localtime(unix)) for unix in (oldest, newest))
        per_s = (columns - 1) / max(1.0, newest - oldest)
        places = [(int((unix - oldest) * per_s), name, act) for unix, name, act in sorted(picture.marks)]
        if any(at >= columns - len(end) - 1 for at, _, _ in places):  # something happened just now: both times go to the left
            whole = f"{start}…{end}"
            start, end = (f"{start[:5]}…{end[:5]}" if any(0 <= at <= len(whole) for at, _, _ in places) else whole), ""
        marks = [place for place in places if place[0] > len(start)]
        pieces: list[tuple[int, str, bool]] = [(0, start, False)]
        pieces += [(at, text, True) for at, text in placed(marks, len(start) + 1, columns, columns - len(end) - bool(end))]
        pieces.append((columns - len(end), end, False))
        runs: list[Run] = [(" " * (_LABEL - 1) + "└", ink.faint)]
        here = 0
        for column, text, mark in pieces:
            runs.append(("".join(axis[here:column]), ink.rule))
            runs.append((text, ink.style("chart-mark") if mark else ink.faint))
            here = column + len(text)
        return strip_of(runs, width)


def placed(marks: Sequence[tuple[int, str, bool]], start: int, columns: int, room_until: int) -> list[tuple[int, str]]:
    """Texts for the axis with the column that each begins at, none over another. `marks` by column: (column, name, act).

    What lies too close to be named is told together, acts before the rest; a name that has no room loses its end. The arrow
    stays where it happened: at the right edge it ends its text instead of beginning it.
    """
    groups: list[list[tuple[int, str, bool]]] = []
    for mark in marks:
        if groups and mark[0] <= _place(groups[-1]) + len(_texts(groups[-1])[-1]):
            groups[-1].append(mark)
        else:
            groups.append([mark])
    while True:
        out: list[tuple[int, str]] = []
        for number, group in enumerate(groups):
            at, texts, begin = _place(group), _texts(group), out[-1][0] + len(out[-1][1]) + 1 if out else start
            stop = _place(groups[number + 1]) - 1 if number + 1 < len(groups) else room_until
            after = [(at, text) for text in texts if at + len(text) <= stop]
            before = [(at - len(text) + 1, f"{text[1:]}▲") for text in texts if at - len(text) + 1 >= begin]
            out.append((after or before or [(at, "▲")])[0])
        nameless = next((at for at, (_, text) in enumerate(out) if at and text == "▲"), 0)
        if not nameless:
            return out
        groups[nameless - 1 : nameless + 1] = [groups[nameless - 1] + groups[nameless]]


def _told(group: Sequence[tuple[int, str, bool]]) -> list[tuple[int, str, bool]]:
    """Acts if there is one; else all."""
    return [mark for mark in group if mark[2]] or list(group)


def _place(group: Sequence[tuple[int, str, bool]]) -> int:
    return _told(group)[0][0]


def _texts(group: Sequence[tuple[int, str, bool]]) -> list[str]:
    """The longest first."""
    told = _told(group)
    words = [name.split(" ")[0] for _, name, _ in told]
    if len(told) == 1:
        return [f"▲{told[0][1]}", f"▲{words[0]}"]
    return [f"▲{len(told)} {'acts' if told[0][2] else words[0] if len(set(words)) == 1 else 'events'}"]
