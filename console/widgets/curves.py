"""Distributions of several runs over one another, drawn in braille; each curve has its column's number written on it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.style import Style
from textual.strip import Strip

from console.widgets.histogram import axis_ms
from console.widgets.paint import Painted, Run, strip_of

if TYPE_CHECKING:
    from harness.analysis.comparing import Overlay

#: One for each of eight sides; each line has its number written on it as well.
INKS: Final = (
    "chart-offered",
    "chart-p99",
    "chart-completed",
    "chart-mark",
    "state-suspect",
    "chart-limit",
    "heat-1",
    "foreground",
)
_NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency"}
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_AXIS: Final = 7
_DECADES: Final = 4  # of the tail's scale: from all samples down to one of ten thousand


class Curves(Painted):
    """CDFs over one another on a log axis of time, or the share above on a log axis as well, where tails are told apart."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(6, id=id)
        self.overlay: Overlay | None = None
        self.tail = False

    def put(self, overlay: Overlay | None, *, tail: bool) -> None:
        self.overlay, self.tail = overlay, tail
        self.repaint()

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, overlay = self.inks, self.overlay
        rows, columns = height - 1, width - _AXIS
        if overlay is None or rows < 2 or columns < 20:
            return [strip_of([("no distribution", ink.muted)], width)]
        what = "share above, powers of ten" if self.tail else "share at or below"
        self.entitle(
            f"{_NAMES[overlay.metric]} · {what} · numbers are columns · m next metric · t {'CDF' if self.tail else 'tail'}"
        )
        low, high = self._span(overlay)
        cells, owner = self._raster(overlay, (low, high), (rows, columns))
        numbers = self._numbers(overlay, (low, high), (rows, columns))
        limits = {limit for limit in overlay.limits_ms if limit is not None}
        at_limits = {self._column(limit, (low, high), columns) for limit in limits}
        styles = [ink.style(INKS[side % len(INKS)]) for side in range(len(overlay.cdfs))]
        strips = []
        for row in range(rows):
            runs: list[Run] = [(self._label(row, rows), ink.faint)]
            for column in range(columns):
                if (row, column) in numbers:
                    side = numbers[row, column]
                    runs.append((str(side + 1), styles[side] + Style(bold=True)))
                elif cells[row, column]:
                    runs.append((chr(0x2800 + int(cells[row, column])), styles[int(owner[row, column])]))
                else:
                    runs.append(("╎", ink.style("chart-limit")) if column in at_limits else (" ", ink.plain))
            strips.append(strip_of(runs, width))
        return [*strips, self._time_axis((low, high), columns, width, limits)]

    @staticmethod
    def _span(overlay: Overlay) -> tuple[float, float]:
        """Where the curves are: from the first value to the last one, in powers of ten."""
        known = [cdf for cdf in overlay.cdfs if cdf]
        low = min(max(cdf[0][0], 1e-3) for cdf in known)
        high = max(max(cdf[-1][0], 1e-3) for cdf in known)
        low, high = math.log10(low), math.log10(high)
        return (low, high) if high > low + 0.05 else (low - 0.05, high + 0.05)

    def _heights(self, shares: np.ndarray, rows: int) -> np.ndarray:
        """From the top, in dots."""
        if self.tail:
            above = np.log10(np.maximum(1.0 - shares, 10.0**-_DECADES))
            part = -above / _DECADES
        else:
            part = 1.0 - shares
        return np.clip(part * rows * 4, 0, rows * 4 - 1)

    def _curve(self, overlay: Overlay, side: int, low: float, high: float, points: int) -> np.ndarray:
        """Shares at or below, at equal steps of the axis; NaN where the side has none, and past its largest value."""
        cdf = overlay.cdfs[side]
        if not cdf:
            return np.full(points, np.nan)
        grid = np.linspace(low, high, points)
        at = np.log10(np.maximum([ms for ms, _ in cdf], 1e-3))
        shares: np.ndarray = np.interp(grid, at, [share for _, share in cdf], left=0.0, right=1.0)
        return np.where(grid > at[-1] + (high - low) / points, np.nan, shares) if self.tail else shares

    def _raster(self, overlay: Overlay, span: tuple[float, float], size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = size
        cells, owner = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        for side in range(len(overlay.cdfs)):
            before = -1
            for x, height in enumerate(self._heights(self._curve(overlay, side, *span, columns * 2), rows)):
                if math.isnan(height):
                    before = -1
                    continue
                y = int(height)
                first, last = (y, y) if before < 0 else (min(y, before), max(y, before))
                for step in range(first, last + 1):
                    cells[step // 4, x // 2] |= _DOTS[step % 4][x % 2]
                    owner[step // 4, x // 2] = side
                before = y
        return cells, owner

    def _numbers(self, overlay: Overlay, span: tuple[float, float], size: tuple[int, int]) -> dict[tuple[int, int], int]:
        """Each curve's number on itself, each at a height of its own."""
        rows, columns = size
        known = [side for side, cdf in enumerate(overlay.cdfs) if cdf]
        places: dict[tuple[int, int], int] = {}
        for nth, side in enumerate(known):
            heights = self._heights(self._curve(overlay, side, *span, columns), rows) // 4
            row = min(rows - 1, int((nth + 0.5) / len(known) * rows))
            there = np.flatnonzero(~np.isnan(heights))
            if len(there):
                column = int(there[np.argmin(np.abs(heights[there] - row))])
                places[int(heights[column]), column] = side
        return places

    def _label(self, row: int, rows: int) -> str:
        if self.tail:
            marks = {int(decade / _DECADES * rows): f"{100 / 10**decade:g}%" for decade in range(_DECADES)}
            text = marks.get(row, "")
        else:
            marks = {0: "100%", rows // 2: "50%", rows - 1: "0%"}
            text = marks.get(row, "")
        return f"{text:>{_AXIS - 1}}" + ("┤" if text else "│")

    @staticmethod
    def _column(ms: float, span: tuple[float, float], columns: int) -> int:
        return int((math.log10(max(ms, 1e-3)) - span[0]) / (span[1] - span[0]) * (columns - 1))

    def _time_axis(self, span: tuple[float, float], columns: int, width: int, limits: set[float]) -> Strip:
        ink = self.inks
        cells, styles = ["─"] * columns, [ink.rule] * columns
        wanted = [(limit, ink.style("chart-limit")) for limit in sorted(limits)]
        decades = range(math.floor(span[0]), math.ceil(span[1]) + 1)
        wanted += [(factor * 10.0**decade, ink.muted) for factor in (1, 3, 2, 5, 1.5, 7, 4, 2.5) for decade in decades]
        taken = [False] * columns
        for ms, style in wanted:
            at, text = self._column(ms, span, columns), f"╵{axis_ms(ms)}"
            around = range(max(0, at - 1), min(columns, at + len(text) + 1))
            if at < 0 or at + len(text) > columns or any(taken[cell] for cell in around):
                continue
            for offset, letter in enumerate(text):
                cells[at + offset], styles[at + offset] = letter, style
            for cell in around:
                taken[cell] = True
        return strip_of([(" " * (_AXIS - 1) + "└", ink.faint), *zip(cells, styles, strict=True)], width)
