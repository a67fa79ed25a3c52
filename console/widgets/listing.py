"""A list of lines with a cursor: formats only what is on screen, repaints only what changed. The content is its maker's.

For lists that are read and chosen from, such as runs, profiles or the fields of a spec. Some lines are only titles: the
cursor steps over them. (The tables of replicas, which re-sort under the cursor, are `widgets/rows.py`.)
"""

from __future__ import annotations

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from console.widgets.paint import strip_of
from console.widgets.viewport import Viewport


class LinesPane(Viewport):
    DEFAULT_CSS = """
    LinesPane { height: 1fr; min-height: 1; overflow-x: hidden; scrollbar-size-vertical: 1; }
    """

    class Chosen(Message):
        """Double click on a line."""

        def __init__(self, pane: LinesPane) -> None:
            super().__init__()
            self.pane = pane

    class Moved(Message):
        """The cursor is on another line."""

        def __init__(self, pane: LinesPane) -> None:
            super().__init__()
            self.pane = pane

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.at = 0  # the line under the cursor
        self._titled = ""

    # --- what a list of this kind says -----------------------------------------------------------------------

    def count(self) -> int:
        raise NotImplementedError

    def can_choose(self, at: int) -> bool:
        return True

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        raise NotImplementedError

    def headings(self, width: int) -> list[Strip]:
        return []

    def nothing(self) -> str:
        """Stands in place of lines when there are none."""
        return ""

    # --- painting ------------------------------------------------------------------------------------------

    def entitle(self, title: str) -> None:
        """Written only when it has changed: a title costs a layout. Plain text."""
        if title != self._titled:
            self._titled = title
            self.border_title = title.replace("[", r"\[")

    def repaint(self, *, whole: bool = False) -> int:
        size = self.scrollable_content_region.size
        if size.height <= 0 or not self.is_attached:
            return 0
        wanted = Size(size.width, self.count() + self.HEADINGS)
        if self.virtual_size != wanted:
            self.virtual_size = wanted
        return self.put_strips(self._draw(size.width, size.height), whole=whole)

    def _draw(self, width: int, height: int) -> list[Strip]:
        strips = self.headings(width)[: self.HEADINGS]
        top, count = int(self.scroll_offset.y), self.count()
        for y in range(height - len(strips)):
            at = top + y
            if at < count:
                strips.append(self.line(at, width, at == self.at))
            else:
                strips.append(strip_of([(self.nothing() if not count and y == 0 else "", self.inks.muted)], width))
        return strips

    def on_focus(self) -> None:
        self.repaint()

    def on_blur(self) -> None:
        self.repaint()

    def mark(self, chosen: bool) -> str:
        """The bar before the line under the cursor: full in the list that has the keys, thin in the others."""
        return ("▌" if self.has_focus else "▏") if chosen else " "

    # --- cursor --------------------------------------------------------------------------------------------

    def move(self, by: int) -> None:
        """By so many lines, on to the next one that can be chosen, back when there is none."""
        count = self.count()
        wanted = min(max(self.at + by, 0), max(0, count - 1))
        step = 1 if by >= 0 else -1
        ways = (range(wanted, count if step > 0 else -1, step), range(wanted, -1 if step > 0 else count, -step))
        self.move_to(next((at for way in ways for at in way if self.can_choose(at)), self.at))

    def move_to(self, at: int) -> None:
        moved = at != self.at
        self.at = at
        self.show_cursor()
        if moved:
            self.post_message(self.Moved(self))

    def show_cursor(self) -> None:
        height = self.scrollable_content_region.height - self.HEADINGS
        top = int(self.scroll_offset.y)
        first = self.at - 1 if self.at and not self.can_choose(self.at - 1) else self.at  # with the title above it
        if height > 0 and not top <= first <= self.at < top + height:
            self.virtual_size = Size(self.scrollable_content_region.width, self.count() + self.HEADINGS)
            self.scroll_to(y=first if first < top else self.at - height + 1, animate=False, immediate=True)
        self.repaint()

    def on_click(self, event: events.Click) -> None:
        spot = event.get_content_offset(self)
        at = int(self.scroll_offset.y) + spot.y - self.HEADINGS if spot is not None else -1
        if spot is not None and spot.y >= self.HEADINGS and 0 <= at < self.count() and self.can_choose(at):
            self.move_to(at)
            if event.chain == 2:
                self.post_message(self.Chosen(self))
