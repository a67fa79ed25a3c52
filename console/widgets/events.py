"""The journal as sentences: newest last, level as glyph and colour; acts, stragglers and alerts marked. `EventsPane` is its
end on another screen, `TimelineView` all of it with the logs."""

from __future__ import annotations

import time
from typing import Final

from rich.style import Style
from textual.strip import Strip

from console.store.fleet import FleetStore
from console.store.merge import Row, Timeline, kind_of, reason, sentence
from console.widgets import fmt
from console.widgets.logview import LogView, marked, pattern_of
from console.widgets.paint import Paint, Painted, Run, size_of, strip_of
from harness.wire.control import JournalEntry

ALERT: Final = "◆"
_LEVELS: Final = {"warn": "▲", "error": "×"}


def mark_of(kind: str, level: str, ink: Paint) -> tuple[str, Style]:
    """Glyph and ink of an entry: what it is about first, then how bad it is."""
    style = {"warn": ink.warn, "error": ink.bad}.get(level, ink.muted)
    if kind == "act":
        return "»", ink.style("chart-mark")
    if kind == "alert":
        return ALERT, style if level != "info" else ink.warn
    return _LEVELS.get(level, "·"), style


class EventsPane(Painted):
    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(2, id=id)
        self._store = store
        self.border_title = "Events"

    def draw(self, width: int, height: int) -> list[Strip]:
        recent = list(self._store.journal)[-height:]
        lines = [strip_of(event_runs(entry, self.inks, width), width) for entry in recent]
        if not lines:
            lines = [strip_of([(" nothing has happened yet", self.inks.faint)], width)]
        return lines


def event_runs(entry: JournalEntry, ink: Paint, width: int) -> list[Run]:
    """One line: who did it goes first when there is no room, then the end of the reason, at a place where it may end."""
    glyph, style = mark_of(kind_of(entry), entry.level, ink)
    runs: list[Run] = [(time.strftime(" %H:%M:%S ", time.localtime(entry.unix)), ink.faint), (f"{glyph} ", style)]
    if entry.subject:
        subject = f"attempt {entry.subject}" if entry.subject.isdigit() else entry.subject
        runs.append((f"{subject} ", ink.bold))
    runs.append((sentence(entry), style if entry.level != "info" or glyph == "»" else ink.plain))
    who = "" if entry.who in ("head", "") else f"  ({entry.who.removeprefix('operator:')})"
    room = width - size_of(runs)
    why = reason(entry)
    if why and room > 12:
        runs.append((why if len(why) + len(who) <= room else fmt.clause(why, room), ink.muted))
    if who and size_of(runs) + len(who) <= width:
        runs.append((who, ink.faint))
    return runs


_KIND: Final = 10
_SOURCE: Final = 14


class TimelineView(LogView):
    """Time, mark, kind and source in columns that stand still; the text after them scrolls or wraps."""

    def __init__(self, timeline: Timeline, *, id: str | None = None) -> None:
        super().__init__(timeline.pager, id=id)
        self._timeline = timeline
        self.shows_cursor = True

    def text(self, row: int) -> str:
        found = self._timeline.rows[row]
        return "" if found.kind == "day" else found.text

    def prefix_width(self) -> int:
        return 1 + 9 + 2 + _KIND + _SOURCE

    def prefix(self, row: int) -> tuple[list[Run], Style]:
        ink, found = self.inks, self._timeline.rows[row]
        if found.kind == "day":
            return [
                (f"── {found.text} ", ink.muted),
                ("─" * (self.content_size.width - len(found.text) - 5), ink.rule),
            ], ink.muted
        glyph, style = mark_of(found.kind, found.level, ink)
        pattern = pattern_of(self.highlight())
        told = found.kind not in ("log", "journal") or found.level != "info"
        runs: list[Run] = [
            (time.strftime("%H:%M:%S ", time.localtime(found.unix)), ink.faint),
            (f"{glyph} ", style),
            *marked(f"{word_of(found):<{_KIND}}", style if told and glyph != "·" else ink.muted, ink.badge, pattern),
            *marked(
                f"{fmt.middle(found.source, _SOURCE - 1):<{_SOURCE}}",
                ink.muted if found.kind == "log" else ink.bold,
                ink.badge,
                pattern,
            ),
        ]
        return runs, style if glyph != "·" else ink.muted if found.kind == "log" else ink.plain

    def version(self) -> object:
        return self._timeline.version

    def highlight(self) -> tuple[str, ...]:
        return self._timeline.words.shown

    def nothing(self) -> str:
        timeline = self._timeline
        if not len(timeline):
            return " nothing has happened yet"
        return " nothing matches: esc clears the filter, l and o show more"


def word_of(row: Row) -> str:
    """The kind as a word; a log line has its level there."""
    if row.kind != "log":
        return row.kind
    return {"warn": "log warn", "error": "log error"}.get(row.level, "log")
