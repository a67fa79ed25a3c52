"""Where a tail comes from: samples put together by replica, node, time, lengths or tries, and the parts of their time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from textual.strip import Strip

from console.store.drill import Choice
from console.widgets import fmt
from console.widgets.drill import Column, ItemsPane, millis
from console.widgets.histogram import percent
from console.widgets.paint import Paint, Painted, Run, strip_of
from harness.analysis.views import CALLED, Tail, TailGroup

_OUT: Final = 1.5  # times its share of all samples: stands out
_MATTERS: Final = 0.02  # of the tail
_COLUMNS: Final = (
    Column("", 18, False), Column("SAMPLES", 10), Column("IN TAIL", 8), Column("SHARE", 7), Column("", 0, False),
    Column("LIFT", 7), Column("P50", 9), Column("P99", 9),
)  # fmt: skip
_FIXED: Final = sum(column.width for column in _COLUMNS)


class GroupsPane(ItemsPane[TailGroup]):
    """A bar is a group's share of the tail, the dot in it its share of all samples: were all alike, the bar would end there."""

    def __init__(self, choice: Callable[[], Choice], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._choice = choice

    def columns(self, width: int) -> tuple[Column, ...]:
        room = max(0, min(44, width - 1 - _FIXED))
        by = self._choice().by.upper()
        return (Column(by, 18, False), *_COLUMNS[1:4], Column("", room, False), *_COLUMNS[5:])

    def begin_at_outstanding(self) -> None:
        """Lengths and times stand in their own order: the cursor begins where there is something to see."""
        found = outstanding([item for item in self.items if isinstance(item, TailGroup)])
        if found is not None:
            self.choose(found)

    def told(self, item: TailGroup, width: int, ink: Paint) -> list[list[Run]]:
        name, samples, tail, share, bar, lift, p50, p99 = self.columns(width + 1)
        out = item.lift >= _OUT and item.share_of_tail >= _MATTERS
        style = ink.warn if out else ink.primary
        runs: list[Run] = [
            (name.fit(item.key), ink.bold if out else ink.plain),
            (samples.fit(fmt.count(item.n)), ink.muted),
            (tail.fit(fmt.count(item.tail)), ink.plain),
            (share.fit(percent(item.share_of_tail)), style),
            *self._bar(item, bar.width, ink, style),
            (lift.fit(f"{'▲' if out else ''}{lift_text(item.lift)}"), style if out else ink.muted),
            (p50.fit(millis(item.p50_ms)), ink.muted),
            (p99.fit(millis(item.p99_ms)), ink.plain),
        ]
        return [runs]

    def _bar(self, item: TailGroup, room: int, ink: Paint, style: object) -> list[Run]:
        room -= 3
        if room < 4:
            return [(" " * (room + 3), ink.plain)]
        peak = max((group.share_of_tail for group in self.items if isinstance(group, TailGroup)), default=1.0) or 1.0
        expected = item.share_of_tail / item.lift / peak if item.lift > 0 else 0.0
        full, trough = fmt.gauge(item.share_of_tail / peak, room)
        cells = list(f"{full}{trough}")
        at = round(expected * room)
        if item.lift > 0 and 0 <= at < room:
            cells[at] = "┃"
        text = "".join(cells)
        return [("  ", ink.plain), (text[: len(full)], style), (text[len(full) :], ink.rule), (" ", ink.plain)]  # type: ignore[list-item]

    def none(self) -> str:
        if self._choice().over_limit:
            return "no sample is over the limit: w takes the slowest 1 %"
        return "no sample was completed that this could be said of"


def lift_text(lift: float) -> str:
    return f"{lift:.0f}x" if lift >= 9.95 else f"{lift:.1f}x"


class PartsPane(Painted):
    """Each part's mean over all samples and over the tail, and its share of what the tail's mean is above everybody's."""

    def __init__(self, tail: Callable[[], Tail | None], *, id: str | None = None) -> None:
        super().__init__(2, id=id)
        self._tail = tail

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, tail = self.inks, self._tail()
        if tail is None:
            self.entitle("Parts")
            return []
        if not tail.parts:
            self.entitle("Parts")
            self.set_lines(1)
            return [strip_of([("no parts were recorded of these samples", ink.muted)], width)]
        without = f" · {fmt.count(tail.without_parts)} samples of which only the sum is known" if tail.without_parts else ""
        self.entitle(f"What {CALLED[tail.metric]} is made of, and what the tail has more of{without}")
        room = max(0, min(40, width - 18 - 3 * 10 - 11 - 9))
        head = f"{'PART':<18}{'MEAN':>10}{'P50':>10}{'P99':>10}{'TAIL MEAN':>11}{'OF MORE':>9} "
        lines = [strip_of([(head, ink.muted)], width)]
        most = max((part.share_of_excess or 0.0 for part in tail.parts), default=0.0)
        for part in tail.parts:
            share = part.share_of_excess
            style = ink.warn if share is not None and share == most and share > 0.4 else ink.primary
            numbers = f"{millis(part.mean_ms):>10}{millis(part.p50_ms):>10}{millis(part.p99_ms):>10}"
            told = fmt.UNKNOWN if share is None else f"{fmt.signed(share * 100, 0)}%"
            bar = fmt.gauge(share, room - 1)[0] if share is not None and share >= 0.005 else ""
            runs: list[Run] = [(f"{fmt.clip(part.name, 17):<18}", ink.bold if style == ink.warn else ink.plain)]
            runs += [(numbers, ink.muted), (f"{millis(part.tail_mean_ms):>11}", ink.plain), (f"{told:>9} ", style), (bar, style)]
            lines.append(strip_of(runs, width))
        self.set_lines(len(lines))
        return lines


def outstanding(groups: Sequence[TailGroup]) -> TailGroup | None:
    """The one with most samples of the tail above what it would have were all alike."""
    return max((one for one in groups if one.lift > 1), key=lambda one: one.tail * (1 - 1 / one.lift), default=None)
