"""Panes of the Replica screen: facts, differences from the fleet, samples in flight, and what happened to the slot."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from typing import Final

from textual.strip import Strip

from console.store.compare import Difference
from console.store.fleet import FleetStore
from console.widgets import fmt
from console.widgets.events import event_runs
from console.widgets.paint import Painted, Run, fitting, strip_of
from harness.wire.inquiry import InFlight, ReplicaDetail

_LABEL: Final = 13
EVENT_LINES: Final = 4  # the newest
EVENT_LINES_TALL: Final = 12
SAMPLE_LINES: Final = 6
SAMPLE_LINES_TALL: Final = 14  # on a terminal of 45 lines and more

PATH: Final = "path"  # meaning of a fact that is shortened in its middle

Fact = tuple[str, str, str]  # label, value, meaning: a state's name, PATH or nothing


class FactsPane(Painted):
    """Label and value; what is too long for a line goes on in the next."""

    def __init__(self, title: str, facts: Callable[[], list[Fact]], *, id: str | None = None) -> None:
        super().__init__(10, id=id)
        self._title, self._facts = title, facts

    def on_mount(self) -> None:
        self.border_title = self._title

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        lines = []
        for label, value, meaning in self._facts():
            style = ink.states.get(meaning, ink.plain)
            if meaning == PATH:  # both ends of a path say which file it is; `y` copies all of it
                value = fmt.middle(value, width - _LABEL)
            parts = textwrap.wrap(value or fmt.UNKNOWN, max(10, width - _LABEL), break_on_hyphens=False) or [fmt.UNKNOWN]
            for row, part in enumerate(parts):
                lines.append(strip_of([(f"{'' if row else label:<{_LABEL}}", ink.muted), (part, style)], width))
        self.set_lines(len(lines))
        return lines


class DifferencesPane(Painted):
    """`found`: in what it differs and how many were compared; none compared: it has not said what it is."""

    def __init__(self, found: Callable[[], tuple[list[Difference], int]], *, id: str | None = None) -> None:
        super().__init__(1, id=id)
        self._found = found

    def on_mount(self) -> None:
        self.border_title = "Against the fleet"

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        differences, of = self._found()
        if not of:
            lines = [strip_of([("it has not registered: nothing to compare yet", ink.muted)], width)]
        elif not differences:
            what = [[("● same as the fleet", ink.good)], [(f" in all that is compared ({fmt.count(of)} replicas)", ink.muted)]]
            lines = [strip_of(fitting(what, width), width)]
        else:
            lines = [line for difference in differences for line in self._lines_of(difference, width)]
        self.set_lines(len(lines))
        return lines

    def _lines_of(self, difference: Difference, width: int) -> list[Strip]:
        """On one line where it fits, else what the fleet says on the next."""
        ink = self.inks
        label = f"▲ {fmt.clip(difference.name, 20)}  "
        own, against = difference.own or "not set", difference.against
        if len(label) + len(own) + 2 + len(against) <= width:
            return [strip_of([(label, ink.warn), (own, ink.bold), (f"  {against}", ink.muted)], width)]
        room = max(8, width - len(label))
        first = strip_of([(label, ink.warn), (fmt.middle(own, room), ink.bold)], width)
        return [first, strip_of([("    ", ink.muted), (fmt.middle(against, width - 4), ink.muted)], width)]


class InFlightPane(Painted):
    """The samples that it holds, oldest first. `age_s`: how old the list is by now; NaN when there is none."""

    def __init__(
        self,
        detail: Callable[[], tuple[ReplicaDetail | None, float, str]],
        limit_ms: Callable[[], float],
        *,
        id: str | None = None,
    ) -> None:
        super().__init__(3, id=id)
        self._detail, self._limit_ms = detail, limit_ms

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        detail, age_s, missing = self._detail()
        self.entitle(self._title(detail, age_s))
        if detail is None or not detail.in_flight:
            text = missing or (detail.problem if detail is not None else "") or "no sample in flight"
            lines = [strip_of([(part, ink.muted)], width) for part in textwrap.wrap(text, max(10, width))]
        else:
            lines = [strip_of([(f"{'SAMPLE':>9}{'AGE':>9}{'PROMPT':>9}{'TRIES':>7}   FIRST TOKEN", ink.muted)], width)]
            lines += [strip_of(self._row(sample), width) for sample in detail.in_flight[: self._most]]
            lines += self._rest(detail, width)
        self.set_lines(len(lines))
        return lines

    @property
    def _most(self) -> int:
        return SAMPLE_LINES_TALL if self.screen.has_class("-taller") else SAMPLE_LINES

    def _title(self, detail: ReplicaDetail | None, age_s: float) -> str:
        title = "In flight"
        if detail is not None:
            title += f" {fmt.count(detail.in_flight_total)} · oldest first"
        if not math.isnan(age_s) and round(age_s) > 0:
            title += f" · as of {fmt.age(age_s)} ago"
        return title

    def _row(self, sample: InFlight) -> list[Run]:
        ink = self.inks
        first: Run = ("   ● has come", ink.good) if sample.first else ("   ○ not yet", ink.muted)
        if not sample.first and sample.age_s * 1000 > self._limit_ms():
            first = ("   ▲ over limit", ink.warn)
        prompt = fmt.count(sample.n_prompt) if sample.n_prompt else fmt.UNKNOWN
        return [
            (f"{sample.seq:>9}", ink.muted),
            (f"{fmt.millis(sample.age_s * 1000):>9}", ink.plain),
            (f"{prompt:>9}", ink.plain),
            (f"{sample.tries:>7}", ink.warn if sample.tries > 1 else ink.muted),
            first,
        ]

    def _rest(self, detail: ReplicaDetail, width: int) -> list[Strip]:
        ink = self.inks
        more = detail.in_flight_total - min(self._most, len(detail.in_flight))
        if more <= 0:
            return []
        waiting = sum(1 for sample in detail.in_flight if not sample.first)
        told = f"no first token: {waiting} of the oldest {len(detail.in_flight)}"
        groups: list[list[Run]] = [[(f"{fmt.count(more):>9} younger", ink.muted)], [(f" · {told}", ink.muted)]]
        return [strip_of(fitting(groups, width), width)]


class SlotEvents(Painted):
    def __init__(self, store: FleetStore, slot: str, *, id: str | None = None) -> None:
        super().__init__(1, id=id)
        self._store, self._slot = store, slot

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        most = EVENT_LINES_TALL if self.screen.has_class("-taller") else EVENT_LINES
        history = self._store.history_of(self._slot)
        entries = history[-most:]
        left = f" · {fmt.count(len(history) - most)} before" if len(history) > most else ""
        self.entitle(f"What happened to it{left}")
        self.set_lines(max(1, len(entries)))
        lines = [strip_of(event_runs(entry, ink, width), width) for entry in entries]
        if not lines:
            nothing: list[Run] = [("nothing in the part of the journal that this console has", ink.muted)]
            lines = [strip_of(nothing, width)]
        return lines
