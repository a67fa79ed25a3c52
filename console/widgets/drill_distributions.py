"""How TTFT, TPOT and latency are distributed: the figures of published tables, a histogram, and the CDF in nines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Final

import numpy as np
from textual.strip import Strip

from console.store.latency import Columns, columns_of
from console.widgets import fmt, histogram
from console.widgets.drill import Column, ItemsPane, millis, span
from console.widgets.histogram import Histogram
from console.widgets.paint import Paint, Run, strip_of
from console.widgets.sla import judged
from harness.analysis.views import CALLED, Distribution, Metric
from harness.wire.inquiry import LatencyDetail

_FIGURES: Final = (
    ("min", "MIN"), ("avg", "AVG"), ("p50", "P50"), ("p90", "P90"), ("p95", "P95"), ("p99", "P99"), ("p99_9", "P99.9"),
    ("max", "MAX"),
)  # fmt: skip
_WIDE: Final = 110


class FiguresPane(ItemsPane[Distribution]):
    """A line a metric; the one under the cursor is drawn below."""

    COLUMNS = (
        (_WIDE, (Column("", 10, False), *(Column(title, 10) for _, title in _FIGURES), Column("LIMIT", 11), Column("", 7))),
        (0, (Column("", 8, False), *(Column(title, 8) for _, title in _FIGURES))),
    )

    def told(self, item: Distribution, width: int, ink: Paint) -> list[list[Run]]:
        columns = self.columns(width + 1)
        runs: list[Run] = [(columns[0].fit(CALLED[item.metric]), ink.bold)]
        word, style = "", ink.muted
        for column, (figure, _) in zip(columns[1:], _FIGURES, strict=False):
            value = item.figures.get(figure)
            decides = figure == "p99"
            if decides and value is not None:
                word, style = judged(value, item.limit_ms, ink)
            runs.append(
                (column.fit(millis(value)), style if decides and word[:1] in ("×", "▲") else ink.bold if decides else ink.plain)
            )
        if len(columns) > len(_FIGURES) + 1:
            runs += [(columns[-2].fit(millis(item.limit_ms)), ink.muted), (f" {word}", style)]
        return [runs]

    def choose_metric(self, metric: Metric) -> None:
        for one in self.items:
            if isinstance(one, Distribution) and one.metric == metric:
                self.choose(one)

    def none(self) -> str:
        return "the record has no samples: only the figures of its verdict are known"


def detail_of(one: Distribution) -> LatencyDetail:
    """As the histogram of the SLA screen has it."""
    places = {name.replace("_", "."): value for name, value in one.figures.items() if name.startswith("p") and value is not None}
    return LatencyDetail(
        limit_ms=one.limit_ms, edges_ms=one.edges_ms, whole=one.counts, whole_ms=places, whole_n=one.n,
        over_whole=np.array([one.over], "<i4").tobytes(),
    )  # fmt: skip


class Bars(Histogram):
    def __init__(self, shown: Callable[[], Distribution | None], *, id: str | None = None) -> None:
        super().__init__(lambda: _picture(shown()), id=id)


def _picture(one: Distribution | None) -> histogram.Distribution:
    if one is None:
        return histogram.Distribution("Histogram", None, "whole", "whole attempt", " ")
    return histogram.Distribution(
        f"{CALLED[one.metric]} histogram", detail_of(one), "whole", "whole attempt", "no sample was completed"
    )


class Cdf(Histogram):
    """The share of samples at or below, its upper end drawn out: as much room from 90 % to 99 % as from 99 % to 99.9 %."""

    def __init__(self, shown: Callable[[], Distribution | None], *, id: str | None = None) -> None:
        super().__init__(lambda: _picture(shown()), id=id)
        self._shown = shown

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, one = self.inks, self._shown()
        if one is None or len(one.cdf) < 2 or height < 3:
            self.entitle("CDF")
            said = "no sample was completed" if one is not None and not one.n else ""
            return [strip_of([(said, ink.muted)], width)]
        low, high = span(one.p99_interval_ms, fmt.millis), f"p99 {millis(one.figures.get('p99'))}"
        self.entitle(f"{CALLED[one.metric]} CDF · {high} {low}".rstrip())
        columns = columns_of(detail_of(one), "whole", width - _LABEL)
        if columns is None:
            return [strip_of([("no sample was completed", ink.muted)], width)]
        rows = height - 1
        limit = columns.column_of(one.limit_ms * (1 + 1e-9)) if one.limit_ms else -1
        dots = _dots(one, columns, rows, width - _LABEL)
        labels = _labels(rows, _top(one))
        lines = []
        for row in range(rows):
            text = labels.get(row, "")
            runs: list[Run] = [(f"{text:>{_LABEL - 1}}{'┤' if text else '│'}", ink.faint)]
            for column in range(width - _LABEL):
                if dots[row, column]:
                    style = ink.bad if 0 <= limit <= column else ink.style("chart-completed")
                    runs.append((chr(0x2800 + int(dots[row, column])), style))
                else:
                    line = column == limit
                    runs.append(
                        ("╎" if line else "·" if text and not column % 4 else " ", ink.style("chart-limit") if line else ink.rule)
                    )
            lines.append(strip_of(runs, width))
        axis = self._axis(columns, limit, width - _LABEL)
        return [*lines, strip_of([(" " * (_LABEL - 1) + "└", ink.faint), *axis], width)]


_LABEL: Final = 8
_SHARES: Final = ((0.5, "50%"), (0.9, "90%"), (0.99, "99%"), (0.999, "99.9%"), (0.9999, "99.99%"), (0.99999, "99.999%"))
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def _nines(share: float) -> float:
    return -math.log10(max(1e-9, 1.0 - share))


def _top(one: Distribution) -> float:
    """As many nines as the number of samples has."""
    return max(2.0, min(6.0, math.log10(max(10, one.n))))


def _labels(rows: int, top: float) -> dict[int, str]:
    """From the top, where there is a line for each."""
    found: dict[int, str] = {}
    for share, text in reversed(_SHARES):
        row = round((1 - _nines(share) / top) * (rows - 1))
        if 0 <= row < rows and row not in found and _nines(share) <= top:
            found[row] = text
    return found


def _at_edges(one: Distribution) -> list[tuple[float, float]]:
    """What the histogram says exactly: where there are no samples, the line is flat."""
    total = max(1, sum(one.counts))
    shares = (count / total for count in itertools.accumulate(one.counts))
    return list(zip(one.edges_ms[1:], shares, strict=False))


def _dots(one: Distribution, columns: Columns, rows: int, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    cells = np.zeros((rows, width), dtype=np.uint8)
    top = _top(one)
    points = sorted([*one.cdf, *_at_edges(one)])
    values = np.log([max(1e-6, value_ms) for value_ms, _ in points])
    heights = np.maximum.accumulate([min(top, _nines(share)) for _, share in points])
    grid = np.linspace(math.log(columns.low_ms), math.log(columns.high_ms), width * 2)
    curve = np.interp(grid, values, heights, left=math.nan, right=math.nan)
    before = -1
    for x, height in enumerate(curve):
        if math.isnan(height):
            before = -1
            continue
        y = min(rows * 4 - 1, int((1 - height / top) * (rows * 4 - 1)))
        for step in range(min(y, before) if before >= 0 else y, (max(y, before) if before >= 0 else y) + 1):
            cells[step // 4, x // 2] |= _DOTS[step % 4][x % 2]
        before = y
    return cells
