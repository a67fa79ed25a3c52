"""What is opened from a view of a record and left back to it: one sample's life, and the logs around a moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, Final

from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.widgets import Input

from console.actions import BY_ID, Where, bindings
from console.screens.base import PaintedScreen, Tables
from console.screens.lines import LinesKeys
from console.screens.log_keys import LogKeys
from console.store.drill import AROUND_S, Ask, DrillStore, keeps, problem_of
from console.store.drill_tables import tables_of
from console.store.fleet import FleetStore
from console.store.tail import Pager, clean
from console.widgets import fmt
from console.widgets.clock import EVERYTHING, Due
from console.widgets.drill import ContextLine
from console.widgets.drill_life import LifePane
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine
from console.widgets.listing import LinesPane
from console.widgets.logview import LogView
from console.widgets.paint import Painted, Run
from harness.analysis.views import Life, LogLine, SampleRow

_MOVES: Final = ("up", "down", "page_up", "page_down", "top", "bottom")


class LifeScreen(LinesKeys, PaintedScreen):
    """← and → go through the samples of the list that it was opened from."""

    BINDINGS = bindings("record", ("back", "left", "right", "logs_around", "copy", *_MOVES))
    WHERE: ClassVar[Where] = "record"

    def __init__(self, store: FleetStore, drill: DrillStore, samples: Sequence[SampleRow], at: int) -> None:
        super().__init__()
        self._store, self._drill, self._samples, self._at = store, drill, samples, at

    def compose(self) -> ComposeResult:
        yield HeaderLine(self._store, "Record ▸ Sample", looks_only=False, id="header")
        yield ContextLine(self.context_parts, id="context")
        yield LifePane(id="life")
        keys = ("back", "logs_around", "copy", "help", "leave")
        yield KeyFooter([BY_ID[name] for name in keys], lambda _: "", id="footer")

    def context_parts(self) -> tuple[list[str], list[str], str]:
        place = f"{self._at + 1} of {len(self._samples)}, ← → go through them"
        return [f"sample {self.sample.seq:,d}", place], self._drill.problems, "back to the list"

    @property
    def sample(self) -> SampleRow:
        return self._samples[self._at]

    @property
    def pane(self) -> LifePane:
        return self.query_one("#life", LifePane)

    def moving(self) -> LinesPane:
        return self.pane

    def on_mount(self) -> None:
        self.pane.focus()
        self._show()

    @property
    def _ask(self) -> Ask:
        return Ask.of("sample", seq=self.sample.seq)

    def _show(self) -> None:
        life = self._drill.known(self._ask)
        if isinstance(life, Life):
            self.pane.show(life)
        else:
            self.pane.put([], self.sample.seq, self._drill.says(self._ask))
            if self._ask not in self._drill.failures:
                self.run_worker(self._read(self._ask), group="drill")
        self.call_after_refresh(self.paint, EVERYTHING)

    async def _read(self, ask: Ask) -> None:
        if await self._drill.get(ask) and self.is_attached and ask == self._ask:
            self._show()

    def tables(self) -> Tables:
        return tables_of(self._drill.known(self._ask))

    def action_left(self) -> None:
        self._go(self._at - 1)

    def action_right(self) -> None:
        self._go(self._at + 1)

    def _go(self, at: int) -> None:
        if 0 <= at < len(self._samples):
            self._at = at
            self._show()

    def action_logs_around(self) -> None:
        life = self._drill.known(self._ask)
        if not isinstance(life, Life) or life.scheduled_unix is None:
            self.console_app.tell("when this sample was scheduled is not known", BY_ID["logs_around"].title, "warning")
            return
        what = f"sample {life.sample.seq:,d} on {life.sample.slot or 'no replica'}"
        self.app.push_screen(LogsScreen(self._store, self._drill, life.scheduled_unix, what))

    def action_copy(self) -> None:
        if words := self.pane.words():
            self.console_app.copy(words, "line")

    def action_back(self) -> None:
        self.app.pop_screen()


class MomentView(LogView):
    """Log lines of all processes by time, and a line for the moment itself."""

    _SOURCE: Final = 15

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(Pager(), id=id)
        self.rows: Sequence[LogLine | str] = ()  # a text: the moment
        self.says = "reading the logs …"
        self.shows_cursor = True
        self._version = 0

    def put(self, rows: Sequence[LogLine | str], says: str) -> None:
        self.rows, self.says = rows, says
        self._version += 1
        self.pager.resize(len(rows))
        self.pager.move_to(next((at for at, row in enumerate(rows) if isinstance(row, str)), 0))
        self.pager.follow = False
        self.repaint()

    def text(self, row: int) -> str:
        found = self.rows[row]
        return "" if isinstance(found, str) else clean(found.text)

    def prefix_width(self) -> int:
        return 1 + 13 + self._SOURCE

    def prefix(self, row: int) -> tuple[list[Run], Style]:
        ink, found = self.inks, self.rows[row]
        if isinstance(found, str):
            mark = ink.style("chart-mark")
            return [(f"── {found} ", mark), ("─" * max(0, self.content_size.width - len(found) - 5), mark)], mark
        style = {"warn": ink.warn, "error": ink.bad}.get(found.level, ink.plain)
        at = f"{stamp(found.unix):<13}" if found.unix is not None else " " * 13
        return [(at, ink.faint), (f"{fmt.middle(found.process, self._SOURCE - 1):<{self._SOURCE}}", ink.muted)], style

    def version(self) -> object:
        return self._version

    def nothing(self) -> str:
        return f" {self.says}"


def stamp(unix: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(unix))}.{int(unix % 1 * 1000):03d}"


class LogsScreen(LogKeys, PaintedScreen):
    BINDINGS = bindings("record", ("back", "filter", "wide", "left", "right", "copy", *_MOVES))
    WHERE: ClassVar[Where] = "record"

    def __init__(self, store: FleetStore, drill: DrillStore, unix: float, what: str) -> None:
        super().__init__()
        self._store, self._drill, self._unix, self._what = store, drill, unix, what
        self._text = ""

    def compose(self) -> ComposeResult:
        yield HeaderLine(self._store, "Record ▸ Logs", looks_only=False, id="header")
        yield ContextLine(self.context_parts, id="context")
        yield MomentView(id="moment")
        yield Input(placeholder="words: both of a b, either of a|b, without !a", id="filter", compact=True)
        keys = ("back", "filter", "wide", "copy", "help", "leave")
        yield KeyFooter([BY_ID[name] for name in keys], lambda _: "", id="footer")

    def context_parts(self) -> tuple[list[str], list[str], str]:
        lines = sum(isinstance(row, LogLine) for row in self.view.rows)
        shown = [f"{stamp(self._unix)} ± {AROUND_S:g} s", self._what, fmt.plural(lines, "line")]
        wrong = problem_of(self._text)
        return [*shown, *([f"/{self._text}"] if self._text else [])], [wrong] if wrong else [], "clear" if self._text else "back"

    @property
    def view(self) -> MomentView:
        return self.query_one("#moment", MomentView)

    @property
    def _ask(self) -> Ask:
        return Ask.of("logs", unix=self._unix, span_s=AROUND_S)

    def on_mount(self) -> None:
        self.set_focus(None)
        self._show()
        self.run_worker(self._read(), group="drill")

    async def _read(self) -> None:
        if await self._drill.get(self._ask) and self.is_attached:
            self._show()

    def _show(self) -> None:
        lines = self._drill.known(self._ask)
        if lines is None:
            self.view.put([], self._drill.says(self._ask))
        else:
            kept = keeps("" if problem_of(self._text) else self._text)
            rows: list[LogLine | str] = [line for line in lines if kept(f"{line.process} {line.text}")]
            at = next((at for at, row in enumerate(rows) if isinstance(row, LogLine) and (row.unix or 0) > self._unix), len(rows))
            told = [*rows[:at], f"{stamp(self._unix)} {self._what}", *rows[at:]] if rows else []
            self.view.put(told, "no line matches" if lines else "no log of this run has a line of that time")
        self.call_after_refresh(self.paint, EVERYTHING)

    def paint(self, due: Due) -> int:
        return sum(painted.repaint() for painted in self.query(Painted) if due.numbers or painted.unpainted)

    def tables(self) -> Tables:
        return tables_of([row for row in self.view.rows if isinstance(row, LogLine)])

    # --- keys ------------------------------------------------------------------------------------------------

    def action_copy(self) -> None:
        rows, at = self.view.rows, self.view.pager.cursor
        row = rows[at] if 0 <= at < len(rows) else ""
        if isinstance(row, LogLine):
            self.console_app.copy(f"{stamp(row.unix) if row.unix is not None else ''} {row.process} {row.text}".strip(), "line")

    def action_filter(self) -> None:
        self.console_app.expect_typing()
        self.add_class("-filtering")
        box = self.query_one("#filter", Input)
        box.value = self._text
        box.focus()

    @on(Input.Changed, "#filter")
    def _as_typed(self, event: Input.Changed) -> None:
        if self.has_class("-filtering"):
            self._text = event.value.strip()
            self._show()

    @on(Input.Submitted, "#filter")
    def _typed(self) -> None:
        self.remove_class("-filtering")
        self.set_focus(None)

    def action_back(self) -> None:
        if self.has_class("-filtering") or self._text:
            self._typed()
            self._text = ""
            self._show()
        else:
            self.app.pop_screen()
