"""The journal as sentences: newest last, level as glyph and colour, operators' acts marked."""

from __future__ import annotations

import time

from textual.strip import Strip

from console.store.fleet import FleetStore
from console.widgets import fmt
from console.widgets.paint import Paint, Painted, Run, size_of, strip_of
from harness.wire.control import JournalEntry


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
        return lines + [Strip.blank(width)] * (height - len(lines))


def event_runs(entry: JournalEntry, ink: Paint, width: int) -> list[Run]:
    """One line: who did it goes first when there is no room, then the end of the reason, at a place where it may end."""
    glyph, style = {"warn": ("▲", ink.warn), "error": ("×", ink.bad)}.get(entry.level, ("·", ink.muted))
    if entry.what.startswith("act."):
        glyph, style = "»", ink.style("chart-mark")
    runs: list[Run] = [(time.strftime(" %H:%M:%S ", time.localtime(entry.unix)), ink.faint), (f"{glyph} ", style)]
    if entry.subject:
        subject = f"attempt {entry.subject}" if entry.subject.isdigit() else entry.subject
        runs.append((f"{subject} ", ink.bold))
    runs.append((sentence(entry), style if entry.level != "info" or glyph == "»" else ink.plain))
    who = "" if entry.who in ("head", "") else f"  ({entry.who.removeprefix('operator:')})"
    room = width - size_of(runs)
    if entry.why and room > 12:
        whole = len(entry.why) + 2 + len(who) <= room
        runs.append((": " + (entry.why if whole else fmt.clause(entry.why, room - 2)), ink.muted))
    if who and size_of(runs) + len(who) <= width:
        runs.append((who, ink.faint))
    return runs


def sentence(entry: JournalEntry) -> str:
    what = entry.what.removeprefix("act.").replace("replica.state", "").replace("run.phase", "phase")
    what = what.removeprefix("attempt.").replace(".", " ")
    if entry.before or entry.after:
        change = f"{entry.before} → {entry.after}" if entry.before else f"→ {entry.after}"
        return f"{what} {change}".strip()
    if what == "set_rate" and "qps" in entry.data:
        return f"set rate {fmt.rate(float(entry.data['qps']))} qps"
    return what.replace("_", " ") or fmt.UNKNOWN
