"""Events: what happened and what was logged, by time. The journal comes by itself; logs are asked for while this is on show."""

from __future__ import annotations

import math
import time
import uuid
from typing import ClassVar, Final

from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.strip import Strip
from textual.widgets import Input, Static

from console.actions import Where, bindings, footer_of
from console.screens.base import PaintedScreen, Tables
from console.screens.log_keys import LogKeys
from console.store import tables
from console.store.fleet import FleetStore
from console.store.merge import Timeline
from console.widgets import fmt
from console.widgets.clock import EVERYTHING, Due
from console.widgets.events import TimelineView
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.logview import MANY
from console.widgets.paint import Painted, Run, fitting, size_of, strip_of
from harness.wire.inquiry import GetLogs, LogLines

LOGS_EVERY_S: Final = 2.0
OLD_AFTER_S: Final = 3 * LOGS_EVERY_S
AT_ONCE: Final = 1000  # log lines a question

_LEVELS: Final = {"all": "all levels", "warnings": "warnings and acts", "errors": "errors only"}
_SOURCES: Final = {"both": "journal and logs", "journal": "journal only", "logs": "logs only"}


class TimelineBar(Painted):
    """What is shown of what there is, what is missing, and whether it goes on."""

    def __init__(self, screen: EventsScreen, *, id: str | None = None) -> None:
        super().__init__(1, id=id)
        self._screen = screen

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, screen = self.inks, self._screen
        timeline, view = screen.timeline, screen.view
        asked: list[list[Run]] = [
            [(" ", ink.plain), (_LEVELS[timeline.level], ink.plain if timeline.level == "all" else ink.warn)],
            [(" · ", ink.faint), (_SOURCES[timeline.sources], ink.plain if timeline.sources == "both" else ink.warn)],
        ]
        if timeline.text:
            asked.append([(f" · /{fmt.middle(timeline.text, 24)}", ink.warn)])
        asked.append([(f" · {fmt.count(timeline.shown)} lines", ink.muted)])
        asked += [[(" · ", ink.faint), (text, ink.muted)] for text in screen.missing()]
        right = self._going_on(view)
        problem = screen.trouble()
        if problem:
            asked.insert(2, [(" · ", ink.faint), (problem, ink.warn)])
        left = fitting(asked, width - size_of(right) - 1)
        return [strip_of([*left, (" " * (width - size_of(left) - size_of(right)), ink.plain), *right], width)]

    def _going_on(self, view: TimelineView) -> list[Run]:
        ink = self.inks
        if view.pager.follow:
            return [("● following ", ink.good)]
        newer = view.newer
        text = f"▌held · +{fmt.count(newer)} newer" if newer else "▌held"
        return [(text, ink.primary + Style(bold=True)), (" (s follows) ", ink.muted)]


