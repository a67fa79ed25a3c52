"""A run from its record: verdict and results of the last attempt, and its replicas by what their samples add up to.

Shown when a console is opened on a run that has ended or lost its head, and by `v` after the end of a run that was watched.
Nothing moves here but the clock. A head that is started again while this is open takes over: the screen closes itself.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from rich.style import Style
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.strip import Strip

from console.actions import BY_ID, Where, bindings
from console.screens.base import PaintedScreen
from console.screens.runs import replay_session
from console.store.fleet import FleetStore
from console.store.record import ByReplica, summary_of
from console.widgets import fmt
from console.widgets.clock import Due
from console.widgets.events import EventsPane
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine, PhaseStrip
from console.widgets.paint import Painted, Run, strip_of
from console.widgets.sla import judged
from console.widgets.verdict import VerdictBanner

if TYPE_CHECKING:
    from harness.records.summary import ReplicaSummary

#: Together less than 80 wide.
_COLUMNS: Final = (
    ("REPLICA", 13), ("SAMPLES", 9), ("TOKENS", 12), ("TOK/S", 8), ("TTFTp99", 9), ("TPOTp99", 9), ("re-disp.", 9), ("failed", 7),
)  # fmt: skip


class Headings(Painted):
    def draw(self, width: int, height: int) -> list[Strip]:
        return [strip_of([(" " + "".join(_cell(name, size, name) for name, size in _COLUMNS), self.inks.muted)], width)]


class Rows(Painted):
    """A row for each replica. Drawn when the summary comes, not by the clock."""

    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(1, id=id)
        self._store = store
        self.summary: ByReplica | None = None

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, summary = self.inks, self.summary
        if summary is None:
            return [strip_of([("  reading the samples …", ink.muted)], width)]
        told = [line for problem in summary.problems for line in textwrap.wrap(problem, max(10, width - 2))]
        lines = [strip_of([(f"  {line}", ink.warn)], width) for line in told]
        lines += [strip_of(self._row(row), width) for row in summary.replicas]
        self.set_lines(max(1, len(lines)))
        return lines or [strip_of([("  no sample was recorded", ink.muted)], width)]

    def _row(self, row: ReplicaSummary) -> list[Run]:
        ink, plain = self.inks, self.inks.plain
        limits = self._store.spec.limits if self._store.spec is not None else None
        texts = [
            (row.slot, plain),
            (fmt.count(row.samples), plain),
            (fmt.count(row.tokens), plain),
            (fmt.count(row.tokens_s), plain),
            (_millis(row.ttft_p99_ms), _over(row.ttft_p99_ms, limits.ttft_p99_ms if limits else None, self)),
            (_millis(row.tpot_p99_ms), _over(row.tpot_p99_ms, limits.tpot_p99_ms if limits else None, self)),
            (fmt.count(row.redispatched), plain),
            (fmt.count(row.failed), ink.bad if row.failed else plain),
        ]
        cells = [(_cell(text, size, name), style) for (text, style), (name, size) in zip(texts, _COLUMNS, strict=True)]
        return [(" ", plain), *cells]


def _cell(text: str, size: int, column: str) -> str:
    return text.ljust(size) if column == "REPLICA" else text.rjust(size)


def _millis(value_ms: float | None) -> str:
    return fmt.UNKNOWN if value_ms is None else fmt.millis(value_ms)


def _over(value_ms: float | None, limit_ms: float | None, pane: Painted) -> Style:
    if value_ms is None or limit_ms is None or value_ms <= limit_ms:
        return pane.inks.plain
    return judged(value_ms, limit_ms, pane.inks)[1]


class RecordScreen(PaintedScreen):
    BINDINGS = bindings("record")
    WHERE: ClassVar[Where] = "record"

    def __init__(self, store: FleetStore, path: Path, *, first: bool) -> None:
        """`first`: opened instead of the live screen; back from it is the list of runs."""
        super().__init__()
        self._store, self._path, self._first = store, path, first

    def compose(self) -> ComposeResult:
        store = self._store
        yield HeaderLine(store, "Record", looks_only=False, id="header")
        yield PhaseStrip(store, id="phase")
        yield VerdictBanner(store, id="verdict")
        with Vertical(id="by-replica") as box:
            box.border_title = "Replicas, whole attempt · slowest TPOT p99 first"
            yield Headings(id="headings")
            with VerticalScroll(id="scroll"):
                yield Rows(store, id="rows")
        yield EventsPane(store, id="events")
        yield KeyFooter([BY_ID[name] for name in self._keys()], lambda _: "", id="footer")

    def _keys(self) -> tuple[str, ...]:
        return ("back", "replay", "command_line", "help", "picture", "leave")

    def on_mount(self) -> None:
        self.query_one("#scroll").focus()
        attempt = self._store.attempt
        self.set_class(self.query_one("#verdict", VerdictBanner).wanted, "-verdict")
        if attempt is None:
            self._show(ByReplica(0))
        else:
            number = attempt.number
            self.run_worker(lambda: self._read(number), thread=True, group="summary")

    def _read(self, attempt: int) -> None:
        summary = summary_of(self._path, attempt)
        self.app.call_from_thread(self._show, summary)

    def _show(self, summary: ByReplica) -> None:
        rows = self.query_one("#rows", Rows)
        rows.summary = summary
        rows.repaint()

    def paint(self, due: Due) -> int:
        if self._first and self._store.link().kind == "live" and self.app.screen is self:
            self.app.pop_screen()
            return 0
        return sum(
            painted.repaint()
            for painted in self.query(Painted)
            if painted.region.height and (painted.unpainted or (due.numbers and not isinstance(painted, Rows)))
        )

    async def action_back(self) -> None:
        if self._first:
            await self.app.run_action("mode_runs")
        else:
            self.app.pop_screen()

    def action_replay(self) -> None:
        self.console_app.open_session(replay_session(self.console_app, self._path))
