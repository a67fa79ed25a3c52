"""Runs by number of nodes: a line a run, the one that counts at each N first, published results below them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.style import Style
from textual.strip import Strip

from console.widgets import fmt
from console.widgets.listing import LinesPane
from console.widgets.paint import Paint, Run, strip_of

if TYPE_CHECKING:
    from harness.analysis.scaling import Beside, ScaledRun, ScaleGroup, ScalePoint, Scaling

#: Title, width, and from which width of the screen on.
_COLUMNS: Final = (
    ("VERDICT", 11, 0), ("TOK/S", 10, 0), ("A NODE", 9, 100), ("A GPU", 8, 0), ("QPS", 8, 100), ("EFFICIENCY", 19, 0),
    ("TTFTp99", 9, 100), ("TPOTp99", 9, 110),
)  # fmt: skip
_BAR: Final = 10


@dataclass(frozen=True, slots=True)
class Line:
    """A run's line, a published one, or (both None) a title, remark or blank."""

    text: str = ""
    run: ScaledRun | None = None
    point: ScalePoint | None = None  # of the run that counts at its N
    beside: Beside | None = None
    loud: bool = False


class ScalingPane(LinesPane):
    HEADINGS = 1

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.found: Scaling | None = None
        self.said = "reading …"
        self._lines: list[Line] = []

    def put(self, found: Scaling) -> None:
        self.found = found
        self._lines = [line for group in found.groups for line in _lines_of(group)][:-1]
        self.entitle("by number of nodes · the best VALID run at each counts · published results for comparison only")
        if self._lines and not self.can_choose(self.at):
            self.move(1)
        self.show_cursor()

    def say(self, text: str) -> None:
        self.said = text
        self.repaint()

    @property
    def current(self) -> Line | None:
        return self._lines[self.at] if self.at < len(self._lines) else None

    def count(self) -> int:
        return len(self._lines)

    def can_choose(self, at: int) -> bool:
        return at < len(self._lines) and (self._lines[at].run is not None or self._lines[at].beside is not None)

    def nothing(self) -> str:
        return self.said if self.found is None else "no run here has a performance attempt with tokens/s"

    def _columns(self, width: int) -> tuple[int, list[tuple[str, int]]]:
        kept = [(title, size) for title, size, least in _COLUMNS if width >= least]
        return max(12, min(40, width - 7 - sum(size for _, size in kept))), kept

    def headings(self, width: int) -> list[Strip]:
        name, columns = self._columns(width)
        texts = [
            title.ljust(size) if title in ("VERDICT", "EFFICIENCY") else title.rjust(size - 1) + " " for title, size in columns
        ]
        return [strip_of([("    N  " + "RUN".ljust(name) + "".join(texts), self.inks.muted)], width)]

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        ink, one = self.inks, self._lines[at]
        if one.run is None and one.beside is None:
            return strip_of([(f" {one.text}", ink.bold if one.loud else ink.warn)], width)
        name, columns = self._columns(width)
        cells = _cells(one, ink)
        first = f"{one.point.nodes:,}" if one.point is not None else ""
        first = f"{one.beside.point.nodes:,}" if one.beside is not None else first
        quiet = one.point is None
        label = one.run.name if one.run is not None else one.text
        runs: list[Run] = [
            (self.mark(chosen), ink.primary),
            (f"{first:>4}  ", ink.bold),
            (fmt.pad(fmt.middle(label, name - 1), name), ink.muted if quiet else ink.plain),
        ]
        for title, size in columns:
            text, style = cells[title]
            runs.append(
                (fmt.clip(text, size - 1).ljust(size) if title in ("VERDICT", "EFFICIENCY") else f"{text:>{size - 1}} ", style)
            )
        return strip_of(runs, width, ink.cursor if chosen else None)


def _lines_of(group: ScaleGroup) -> list[Line]:
    fake = " · synthetic: a model's numbers, not hardware's" if group.synthetic else ""
    lines = [Line(f"{group.model} {group.scenario}{fake}", loud=True)]
    for point in group.points:
        lines.append(Line(run=point.best, point=point))
        lines += [Line(run=other) for other in point.others]
    lines += [Line(one.title, beside=one) for one in group.references]
    return [*lines, *(Line(f"! {remark}") for remark in group.remarks), Line()]


def _cells(one: Line, ink: Paint) -> dict[str, Run]:
    values: tuple[float | None, ...]
    if one.beside is not None:
        beside, point = one.beside, one.beside.point
        values = (point.tokens_per_s, beside.tokens_per_s_node, beside.tokens_per_s_gpu, point.samples_per_s)
        verdict, efficiency = ("published", ink.faint), ("", ink.faint)
        ttft_ms, tpot_ms, style = point.ttft_p99_ms, point.tpot_p99_ms, ink.faint
    else:
        assert one.run is not None
        run = one.run
        values = (run.tokens_per_s, run.tokens_per_s_node, run.tokens_per_s_gpu, run.completed_qps)
        verdict = (run.verdict, ink.good if run.counts else ink.bad if run.verdict in ("INVALID", "CRASHED") else ink.warn)
        efficiency = _efficiency(one.point, ink)
        ttft_ms, tpot_ms, style = run.ttft_p99_ms, run.tpot_p99_ms, ink.muted if one.point is None else ink.plain
    tokens, node, gpu, qps = (fmt.count(_nan(value)) if (value or 0) >= 1000 else fmt.rate(_nan(value)) for value in values)
    return {
        "VERDICT": verdict, "TOK/S": (tokens, style), "A NODE": (node, style), "A GPU": (gpu, style), "QPS": (qps, style),
        "EFFICIENCY": efficiency, "TTFTp99": (fmt.millis(_nan(ttft_ms)), style), "TPOTp99": (fmt.millis(_nan(tpot_ms)), style),
    }  # fmt: skip


def _efficiency(point: ScalePoint | None, ink: Paint) -> tuple[str, Style]:
    if point is None:
        return "", ink.muted
    if point.efficiency is None:
        return ("not counted" if not point.counts else fmt.UNKNOWN), ink.muted
    share = point.efficiency / 100
    return f"{''.join(fmt.gauge(share, _BAR))} {point.efficiency:5.1f}%", ink.good if share >= 0.9 else ink.warn


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
