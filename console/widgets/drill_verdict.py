"""The verdict view of a record: how far the limits were, what was found, and LoadGen's own figures beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from textual.strip import Strip

from console.widgets import fmt
from console.widgets.drill import ItemsPane, Title, level_mark, millis, number, span, wrapped
from console.widgets.paint import Paint, Painted, Run, fitting, size_of, strip_of
from console.widgets.sla import judged
from harness.analysis.views import CALLED, Finding, Margin, Overview

if TYPE_CHECKING:
    from harness.analysis.definitions import Beside


class MarginsPane(Painted):
    """A line a limit: p99 with its interval, what is left of the limit, samples over it of those that are allowed."""

    def __init__(
        self,
        overview: Callable[[], Overview | None],
        says: Callable[[], str],
        limits: Callable[[], Mapping[str, float | None]],
        *,
        id: str | None = None,
    ) -> None:
        """`limits`: those that are set, also where no sample can be held against them."""
        super().__init__(2, id=id)
        self._overview, self._says, self._limits = overview, says, limits
        self.border_title = "Limits"

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, overview = self.inks, self._overview()
        if overview is None:
            return [strip_of([(f" {self._says()}", ink.muted)], width)]
        if not overview.margins:
            self.set_lines(1)
            limited = any(limit is not None for limit in self._limits().values())
            said = "no sample has a latency to hold against the limits" if limited else "no latency limit is set for this run"
            return [strip_of([(f" {said}", ink.muted)], width)]
        room = max(0, min(40, width - 77))
        head = f" {'':<8}{'LIMIT':>8}{'P99':>9}  {'95 % INTERVAL':<18}{'HEAD-ROOM':>10}  {'':<{room}}{'OVER / ALLOWED':>17}"
        lines = [strip_of([(head, ink.muted)], width)]
        lines += [strip_of(self._line(margin, room, ink), width) for margin in overview.margins]
        self.set_lines(len(lines))
        return lines

    @staticmethod
    def _line(margin: Margin, room: int, ink: Paint) -> list[Run]:
        value = margin.p99_ms
        broken = margin.allowed_over is not None and margin.over > margin.allowed_over
        word, style = judged(value, margin.limit_ms, ink) if value is not None else ("", ink.muted)
        if broken:  # early stopping fails a p99 that lies just under its limit
            word, style = "×", ink.bad
        used = 1 - margin.head_room if margin.head_room is not None else float("nan")
        full, trough = fmt.gauge(used, room - 2 if room > 2 else 0)
        left = fmt.UNKNOWN if margin.head_room is None else fmt.signed_percent(margin.head_room)
        allowed = fmt.UNKNOWN if margin.allowed_over is None else fmt.big(margin.allowed_over)
        over = f"{fmt.big(margin.over)} / {allowed}"
        return [
            (f" {CALLED[margin.metric]:<8}", ink.bold),
            (f"{fmt.millis(margin.limit_ms):>8}", ink.plain),
            (f"{millis(value):>9}", ink.bold),
            (f"  {span(margin.p99_interval_ms, fmt.millis):<18}", ink.muted),
            (f"{left:>8} {word[:1]:<1}", style),
            ("  ", ink.plain), (full, style), (trough, ink.rule), ("  " if room > 2 else " " * room, ink.plain),
            (f"{over:>17}", ink.bad if broken else ink.plain),
        ]  # fmt: skip


_WAY: Final = len("distributions")


@dataclass(frozen=True, slots=True)
class Problem:
    """Of the record itself."""

    text: str


_PROBLEMS: Final = 3  # said one by one: a folder that was copied badly has as many as files


class FindingsPane(ItemsPane[object]):
    """Findings, each the way to the view that shows more; below them LoadGen's figures beside ours."""

    HEADINGS = 0

    def show(self, overview: Overview, problems: list[str], beside: list[Beside]) -> None:
        items: list[object] = [Problem(text) for text in problems[:_PROBLEMS]]
        if len(problems) > _PROBLEMS:
            items.append(Problem(f"and {len(problems) - _PROBLEMS:,d} more of this record"))
        items += overview.findings
        if beside:
            items += [Title(f" {'LOADGEN BESIDE OURS':<26}{'OURS':>13}{'LOADGEN':>13}{'':>9}  WHY THEY MAY DIFFER"), *beside]
        fresh = self.of != (overview.run, overview.attempt)
        self.put(items, (overview.run, overview.attempt))
        if fresh and overview.findings:
            self.choose(overview.findings[0])
        ways = sum(bool(finding.view) for finding in overview.findings)
        self.entitle(f"Findings {len(overview.findings)}" + (" · ↵ shows more of one" if ways else ""))

    def told(self, item: object, width: int, ink: Paint) -> list[list[Run]]:
        if isinstance(item, Problem):
            return wrapped([(" ▲ record  ", ink.warn)], item.text, width, ink.warn, indent=3)
        if isinstance(item, Finding):
            glyph, style = level_mark(item.level, ink)
            way = f"  ▸ {item.view:<{_WAY}}" if item.view else ""
            lines = wrapped([(f" {glyph} ", style)], item.text, width - len(way), ink.plain)
            lines[0] += [(" " * (width - size_of(lines[0]) - len(way)), ink.plain), (way, ink.primary)]
            return lines
        return [_beside(item, width, ink)]

    def none(self) -> str:
        return "nothing was found that a person should act on"


def _beside(item: object, width: int, ink: Paint) -> list[Run]:
    title, unit, ours, theirs, why = (getattr(item, name) for name in ("title", "unit", "ours", "loadgens", "why"))
    form = (
        millis if unit == "ms" else number if theirs >= 1000 else lambda value: fmt.UNKNOWN if value is None else f"{value:,.1f}"
    )
    apart = fmt.UNKNOWN if not ours else f"{fmt.signed((theirs / ours - 1) * 100, 2)}%"
    groups: list[list[Run]] = [
        [(f" {fmt.clip(title, 25):<26}", ink.plain), (f"{form(ours):>13}", ink.bold), (f"{form(theirs):>13}", ink.plain)],
        [(f"{apart:>9}", ink.muted)],
    ]
    runs = fitting(groups, width)
    return [*runs, (f"  {fmt.clip(why, max(0, width - size_of(runs) - 2))}", ink.faint)]
