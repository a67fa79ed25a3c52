"""The attempt over time: a lane for each of rates, latencies, samples in flight and ready replicas on one axis, and its marks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from textual.strip import Strip

from console.widgets import fmt
from console.widgets.chart import BrailleChart, Line, Picture
from console.widgets.drill import Column, ItemsPane
from console.widgets.events import ALERT
from console.widgets.paint import Paint, Run, size_of, strip_of
from harness.analysis.views import Mark, Timeline

_NAME: Final = 12  # columns before the axis: what the lines of a lane are
_AXIS: Final = 7
_LANE_MOST: Final = 7  # lines


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    lines: Sequence[Line]
    label: Callable[[float], str]
    weight: int
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """What the lanes draw: limits in ms by metric, `begin_unix` is time zero, `at_s` the moment under the cursor."""

    timeline: Timeline | None
    says: str
    begin_unix: float
    limits: dict[str, float | None]
    at_s: float | None


def lanes_of(shown: Shown) -> list[Lane]:
    ticks = shown.timeline.ticks if shown.timeline is not None else []

    def of(name: str, ink: str, field: str) -> Line:
        values = [getattr(tick, field) for tick in ticks]
        return Line(name, ink, np.array([math.nan if value is None else float(value) for value in values]))

    def latency(metric: str) -> Lane:
        lines = [of("p50", "chart-p50", f"{metric}_p50_ms"), of("p99", "chart-p99", f"{metric}_p99_ms")]
        return Lane(metric.upper(), lines, _short_ms, 3, shown.limits.get(metric))

    rates = [of("scheduled", "chart-target", "scheduled_qps"), of("completed", "chart-completed", "completed_qps")]
    lanes = [Lane("QPS", rates, _short, 3), latency("ttft"), latency("tpot")]
    lanes.append(Lane("in flight", [of("", "chart-offered", "in_flight")], _short, 2))
    ready = of("", "state-ready", "ready")
    if not np.isnan(ready.values).all():
        lanes.append(Lane("ready", [ready], _short, 1))
    return lanes


class Lanes(BrailleChart):
    def __init__(self, shown: Callable[[], Shown], *, id: str | None = None) -> None:
        super().__init__(lambda: "", lambda: Picture(np.zeros(0), []), _short, id=id)
        self._shown = shown

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, shown = self.inks, self._shown()
        if shown.timeline is None or len(shown.timeline.ticks) < 2:
            said = shown.says if shown.timeline is None else "the record has no samples to draw over time"
            return [strip_of([(f" {said}", ink.muted)], width)]
        ticks = shown.timeline.ticks
        unix = shown.begin_unix + np.array([(tick.from_s + tick.to_s) / 2 for tick in ticks])
        lanes = lanes_of(shown)
        heights = shared([lane.weight for lane in lanes], height - 1)
        columns = width - _NAME - _AXIS
        if columns < 8:
            return [strip_of([(" too narrow for a chart", ink.muted)], width)]
        marks = [(mark.unix, mark.text, mark.kind == "act") for mark in shown.timeline.marks if mark.kind in ("act", "alert")]
        whole = Picture(unix, [line for lane in lanes for line in lane.lines], marks=marks)
        at = self._column(shown, unix, columns)
        strips: list[Strip] = []
        for lane, rows in zip(lanes, heights, strict=True):
            strips += self._lane(lane, unix, (rows, columns), at, width) if rows else []
        axis = self._time_axis(whole, float(unix[0]), float(unix[-1]), columns, width - _NAME)
        return [*strips, Strip.join([strip_of([], _NAME), axis])]

    @staticmethod
    def _column(shown: Shown, unix: NDArray[np.float64], columns: int) -> int:
        """Of the moment under the cursor; -1 where it lies outside."""
        if shown.at_s is None:
            return -1
        share = (shown.begin_unix + shown.at_s - unix[0]) / max(1e-9, float(unix[-1] - unix[0]))
        return int(share * (columns - 1)) if 0 <= share <= 1 else -1

    def _lane(self, lane: Lane, unix: NDArray[np.float64], size: tuple[int, int], at: int, width: int) -> list[Strip]:
        ink, (rows, columns) = self.inks, size
        picture = Picture(unix, lane.lines, limit=lane.limit)
        oldest, newest = float(unix[0]), float(unix[-1])
        low, high = self._range(picture, oldest)
        cells, owner = self._raster(picture, oldest, newest, (low, high), size)
        limit_row = -1
        if lane.limit is not None and low <= lane.limit <= high:
            limit_row = min(rows - 1, int((high - lane.limit) / (high - low) * rows))
        styles = [ink.style(line.ink) for line in lane.lines]
        names: list[Run] = [(lane.name, ink.bold)]
        names += [(f"━ {line.name}"[:_NAME], styles[number]) for number, line in enumerate(lane.lines) if line.name]
        strips = []
        for row in range(rows):
            name, style = names[row] if row < len(names) else ("", ink.plain)
            label = self._label_of(lane, row, rows, (low, high), limit_row)
            runs: list[Run] = [(f"{name:<{_NAME}}", style), (label, ink.style("chart-limit") if row == limit_row else ink.faint)]
            for column in range(columns):
                if cells[row, column]:
                    runs.append((chr(0x2800 + int(cells[row, column])), styles[int(owner[row, column])]))
                elif column == at:
                    runs.append(("┊", ink.style("chart-mark")))
                else:
                    runs.append(("╌", ink.style("chart-limit")) if row == limit_row else (" ", ink.plain))
            strips.append(strip_of(runs, width))
        return strips

    @staticmethod
    def _label_of(lane: Lane, row: int, rows: int, bounds: tuple[float, float], limit_row: int) -> str:
        """A lane of one line has its highest value."""
        value: float | None = None
        if not any(np.isfinite(line.values).any() for line in lane.lines):
            return f"{'│':>{_AXIS}}"
        if row == limit_row:
            value = lane.limit
        elif row == 0 and limit_row != 1:
            value = bounds[1] / 1.04
        elif row == rows - 1:
            value = bounds[0]
        text = lane.label(value) if value is not None else ""
        return f"{text:>{_AXIS - 1}}" + ("┤" if text else "│")


def shared(weights: Sequence[int], lines: int) -> list[int]:
    """Lines among lanes by their weights, at least one each; the last lanes go where there are not enough."""
    kept = min(len(weights), max(0, lines))
    given = [1] * kept + [0] * (len(weights) - kept)
    for _ in range(max(0, min(lines, _LANE_MOST * kept) - kept)):
        at = min(range(kept), key=lambda number: (given[number] / weights[number], number))
        given[at] += 1
    return given


class MarksPane(ItemsPane[Mark]):
    """What happened, oldest first: enter shows the logs around it, the lanes show where it is."""

    COLUMNS = ((0, (Column("AT", 9, False), Column("CLOCK", 10, False), Column("  KIND", 13, False), Column("WHAT", 60, False))),)

    def told(self, item: Mark, width: int, ink: Paint) -> list[list[Run]]:
        glyph, style = kind_mark(item, ink)
        until = f"  until {at_text(item.until_s)}" if item.until_s is not None else ""
        runs: list[Run] = [
            (f"{at_text(item.at_s):<9}", ink.plain), (clock_text(item.unix), ink.muted), (f"{glyph} ", style),
            (f"{item.kind:<11}", style if item.kind in ("act", "alert") else ink.muted),
        ]  # fmt: skip
        room = max(8, width - size_of(runs) - len(until))
        return [[*runs, (fmt.clause(item.text, room), ink.plain), (until, ink.muted)]]

    def none(self) -> str:
        return "nothing happened during the attempt"


def kind_mark(mark: Mark, ink: Paint) -> Run:
    style = {"warn": ink.warn, "error": ink.bad, "bad": ink.bad}.get(mark.level, ink.muted)
    if mark.kind == "act":
        return "»", ink.style("chart-mark")
    if mark.kind == "alert":
        return ALERT, style if mark.level != "info" else ink.warn
    return {"warn": "▲", "error": "×", "bad": "×"}.get(mark.level, "·"), style


def at_text(seconds: float) -> str:
    """Since time zero: `07:42`, `-00:05`."""
    return f"-{fmt.clock(-seconds)}" if seconds <= -1 else fmt.clock(seconds)


def clock_text(unix: float) -> str:
    return time.strftime("%H:%M:%S  ", time.localtime(unix))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value < 99_999.5 else fmt.big(value).replace(" ", "")


def _short_ms(value_ms: float) -> str:
    return fmt.millis(value_ms).replace(" ", "") if value_ms else "0"
