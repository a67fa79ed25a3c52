"""The replica table: a ScrollView that formats only the rows on screen and repaints only the lines that changed.

Why not DataTable: it renders every visible cell again on each update (174-264 ms of CPU a tick at 512 rows, measured;
a ScrollView with render_line took 25-28 on the same machine, the whole viewport each time). Rows, order and
cursor belong to `store.view.TableView`, which binds the cursor to a slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.store.fleet import FleetStore
from console.store.view import TableView
from console.widgets import fmt
from console.widgets.paint import GLYPHS, HasInks, Paint, Run, merge, strip_of


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int
    right: bool = True


_WIDE = (
    Column("REPLICA", 14, False), Column("STATE", 13, False), Column("TOK/S", 9), Column("Δmed", 6), Column("ratio", 7),
    Column("z", 6), Column("TTFTp99", 9), Column("TPOTp99", 9), Column("KV", 5), Column("RUN", 5), Column("WAIT", 6),
    Column("OLDEST", 8), Column("AGE", 6),
)  # fmt: skip
_NARROW = (
    Column("REPLICA", 13, False), Column("STATE", 13, False), Column("TOK/S", 8), Column("Δmed", 6), Column("z", 6),
    Column("TTFTp99", 9), Column("WAIT", 6), Column("AGE", 5),
)  # fmt: skip
_TREND_MAX = 60  # a mark is a second of tok/s
_TREND = "trend"


class ReplicaTable(ScrollView, can_focus=True, inherit_bindings=False):
    DEFAULT_CSS = """
    ReplicaTable { height: 1fr; min-height: 3; overflow-x: hidden; scrollbar-size-vertical: 1; }
    """

    class Chosen(Message):
        """The operator opened a replica."""

        def __init__(self, slot: str) -> None:
            super().__init__()
            self.slot = slot

    def __init__(self, store: FleetStore, view: TableView, now: Callable[[], float], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store, self._view, self._now = store, view, now
        self._strips: dict[int, Strip] = {}  # by line of the viewport
        self._outliers: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._medians = 0.0
        self._titled = Content("")
        self.narrow = False

    @property
    def _inks(self) -> Paint:
        return cast(HasInks, self.app).inks

    # --- painting ------------------------------------------------------------------------------------------

    def repaint(self, *, whole: bool = False) -> int:
        """Draw the visible lines and refresh those that changed; how many that was."""
        size = self.scrollable_content_region.size
        if size.height <= 0 or not self.is_attached:
            return 0
        self.entitle()
        wanted = Size(size.width, len(self._view.rows) + 1)
        if self.virtual_size != wanted:
            self.virtual_size = wanted
        self._medians = self._store.median("tokens_s")
        self._outliers = self._store.outliers()
        if self._view.bound:
            self._follow_cursor()
        position = self._view.position(self._store)
        base = self.rich_style
        fresh = {y: self._line(y, size.width, position).apply_style(base) for y in range(size.height)}
        changed = [y for y, strip in fresh.items() if whole or self._strips.get(y) != strip]
        self._strips = fresh
        if changed:
            self.refresh(*merge(changed, size.width))
        return len(changed)

    def wipe(self) -> None:
        self._strips = {}
        self.repaint(whole=True)

    def render_line(self, y: int) -> Strip:
        strip = self._strips.get(y)
        return strip if strip is not None else Strip.blank(self.scrollable_content_region.width, self.rich_style)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.repaint()

    def on_resize(self) -> None:
        self._strips = {}
        self.repaint(whole=True)
        self.show_cursor()

    def _line(self, y: int, width: int, cursor_row: int) -> Strip:
        if y == 0:
            return self._header(width)
        row = int(self.scroll_offset.y) + y - 1
        if row >= len(self._view.rows):
            text = self._nothing() if y == 1 and not len(self._view.rows) and self._store.slots else ""
            return strip_of([(text, self._inks.muted)], width)
        return self._row(int(self._view.rows[row]), width, row == cursor_row)

    def _columns(self) -> tuple[Column, ...]:
        return _NARROW if self.narrow else _WIDE

    def _header(self, width: int) -> Strip:
        ink = self._inks
        runs: list[Run] = [(" ", ink.muted)]
        runs += [(_fit(column.title, column), ink.muted) for column in self._columns()]
        used = 1 + sum(column.width for column in self._columns())
        if width - used - 3 >= len(_TREND):
            runs.append((f"   {_TREND}", ink.faint))
        return strip_of(runs, width)

    def _nothing(self) -> str:
        view = self._view
        if view.faults_only:
            return f"  no fault matches /{view.text} (esc clears the filter)" if view.text else "  no faults (z shows all)"
        return "  no replica matches (esc clears the filter)"

    def entitle(self) -> None:
        """What decides which rows are here and in which order, above them; written only when it has changed."""
        view, shown, all_of = self._view, len(self._view.rows), len(self._store.slots)
        warn = []
        if view.text:
            warn.append(f"/{fmt.middle(view.text, 10 if self.narrow else 24)}")
        if view.faults_only:
            warn.append("faults only")
        if view.frozen:
            warn.append("❄ order frozen")
        count = fmt.count(all_of) if shown == all_of else f"{fmt.count(shown)} of {fmt.count(all_of)}"
        parts: list[Content | str | tuple[str, str]] = [
            f"Replicas {count} · ↓ {view.sort.name if self.narrow else view.sort.label}"
        ]
        parts += [(f" · {text}", "$warning") for text in warn]
        if view.bound and view.cursor is not None:
            parts.append((" · ▌held" if self.narrow else f" · ▌held on {view.cursor}, esc lets go", "$primary"))
        title = Content.assemble(*parts)
        if title != self._titled:
            self._titled = self.border_title = title

    def _row(self, at: int, width: int, chosen: bool) -> Strip:
        store, ink = self._store, self._inks
        name = store.state_name(at)
        base = ink.cursor if chosen else None
        live = name in ("READY", "SLOW", "SUSPECT", "DRAINING")
        number = ink.plain if live else ink.faint
        state = ink.states.get(name, ink.plain)
        cells = self._cells(at, name, live)
        beyond = name == "SLOW" or (name == "READY" and bool(self._outliers[at]))
        mark = ("▌" if self._view.bound else "▏") if chosen else " "  # full: held on this slot; thin: rests on the first row
        runs: list[Run] = [(mark, ink.primary)]
        for column in self._columns():
            text = cells[column.title]
            style = {"REPLICA": ink.bold if chosen else ink.plain, "STATE": state, "AGE": ink.muted}.get(column.title, number)
            if beyond and column.title in ("Δmed", "ratio", "z"):
                style = ink.states["SLOW"]
            runs.append((_fit(text, column), style))
        used = 1 + sum(column.width for column in self._columns())
        runs += self._trend(at, min(_TREND_MAX, width - used - 3), ink.states["SLOW"] if beyond else state)
        return strip_of(runs, width, base)

    def _cells(self, at: int, name: str, live: bool) -> dict[str, str]:
        store = self._store

        def number(column: str) -> float:
            return float(store.floats(column)[at]) if live else math.nan

        def whole(column: str) -> str:
            return fmt.count(int(store.ints(column)[at])) if live else fmt.UNKNOWN

        tokens, ratio, z = number("tokens_s"), number("ratio"), number("z")
        return {
            "REPLICA": store.slots[at].slot,
            "STATE": f"{GLYPHS.get(name, ' ')} {name}",
            "TOK/S": fmt.count(tokens),
            "Δmed": fmt.signed_percent(tokens / self._medians - 1) if self._medians else fmt.UNKNOWN,
            "ratio": fmt.UNKNOWN if math.isnan(ratio) else f"{ratio:.2f}x",
            "z": fmt.signed(z),
            "TTFTp99": fmt.millis(number("ttft_p99_ms")),
            "TPOTp99": fmt.millis(number("tpot_p99_ms")),
            "KV": fmt.percent(number("kv_use")),
            "RUN": whole("running"),
            "WAIT": whole("waiting"),
            "OLDEST": fmt.age(number("oldest_s")),
            "AGE": fmt.age(store.age_s(at)),
        }

    def _trend(self, at: int, room: int, style: Style) -> list[Run]:
        if room < 4:
            return []
        return [("   ", self._inks.plain), (sparkline(self._store.history.values[at][-room:], self._medians), style)]

    # --- cursor --------------------------------------------------------------------------------------------

    def move(self, by: int) -> None:
        self._view.move(self._store, by, self._now())
        self.show_cursor()

    def show_cursor(self) -> None:
        self._follow_cursor()
        self.repaint()

    def _follow_cursor(self) -> None:
        """Scroll so that the row under the cursor is on screen: what an act would hit must be seen."""
        row = self._view.position(self._store)
        height = self.scrollable_content_region.height - 1
        top = int(self.scroll_offset.y)
        if row < 0 or height <= 0 or top <= row < top + height:
            return
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._view.rows) + 1)
        self.scroll_to(y=row if row < top else row - height + 1, animate=False, immediate=True)

    @property
    def page(self) -> int:
        return max(1, self.scrollable_content_region.height - 2)

    def on_click(self, event: events.Click) -> None:
        row = int(self.scroll_offset.y) + int(event.y) - 1
        if event.y >= 1 and 0 <= row < len(self._view.rows):
            self._view.move_to(self._store, row, self._now())
            self.repaint()
            if event.chain == 2 and self._view.cursor:
                self.post_message(self.Chosen(self._view.cursor))


def _fit(text: str, column: Column) -> str:
    text = fmt.clip(text, column.width - (0 if column.right else 1))
    return text.rjust(column.width) if column.right else text.ljust(column.width)


def sparkline(values: object, full: float) -> str:
    """One block a second, against the fleet's median (an ordinary replica reads as ▆); `·` where nothing is known."""
    if not full or math.isnan(full):
        return ""
    out = []
    for value in cast("list[float]", values):
        level = -1 if math.isnan(value) else int(min(max(value / full * 5.5, 0.0), 7.0))
        out.append("·" if level < 0 else fmt.BLOCKS[level])
    return "".join(out)
