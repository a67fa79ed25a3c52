"""The table of runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.style import Style
from textual.strip import Strip

from console.store.runs import SORTS, RunRow, RunSort, Test, ordered
from console.widgets import fmt
from console.widgets.launching import outcome_mark
from console.widgets.listing import LinesPane
from console.widgets.paint import Paint, Run, strip_of
from console.widgets.sla import judged


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int
    text: Callable[[RunRow], str]
    right: bool = True


def _load(row: RunRow) -> str:
    kind = {"performance": "perf", "accuracy": "accuracy", "explore": "explore"}.get(row.kind, row.kind)
    return f"{row.scenario} {kind}".strip() or fmt.UNKNOWN


def _fleet(row: RunRow) -> str:
    return f"{row.nodes}x{row.per_node}" if row.nodes else fmt.UNKNOWN


def when_text(unix: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(unix)) if not math.isnan(unix) else fmt.UNKNOWN


_WHEN: Final = Column("STARTED", 13, lambda row: when_text(row.when_unix), False)
_OUTCOME: Final = Column("VERDICT", 14, lambda row: row.outcome, False)
_TARGET: Final = Column("TARGET", 8, lambda row: fmt.rate(row.target_qps))
_DONE: Final = Column("QPS", 8, lambda row: fmt.rate(row.completed_qps))
_TTFT: Final = Column("TTFTp99", 9, lambda row: fmt.millis(row.ttft_p99_ms))
_TPOT: Final = Column("TPOTp99", 9, lambda row: fmt.millis(row.tpot_p99_ms))
_TOKENS: Final = Column("TOK/S", 9, lambda row: (fmt.big if row.tokens_per_s >= 1e5 else fmt.count)(row.tokens_per_s))
_ACTS: Final = Column("ACTS", 5, lambda row: str(row.acts) if row.acts else "·")
_FLEET: Final = Column("FLEET", 8, _fleet)
_SIZE: Final = Column("SIZE", 8, lambda row: fmt.size(row.size_bytes))
_LOAD: Final = Column("LOAD", 16, _load, False)
_TAGS: Final = Column("  TAGS", 16, lambda row: f"  {' '.join(row.tags)}", False)
_NARROW: Final = (_OUTCOME, _TARGET, _DONE, _TTFT, _TPOT)
_WIDE: Final = (_WHEN, _OUTCOME, _TARGET, _DONE, _TOKENS, _TTFT, _TPOT, _ACTS, _FLEET, _SIZE)
_WIDER: Final = (_WHEN, _LOAD, _OUTCOME, _TARGET, _DONE, _TOKENS, _TTFT, _TPOT, _ACTS, _FLEET, _SIZE)
#: Written into the record when an attempt ends: of a run that goes on they are on its Live screen.
_AT_THE_END: Final = (_DONE, _TTFT, _TPOT, _TOKENS)
_NAME_MAX: Final = 44
PIN: Final = "◆"


class RunsPane(LinesPane):
    """The cursor and the marks are on runs, never on lines: rows may come and go under them."""

    HEADINGS = 1

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.all: list[RunRow] = []
        self.rows: list[RunRow] = []
        self.marked: dict[str, None] = {}  # names, in the order in which they were marked
        self.sort: RunSort = SORTS[0]
        self.reverse = False
        self.text = ""
        self.reading = True
        self._test: Test = lambda _: True
        self._on = ""

    # --- rows ------------------------------------------------------------------------------------------------

    @property
    def row(self) -> RunRow | None:
        return self.rows[self.at] if self.at < len(self.rows) else None

    def put(self, rows: Sequence[RunRow]) -> None:
        self.all = list(rows)
        self.order_again()

    def order_again(self) -> None:
        self.rows = [row for row in ordered(self.all, self.sort, self.reverse) if self._test(row)]
        names = [row.name for row in self.rows]
        self.at = names.index(self._on) if self._on in names else min(self.at, max(0, len(names) - 1))
        self._entitle()
        self.show_cursor()

    def choose(self, name: str) -> None:
        """The cursor on that run, now or once it is there."""
        self._on = name
        self.order_again()

    def keep(self, text: str, test: Test) -> None:
        self.text, self._test = text, test
        self.order_again()

    def move_to(self, at: int) -> None:
        super().move_to(at)
        self._on = self.row.name if self.row is not None else ""

    def toggle_mark(self) -> None:
        if self.row is not None:
            if self.marked.pop(self.row.name, self) is self:
                self.marked[self.row.name] = None
            self._entitle()
            self.move(1)

    def mark_range(self) -> None:
        """From the last mark to the cursor."""
        names = [row.name for row in self.rows]
        last = next((names.index(name) for name in reversed(self.marked) if name in names), self.at)
        for at in range(min(last, self.at), min(max(last, self.at) + 1, len(names))):
            self.marked.setdefault(names[at])
        self._entitle()
        self.repaint()

    def unmark(self) -> None:
        self.marked.clear()
        self._entitle()
        self.repaint()

    def _entitle(self) -> None:
        shown, all_of = len(self.rows), len(self.all)
        parts = [f"Runs {fmt.count(all_of)}" if shown == all_of else f"Runs {fmt.count(shown)} of {fmt.count(all_of)}"]
        parts.append(f"↓ {self.sort.label}{', reversed' if self.reverse else ''}")
        parts += [f"/{fmt.clip(self.text, 30)}"] if self.text else []
        parts += [f"{len(self.marked)} marked"] if self.marked else []
        parts += ["reading …"] if self.reading else []
        self.entitle(" · ".join(parts))

    # --- lines -----------------------------------------------------------------------------------------------

    def count(self) -> int:
        return len(self.rows)

    def nothing(self) -> str:
        if self.reading:
            return "  reading …"
        return "  no run matches (esc clears the filter)" if self.all else "  no runs here yet: 0 Launch starts one"

    def _columns(self, width: int) -> tuple[tuple[Column, ...], int]:
        """And the room for the name."""
        columns: tuple[Column, ...] = _WIDER if width >= 150 else _WIDE if width >= 110 else _NARROW
        if width >= 110 and any(row.tags for row in self.all):  # what fleet it was, the line below says as well
            tags = _TAGS if width >= 150 else replace(_TAGS, width=12)
            columns = (*(column for column in columns if column is not _FLEET), tags)
        return columns, max(16, min(_NAME_MAX, width - 5 - sum(column.width for column in columns)))

    def headings(self, width: int) -> list[Strip]:
        columns, name = self._columns(width)
        titles = "".join(_fit(column.title, column) for column in columns)
        return [strip_of([("   " + "RUN".ljust(name + 1) + titles, self.inks.muted)], width)]

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        ink, row = self.inks, self.rows[at]
        columns, name_width = self._columns(width)
        marked = row.name in self.marked
        glyph, colour = outcome_mark(row, ink)
        runs: list[Run] = [
            (self.mark(chosen), ink.primary),
            ("✓" if marked else " ", ink.primary),
            (PIN if row.pinned else " ", ink.primary),
            (fmt.pad(fmt.middle(row.name, name_width), name_width + 1), ink.bold if chosen or marked else ink.plain),
        ]
        if row.state == "damaged":
            runs.append((f"{when_text(row.when_unix):<13}" if columns[0] is _WHEN else "", ink.muted))
            runs.append((f"{glyph} damaged: {row.problem}", colour))
            return strip_of(runs, width, ink.cursor if chosen else None)
        for column in columns:
            text = column.text(row)
            if column is _OUTCOME:
                text, style = f"{glyph} {text}", colour
            elif text == fmt.UNKNOWN and row.state == "running" and column in _AT_THE_END:
                text, style = "at end", ink.faint
            else:
                style = self._style(column, row, ink)
            runs.append((_fit(text, column), style))
        return strip_of(runs, width, ink.cursor if chosen else None)

    @staticmethod
    def _style(column: Column, row: RunRow, ink: Paint) -> Style:
        if column is _ACTS:
            return ink.warn if row.acts else ink.faint
        if column in (_WHEN, _LOAD, _FLEET, _SIZE, _TARGET) or column.title == _TAGS.title:
            return ink.muted
        figures = {"TTFTp99": (row.ttft_p99_ms, row.ttft_limit_ms), "TPOTp99": (row.tpot_p99_ms, row.tpot_limit_ms)}
        value, limit = figures.get(column.title, (math.nan, None))
        return judged(value, limit, ink)[1] if limit is not None and value > limit else ink.plain


def _fit(text: str, column: Column) -> str:
    text = fmt.clip(text, column.width - 1)
    return text.rjust(column.width) if column.right else fmt.pad(text, column.width)
