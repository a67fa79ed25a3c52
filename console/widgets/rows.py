"""A table of many rows: a ScrollView that formats only the rows on screen and repaints only the lines that changed.

Why not DataTable: it renders every visible cell again on each update (174-264 ms of CPU a tick at 512 rows, measured;
a ScrollView with render_line took 25-28 on the same machine, the whole viewport each time). Rows, order, cursor and marks
belong to a `store.view.RowView`, which binds them to names; what a row looks like belongs to the tables made of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from console.store.fleet import FleetStore
from console.store.view import RowView
from console.widgets import fmt
from console.widgets.paint import strip_of
from console.widgets.viewport import Viewport

TREND_MAX: Final = 60  # a mark is a second of tok/s


class RowsTable(Viewport):
    DEFAULT_CSS = """
    RowsTable { height: 1fr; min-height: 3; overflow-x: hidden; scrollbar-size-vertical: 1; }
    """
    HEADINGS = 1

    class Chosen(Message):
        """The operator opened the row under the cursor."""

    def __init__(self, store: FleetStore, now: Callable[[], float], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store, self._now = store, now
        self._titled = Content("")

    # --- what a table of this kind says ----------------------------------------------------------------------

    @property
    def rows(self) -> RowView:
        raise NotImplementedError

    def look(self, width: int) -> None:
        """Take what all rows of this paint need from the store."""
        raise NotImplementedError

    def heading(self, width: int) -> Strip:
        raise NotImplementedError

    def row(self, at: int, width: int, chosen: bool) -> Strip:
        """The row of that position."""
        raise NotImplementedError

    def nothing(self) -> str:
        """Stands in place of rows when none matches."""
        raise NotImplementedError

    def title(self) -> Content:
        """What decides which rows are here and in which order."""
        raise NotImplementedError

    def heading_clicked(self, x: int) -> None:
        """At that column of the terminal, from the left edge of the rows."""

    # --- painting ------------------------------------------------------------------------------------------

    def repaint(self, *, whole: bool = False) -> int:
        size = self.scrollable_content_region.size
        if size.height <= 0 or not self.is_attached:
            return 0
        rows = self.rows
        rows.keep_up(self._store)
        wanted = Size(size.width, len(rows.rows) + 1)
        if self.virtual_size != wanted:
            self.virtual_size = wanted
        if rows.bound:
            self._follow_cursor()
        self.look(size.width)
        self._entitle()
        position = rows.position(self._store)
        return self.put_strips((self._line(y, size.width, position) for y in range(size.height)), whole=whole)

    def _line(self, y: int, width: int, cursor_row: int) -> Strip:
        if y == 0:
            return self.heading(width)
        row, rows = int(self.scroll_offset.y) + y - 1, self.rows.rows
        if row >= len(rows):
            text = self.nothing() if y == 1 and not len(rows) and self._store.slots else ""
            return strip_of([(text, self.inks.muted)], width)
        return self.row(int(rows[row]), width, row == cursor_row)

    def _entitle(self) -> None:
        """Written only when it has changed: a title costs a layout."""
        title = self.title()
        if title != self._titled:
            self._titled = self.border_title = title

    # --- cursor --------------------------------------------------------------------------------------------

    def move(self, by: int) -> None:
        self.rows.move(self._store, by, self._now())
        self.show_cursor()

    def show_cursor(self) -> None:
        self._follow_cursor()
        self.repaint()

    def _follow_cursor(self) -> None:
        """Scroll so that the row under the cursor is on screen: what an act would hit must be seen."""
        row = self.rows.position(self._store)
        height = self.scrollable_content_region.height - 1
        top = int(self.scroll_offset.y)
        if row < 0 or height <= 0 or top <= row < top + height:
            return
        self.virtual_size = Size(self.scrollable_content_region.width, len(self.rows.rows) + 1)
        # By force: when rows have just become too many for the screen, there is no scroll bar yet, and it would be refused.
        self.scroll_to(y=row if row < top else row - height + 1, animate=False, immediate=True, force=True)

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        if spot is None:
            return
        row = int(self.scroll_offset.y) + spot.y - 1
        if spot.y == 0:
            self.heading_clicked(spot.x)
        elif 0 <= row < len(self.rows.rows):
            self.rows.move_to(self._store, row, self._now())
            self.repaint()
            if event.chain == 2 and self.rows.cursor:
                self.post_message(self.Chosen())


def sparkline(values: Sequence[float], full: float) -> str:
    """One block a second, against the fleet's median (an ordinary replica reads as ▅); `·` where nothing is known.
    Never taller than ▆: the lines of neighbouring rows must not touch."""
    if not full or math.isnan(full):
        return ""
    out = []
    for value in values:
        level = -1 if math.isnan(value) else int(min(max(value / full * 4.5, 0.0), 5.0))
        out.append("·" if level < 0 else fmt.BLOCKS[level])
    return "".join(out)
