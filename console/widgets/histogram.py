"""A latency distribution on a log axis: where its limit is, and what lies beyond it.

A bar is an eighth of a line high at least as soon as its column has one sample: the tail is what one looks for, and on a
linear scale it would vanish. Colour is not the only difference: the limit is a line, and the share beyond it is a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from textual.strip import Strip

from console.store.latency import Columns, Span, columns_of, over_share, samples, ticks
from console.widgets import fmt
from console.widgets.paint import Painted, Run, fitting, strip_of
from harness.wire.inquiry import LatencyDetail

_MARKED: Final = ("p99", "p50", "p90")  # in this order, where there is room


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram shows now. No `view`: `missing` says why there is none."""

    name: str  # TTFT, TPOT
    view: LatencyDetail | None
    span: Span
    span_text: str  # last 60 s, whole attempt
    missing: str = ""


class Histogram(Painted):
    def __init__(self, picture: Callable[[], Distribution], *, id: str | None = None) -> None:
        super().__init__(8, id=id)
        self._picture = picture

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, shown = self.inks, self._picture()
        self.entitle(f"{shown.name} · {shown.span_text}")
        columns = columns_of(shown.view, shown.span, width) if shown.view is not None else None
        if shown.view is None or columns is None:
            why = shown.missing or "no sample has ended yet"
            return [strip_of([(why, ink.muted)], width)]
        limit = columns.column_of(shown.view.limit_ms * (1 + 1e-9)) if shown.view.limit_ms else -1
        rows = max(1, height - 3)
        lines = [strip_of(self._words(shown, shown.view, width), width)]
        lines += self._bars(columns, limit, rows, width)
        lines.append(strip_of(self._axis(columns, limit, width), width))
        lines.append(strip_of(self._marks(columns, shown.view, shown.span, width), width))
        return lines[:height]

    def _words(self, shown: Distribution, view: LatencyDetail, width: int) -> list[Run]:
        ink, n, share = self.inks, samples(view, shown.span), over_share(view, shown.span)
        count: list[Run] = [(fmt.count(n), ink.plain), (" samples", ink.muted)]
        if view.limit_ms is None or math.isnan(share):
            return fitting([count, [("  no limit", ink.muted)]], width)
        style = ink.bad if share > 0.01 else ink.warn if share > 0.009 else ink.plain
        limit: Run = (fmt.millis(view.limit_ms), ink.style("chart-limit"))
        beyond: list[Run] = [(f"  {percent(share) if share else 'none'} beyond ", style), limit]
        return fitting([count, beyond, [("  (1% allowed)", ink.muted)]], width)

    def _bars(self, columns: Columns, limit: int, rows: int, width: int) -> list[Strip]:
        ink = self.inks
        counts = columns.counts
        peak = float(counts.max()) or 1.0
        levels = np.where(counts >= 0.5, np.maximum(1, np.round(counts / peak * rows * 8)), 0).astype(int)
        within, beyond, line = ink.style("chart-completed"), ink.bad, ink.style("chart-limit")
        strips = []
        for row in range(rows):
            floor = (rows - 1 - row) * 8
            runs: list[Run] = []
            for column, level in enumerate(levels):
                part = min(8, max(0, int(level) - floor))
                over = 0 <= limit <= column
                if part:
                    runs.append((fmt.BLOCKS[part - 1], beyond if over else within))
                else:
                    runs.append(("╎", line) if column == limit else (" ", within))
            strips.append(strip_of(runs, width))
        return strips

    def _axis(self, columns: Columns, limit: int, width: int) -> list[Run]:
        """Ruler with round values; the limit's own value has its place first."""
        ink = self.inks
        cells: list[str] = ["─"] * width
        styles = [ink.rule] * width
        free = [True] * width

        def put(at: int, text: str, style: object) -> None:
            start = min(at, width - len(text))
            span = range(max(0, start - 1), min(width, start + len(text) + 1))
            if start < 0 or not all(free[cell] for cell in span):
                return
            for offset, letter in enumerate(text):
                cells[start + offset], styles[start + offset] = letter, style  # type: ignore[call-overload]
            for cell in span:
                free[cell] = False

        if limit >= 0:
            put(limit, f"╵{axis_ms(columns.start_ms(limit))}", ink.style("chart-limit"))
        for value in ticks(columns):
            put(columns.column_of(value), f"╵{axis_ms(value)}", ink.muted)
        return [(cell, style) for cell, style in zip(cells, styles, strict=True)]

    def _marks(self, columns: Columns, view: LatencyDetail, span: Span, width: int) -> list[Run]:
        """Where the percentiles lie."""
        ink = self.inks
        values = view.window_ms if span == "window" else view.whole_ms
        cells = [" "] * width
        for name in _MARKED:
            if name not in values:
                continue
            at, text = max(0, columns.column_of(values[name])), f"▴{name}"
            start = at if at + len(text) <= width else at - len(text) + 1
            text = text if start == at else f"{name}▴"
            around = range(max(0, start - 1), min(width, start + len(text) + 1))
            if 0 <= start <= width - len(text) and all(cells[cell] == " " for cell in around):
                cells[start : start + len(text)] = text
        return [("".join(cells), ink.muted)]


def axis_ms(value_ms: float) -> str:
    """2000 → `2s`, 50 → `50ms`, 0.2 → `0.2ms`."""
    return f"{value_ms / 1000:.3g}s" if value_ms >= 999.5 else f"{value_ms:.3g}ms"


def percent(share: float) -> str:
    """A share of a tail: two digits that count, never 0 for something."""
    if math.isnan(share):
        return fmt.UNKNOWN
    value = share * 100
    if value >= 9.95:
        return f"{value:.0f}%"
    return f"{value:.1f}%" if value >= 0.995 or value == 0 else f"{value:.2f}%" if value >= 0.005 else "<0.01%"
