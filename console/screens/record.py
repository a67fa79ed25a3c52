"""A run from its record: verdict and results of the last attempt, and its replicas by what their samples add up to.

Shown when a console is opened on a run that has ended or lost its head, and by `v` after the end of a run that was watched.
Nothing moves here but the clock. A head that is started again while this is open takes over: the screen closes itself.
"""

from __future__ import annotations

import textwrap
import time
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
from console.store.merge import sentence
from console.store.record import ByReplica, summary_of
from console.widgets import fmt
from console.widgets.clock import Due
from console.widgets.events import EventsPane, mark_of
from console.widgets.footer import KeyFooter
from console.widgets.header import HeaderLine, PhaseStrip
from console.widgets.paint import Painted, Run, size_of, strip_of
from console.widgets.sla import judged
from console.widgets.verdict import VerdictBanner

if TYPE_CHECKING:
    from harness.records.summary import ReplicaSummary
    from harness.wire.control import JournalEntry

_TITLE: Final = "Replicas, whole attempt · slowest TPOT p99 first"
#: Together less than 80 wide.
_COLUMNS: Final = (
    ("REPLICA", 13), ("SAMPLES", 9), ("TOKENS", 12), ("TOK/S", 8), ("TTFTp99", 9), ("TPOTp99", 9), ("RE-DISP", 9), ("FAILED", 7),
)  # fmt: skip


#: Of the whole fleet, whole attempt.
_PARTS: Final = (("p50", "P50"), ("p90", "P90"), ("p99", "P99"), ("p99_9", "P99.9"), ("max", "MAX"))
_PART: Final = 10


class Latencies(Painted):
    """Percentiles of the attempt, one line a latency; those with a limit are judged at p99."""

    def __init__(self, store: FleetStore, *, id: str | None = None) -> None:
        super().__init__(4, id=id)
        self._store = store
        self.summary: ByReplica | None = None

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, limits = self.inks, self._store.spec.limits if self._store.spec is not None else None
        head = "".join(title.rjust(_PART) for _, title in _PARTS)
        lines = [strip_of([(f" {'WHOLE ATTEMPT':<13}{head}", ink.muted)], width)]
        told = self.summary.latencies if self.summary is not None else {}
        judge = {"TTFT": limits.ttft_p99_ms, "TPOT": limits.tpot_p99_ms} if limits is not None else {}
        for name in ("TTFT", "TPOT", "latency"):
            values, limit = told.get(name, {}), judge.get(name)
            runs: list[Run] = [(f" {name.upper():<13}", ink.muted)]
            for part, _ in _PARTS:
                value = values.get(part)
                style = _over(value, limit, self) if part == "p99" else ink.plain
                runs.append((_millis(value).rjust(_PART), style))
            p99 = values.get("p99")
            if limit is not None and p99 is not None:
                word, style = judged(p99, limit, ink)
                of = f"  P99 of {fmt.millis(limit)} "
                runs += [(of if size_of(runs) + len(of) + len(word) <= width else "  ", ink.muted), (word, style)]
            lines.append(strip_of(runs, width))
        return lines


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
        lines = lines or [strip_of([("  no sample was recorded", ink.muted)], width)]
        if summary.acts:
            lines += [strip_of([], width), strip_of([(f" ACTS {len(summary.acts)}  of this attempt", ink.muted)], width)]
            lines += [strip_of(runs, width) for entry in summary.acts for runs in self._act(entry, width)]
        self.set_lines(len(lines))
        return lines

    def _act(self, entry: JournalEntry, width: int) -> list[list[Run]]:
        """When, what, to whom, who and why, uncut."""
        ink, who = self.inks, entry.who.removeprefix("operator:") or fmt.UNKNOWN
        said = f"{sentence(entry)} {entry.subject}".rstrip() + f"  ({who})" + (f": {entry.why}" if entry.why else "")
        glyph, style = mark_of("act", entry.level, ink)
        texts = textwrap.wrap(said, max(20, width - 14), break_on_hyphens=False)
        start: list[Run] = [(time.strftime(" %H:%M:%S ", time.localtime(entry.unix)), ink.muted), (f"{glyph} ", style)]
        return [[*(start if not number else [(" " * 12, ink.plain)]), (text, ink.plain)] for number, text in enumerate(texts)]

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
        yield VerdictBanner(store, whole=True, id="verdict")
        yield Latencies(store, id="latencies")
        with Vertical(id="by-replica") as box:
            box.border_title = _TITLE
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
        rows, latencies = self.query_one("#rows", Rows), self.query_one("#latencies", Latencies)
        rows.summary = latencies.summary = summary
        rows.repaint()
        latencies.repaint()
        if summary.acts:
            below = f" · {len(summary.acts)} act{'s' * (len(summary.acts) != 1)} at the end"
            self.query_one("#by-replica").border_title = f"{_TITLE}{below}"

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