class EventsScreen(LogKeys, PaintedScreen):
    BINDINGS = bindings("events")
    WHERE: ClassVar[Where] = "events"

    def __init__(self, store: FleetStore) -> None:
        super().__init__()
        self._store = store
        self.timeline = Timeline()
        self._logs_heard_s = math.nan
        self._logs_problem = ""

    def compose(self) -> ComposeResult:
        app = self.console_app
        yield HeaderLine(self._store, "Events", looks_only=app.looks_only, id="header")
        yield TimelineBar(self, id="timeline-bar")
        yield TimelineView(self.timeline, id="timeline")
        with Horizontal(id="words"):
            yield Static("/", id="words-mark")
            yield Input(placeholder="words: both of a b, either of a|b, without !a", id="filter", compact=True)
        yield KeyFooter(footer_of("events"), app.why_not, id="footer")

    def on_mount(self) -> None:
        self.set_focus(None)
        self.every(LOGS_EVERY_S, self._ask_logs, "logs")
        self.call_after_refresh(self.paint, EVERYTHING)

    @property
    def view(self) -> TimelineView:
        return self.query_one("#timeline", TimelineView)

    # --- what comes in -------------------------------------------------------------------------------------

    async def _ask_logs(self) -> None:
        answer = await self.console_app.inquire(GetLogs(uuid.uuid4().hex, self.timeline.logs_since, AT_ONCE))
        if isinstance(answer, LogLines):
            self._logs_heard_s, self._logs_problem = self.console_app.now_s(), answer.problem
            self.timeline.add_logs(answer)

    def trouble(self) -> str:
        """Why the logs are not what they should be."""
        if self.timeline.sources == "journal":
            return ""
        if math.isnan(self._logs_heard_s):
            if self.console_app.session.kind == "replay":
                return "no logs in a replay"
            return "no logs: they are read by the head, which has ended" if self._store.ended else "no logs yet"
        age_s = self.console_app.now_s() - self._logs_heard_s
        if age_s > OLD_AFTER_S:
            return f"logs as of {fmt.age(age_s)} ago"
        return self._logs_problem

    def missing(self) -> list[str]:
        """What is not in the list, though it happened."""
        timeline = self.timeline
        parts = []
        if timeline.dropped:
            parts.append(f"{fmt.count(timeline.dropped)} older left out")
        if timeline.journal_before and not timeline.dropped:
            parts.append(f"{fmt.count(timeline.journal_before)} older of the journal left out")
        if timeline.logs_missed:
            parts.append(f"{fmt.count(timeline.logs_missed)} log lines not sent")
        return parts

    def paint(self, due: Due) -> int:
        self.set_class(not self._store.link().trusted, "-stale")
        self.timeline.add_journal(self._store.journal)
        return sum(painted.repaint() for painted in self.query(Painted) if due.numbers or painted.unpainted)

    def tables(self) -> Tables:
        return tables.events(row.entry for row in self.timeline.rows if row.entry is not None)

    # --- keys ----------------------------------------------------------------------------------------------

    def action_follow(self) -> None:
        pager = self.timeline.pager
        if pager.follow:
            pager.follow = False
            self._redraw()
        else:
            self._move(MANY)

    def action_level(self) -> None:
        self.timeline.next_level()
        self._redraw()

    def action_sources(self) -> None:
        self.timeline.next_sources()
        self._redraw()

    def action_open(self) -> None:
        """The replica that the line is about."""
        slot = self.slot_of_line()
        if slot is None:
            self.console_app.tell("this line is about no replica", severity="warning")
        else:
            self.console_app.open_replica(slot, "Events")

    def slot_of_line(self) -> str | None:
        """Of the line under the cursor: its source, else the first replica that its text names."""
        pager, rows = self.timeline.pager, self.timeline.rows
        if not 0 <= pager.cursor < len(rows):
            return None
        row = rows[pager.cursor]
        words = (row.source, *(word.strip(".,:;()[]'\"") for word in row.text.split()))
        return next((word for word in words if word in self._store.index), None)

    def action_copy(self) -> None:
        pager, rows = self.timeline.pager, self.timeline.rows
        if not 0 <= pager.cursor < len(rows):
            self.console_app.tell("no line to copy", severity="warning")
            return
        row = rows[pager.cursor]
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.unix))
        self.console_app.copy(row.text if row.kind == "day" else f"{stamp} {row.kind} {row.source} {row.text}", "line")

    # --- the filter ----------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        self.console_app.expect_typing()
        self.add_class("-filtering")
        box = self.query_one("#filter", Input)
        box.value = self.timeline.text
        box.focus()

    def command_filter(self, words: str) -> None:
        self.timeline.filter(words)
        self._redraw()

    @on(Input.Changed, "#filter")
    def _filter_as_typed(self, event: Input.Changed) -> None:
        if self.has_class("-filtering"):
            self.command_filter(event.value)

    @on(Input.Submitted, "#filter")
    def _filter_done(self) -> None:
        self.remove_class("-filtering")
        self.set_focus(None)

    def action_back(self) -> None:
        """Out of the filter, then back to following."""
        if self.has_class("-filtering") or self.timeline.text:
            self._filter_done()
            self.command_filter("")
        elif not self.timeline.pager.follow:
            self._move(MANY)
