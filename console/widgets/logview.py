"""Many lines of text through a small window: only those in view are cut, wrapped and drawn.

A ScrollView would want the height of every line beforehand; wrapped, that is a pass over 20,000 lines for each new width. A
`Pager` asks for the few rows around the window instead. What a picture is made of (rows, cursor, size, theme) is compared
first: a paint of an unchanged window costs a comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar, Final

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip

from console.store.tail import LogTail, Pager
from console.widgets import fmt
from console.widgets.paint import Painted, Run, strip_of
from harness.records.logs import level_of

MANY: Final = 10**9
_WHEEL: Final = 3  # rows that a notch of the wheel moves


@lru_cache(maxsize=4096)
def chopped(text: str, width: int) -> tuple[str, ...]:
    """Pieces of at most `width` cells, between words where there is one to part at."""
    if not text.isascii():
        return tuple(chop_cells(text, width)) or ("",)
    pieces = []
    while len(text) > width:
        space = text.rfind(" ", width // 2, width + 1)
        cut = space if space > 0 else width
        pieces.append(text[:cut])
        text = text[cut:].removeprefix(" ")
    return (*pieces, text)


def piece_at(text: str, x: int, width: int) -> str:
    """`width` cells of it from cell x on."""
    if text.isascii():
        return text[x : x + width]
    rest = text[len(set_cell_size(text, x)) if x <= cell_len(text) else len(text) :] if x else text
    return chopped(rest, width)[0]


class LogView(Painted):
    """`prefix` gives the part of a row that stands still when the rest is scrolled or goes on in the next line."""

    def __init__(self, pager: Pager, *, id: str | None = None) -> None:
        super().__init__(1, id=id)
        self.pager = pager
        self.wrap = False
        self.shown: list[int] = []  # rows in view
        self.shows_cursor = False  # also while the newest line is followed
        self._drawn: tuple[tuple[object, ...], list[Strip]] = ((), [])

    # --- what a kind of log says ---------------------------------------------------------------------------

    def text(self, row: int) -> str:
        raise NotImplementedError

    def prefix(self, row: int) -> tuple[list[Run], Style]:
        """What stands before the text, and how the text is written."""
        raise NotImplementedError

    def prefix_width(self) -> int:
        return 1

    def version(self) -> object:
        """Something else whenever rows have changed."""
        raise NotImplementedError

    def highlight(self) -> Sequence[str]:
        return ()

    def nothing(self) -> str:
        return " nothing yet"

    # --- painting ------------------------------------------------------------------------------------------

    def draw(self, width: int, height: int) -> list[Strip]:
        pager = self.pager
        room = max(8, width - self.prefix_width() - 1)
        rows = pager.window(height, self._lines_of(room))
        key = (
            self.version(),
            tuple(self.highlight()),
            pager.cursor,
            pager.follow,
            pager.top,
            pager.x,
            pager.count,
            self.wrap,
            width,
            height,
            self.inks,
        )
        if key == self._drawn[0]:
            return self._drawn[1]
        self.shown = rows
        wanted = self.highlight()
        pattern = pattern_of(tuple(wanted))
        lines: list[Strip] = []
        for row in rows:
            lines += self._row(row, width, room, pattern)
        if not lines:
            lines = [strip_of([(self.nothing(), self.inks.muted)], width)]
        lines = lines[:height]
        self._drawn = (key, lines)
        return lines

    def _lines_of(self, room: int) -> Callable[[int], int]:
        def lines_of(row: int) -> int:
            if not self.wrap or row >= self.pager.count:
                return 1
            return len(chopped(self.text(row), room))

        return lines_of

    def _row(self, row: int, width: int, room: int, pattern: re.Pattern[str] | None) -> list[Strip]:
        ink, pager, text = self.inks, self.pager, self.text(row)
        chosen = row == pager.cursor and (self.shows_cursor or not pager.follow)
        before, style = self.prefix(row)
        base = ink.cursor if chosen else None
        mark: Run = (("▏" if pager.follow else "▌") if chosen else " ", ink.primary)
        pieces = chopped(text, room) if self.wrap else (piece_at(text, pager.x, room),)
        indent: list[Run] = [(" " * (self.prefix_width() - 1), style)]
        strips = []
        for number, piece in enumerate(pieces):
            runs = [mark, *(indent if number else before), *marked(piece, style, ink.badge, pattern)]
            if not self.wrap and cell_len(text) > pager.x + room:
                runs += [(" " * max(0, room - cell_len(piece)), style), ("›", ink.primary)]
            strips.append(strip_of(runs, width, base))
        return strips

    # --- moving --------------------------------------------------------------------------------------------

    @property
    def newer(self) -> int:
        """Rows below the window."""
        return max(0, self.pager.count - 1 - self.shown[-1]) if self.shown else 0

    @property
    def page(self) -> int:
        return max(1, len(self.shown) - 1)

    def move(self, by: int) -> None:
        self.pager.move(by)
        self.repaint()

    def aside(self, steps: int) -> None:
        room = max(8, self.content_size.width - self.prefix_width() - 1)
        longest = max((cell_len(self.text(row)) for row in self.shown if row < self.pager.count), default=0)
        self.pager.aside(steps, 0 if self.wrap else max(0, longest - room))
        self.repaint()

    @property
    def takes_wheel(self) -> bool:
        return True

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        if self.takes_wheel:
            event.stop()
            self.move(min(-_WHEEL, self.pager.top - self.pager.cursor - _WHEEL))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        if self.takes_wheel:
            event.stop()
            self.move(max(_WHEEL, (self.shown[-1] if self.shown else 0) - self.pager.cursor + _WHEEL))

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place is not None and not self.wrap and place.y < len(self.shown):
            self.pager.move_to(self.shown[place.y])
            self.repaint()


@lru_cache(maxsize=16)
def pattern_of(words: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(re.escape(word) for word in words), re.IGNORECASE) if words else None


def marked(piece: str, style: Style, found: Style, pattern: re.Pattern[str] | None) -> list[Run]:
    if pattern is None:
        return [(piece, style)]
    runs: list[Run] = []
    at = 0
    for match in pattern.finditer(piece):
        runs += [(piece[at : match.start()], style), (match.group(), found)]
        at = match.end()
    return [*runs, (piece[at:], style)]


class LogPane(LogView, can_focus=True):
    """The end of one replica's log. With the focus it is moved by keys of its own; else it shows the newest lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="log_up"),
        Binding("down,j", "move(1)", "Down", show=False, id="log_down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="log_page_up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="log_page_down"),
        Binding("home,g", f"move({-MANY})", "First line", show=False, id="log_top"),
        Binding("end,b", f"move({MANY})", "Last line", show=False, id="log_bottom"),
        Binding("left", "aside(-1)", "Left", show=False, id="log_left"),
        Binding("right", "aside(1)", "Right", show=False, id="log_right"),
    ]

    def __init__(
        self, tail: LogTail, problem: Callable[[], str], name_of: Callable[[str], str], *, id: str | None = None
    ) -> None:
        super().__init__(tail.pager, id=id)
        self._tail, self._problem, self._name_of = tail, problem, name_of

    @property
    def takes_wheel(self) -> bool:
        """Only when it was chosen: passing over it, the wheel scrolls the page that it is part of."""
        return self.has_focus

    def text(self, row: int) -> str:
        return self._tail.lines[row]

    def prefix(self, row: int) -> tuple[list[Run], Style]:
        line, ink = self._tail.lines[row], self.inks
        level = level_of(line)
        return [], ink.bad if level == "error" else ink.warn if level == "warn" else ink.plain

    def version(self) -> object:
        return (self._tail.path, self._tail.size, len(self._tail.lines))

    def nothing(self) -> str:
        return f" {self._problem() or 'no line in it yet'}"

    def draw(self, width: int, height: int) -> list[Strip]:
        lines = super().draw(width, height)
        self.entitle(self._title())
        return lines

    def _title(self) -> str:
        tail = self._tail
        if not tail.path:
            return "Log"
        parts = [f"Log of {self._name_of(tail.path)}"]
        if tail.written_s == tail.written_s:
            parts.append(f"written {fmt.age(tail.written_s)} ago")
        above = self.shown[0] if self.shown else 0
        if above:
            parts.append(f"{fmt.count(above)} lines above")
        if tail.left_out:
            parts.append(
                f"{fmt.size(tail.left_out)} before them left out" if above else f"{fmt.size(tail.left_out)} before this left out"
            )
        if not self.pager.follow:
            later = f", {fmt.size(tail.newer)} newer" if tail.newer else ""
            parts.append(f"▌held{later} (end goes on)")
        return " · ".join(parts)

    def action_move(self, by: int) -> None:
        self.move(by)

    def action_page(self, by: int) -> None:
        self.move(by * self.page)

    def action_aside(self, by: int) -> None:
        self.aside(by)
