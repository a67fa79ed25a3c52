"""What all views of a record are made of: a list of things of one or several lines each, the line of views, the line under it."""

from __future__ import annotations

import bisect
import itertools
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from console.actions import BY_ID
from console.store.drill import VIEWS, Choice, View
from console.widgets import fmt
from console.widgets.listing import LinesPane
from console.widgets.paint import Paint, Painted, Run, fitting, size_of, spread, strip_of

T = TypeVar("T")
UNKNOWN: Final = fmt.UNKNOWN


@dataclass(frozen=True, slots=True)
class Title:
    """A line between the things of a list that cannot be chosen."""

    text: str


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    width: int
    right: bool = True

    def fit(self, text: str) -> str:
        text = fmt.clip(text, self.width if self.right else self.width - 1)
        return text.rjust(self.width) if self.right else fmt.pad(text, self.width)


class ItemsPane(LinesPane, Generic[T]):
    """Each kind says how many columns it has and which lines a thing of it takes; the first of them can be chosen."""

    COLUMNS: tuple[tuple[int, tuple[Column, ...]], ...] = ()  # from so many columns of the terminal on, widest first
    HEADINGS = 1

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.items: Sequence[T | Title] = ()
        self.says = ""  # in place of things
        self.of: object = None
        self._chosen = -1  # the number of the thing under the cursor
        self._laid: tuple[object, list[tuple[int, list[Run]]]] = (None, [])
        self._version = 0
        self.add_class("drill-pane")

    # --- what a kind of list says ----------------------------------------------------------------------------

    def told(self, item: T, width: int, ink: Paint) -> list[list[Run]]:
        """Its lines, without the bar of the cursor."""
        raise NotImplementedError

    def none(self) -> str:
        """There are no things of this kind at all."""
        return "nothing"

    # --- things ----------------------------------------------------------------------------------------------

    def put(self, items: Sequence[T | Title], of: object, says: str = "") -> None:
        """`of`: what they are the answer to; while that stays, the cursor stays on its thing."""
        before = self.item if of == self.of else None
        self.items, self.says, self.of = items, says, of
        self._version += 1
        first = next((at for at, item in enumerate(items) if not isinstance(item, Title)), -1)
        self._chosen = next((at for at, item in enumerate(items) if before is not None and item == before), first)
        self._lay()
        if self._chosen == first:
            self.scroll_to(y=0, animate=False, immediate=True)
        self.show_cursor()

    def choose(self, item: T) -> None:
        """The cursor to that thing, where it is one of these."""
        if item in self.items:
            self._chosen = self.items.index(item)
            self._version += 1
            self.show_cursor()

    @property
    def item(self) -> T | None:
        """The thing under the cursor."""
        found = self.items[self._chosen] if 0 <= self._chosen < len(self.items) else None
        return None if isinstance(found, Title) else found

    def words(self) -> str:
        """Of the thing under the cursor, as one line."""
        own = [runs for of, runs in self._lay() if of == self._chosen] if self.item is not None else []
        return "  ".join(" ".join("".join(text for text, _ in runs).split()) for runs in own).strip()

    # --- lines -----------------------------------------------------------------------------------------------

    def _lay(self) -> list[tuple[int, list[Run]]]:
        """(thing, its line) of all; made anew when things, width or theme have changed."""
        width = self.scrollable_content_region.width
        key = (self._version, width, self.inks)
        if self._laid[0] != key:
            ink = self.inks
            lines: list[tuple[int, list[Run]]] = []
            for number, item in enumerate(self.items if width > 2 else ()):
                own = [[(item.text, ink.muted)]] if isinstance(item, Title) else self.told(item, width - 1, ink)
                lines += [(number, runs) for runs in own]
            self._laid = (key, lines)
            self.at = next((at for at, (number, _) in enumerate(lines) if number == self._chosen), 0)
        return self._laid[1]

    def move_to(self, at: int) -> None:
        lines = self._lay()
        if 0 <= at < len(lines) and self.can_choose(at):
            self._chosen = lines[at][0]
        super().move_to(at)

    def count(self) -> int:
        return len(self._lay())

    def can_choose(self, at: int) -> bool:
        lines = self._lay()
        if not 0 <= at < len(lines):
            return False
        number = lines[at][0]
        return not isinstance(self.items[number], Title) and (at == 0 or lines[at - 1][0] != number)

    def line(self, at: int, width: int, chosen: bool) -> Strip:
        lines, ink = self._lay(), self.inks
        number, runs = lines[at]
        own = number == self._chosen
        bar: Run = (self.mark(own), ink.primary)
        return strip_of([bar, *runs], width, ink.cursor if own else None)

    def columns(self, width: int) -> tuple[Column, ...]:
        return next((columns for least, columns in self.COLUMNS if width >= least), self.COLUMNS[-1][1] if self.COLUMNS else ())

    def headings(self, width: int) -> list[Strip]:
        return [strip_of([(" " + "".join(column.fit(column.title) for column in self.columns(width)), self.inks.muted)], width)]

    def nothing(self) -> str:
        return f"  {self.says or self.none()}"

    def show_cursor(self) -> None:
        """With all lines of its thing, where they fit."""
        lines = self._lay()
        super().show_cursor()
        height = self.scrollable_content_region.height - self.HEADINGS
        if not lines or height <= 0:
            return
        last = next((at for at in range(self.at + 1, len(lines)) if lines[at][0] != lines[self.at][0]), len(lines)) - 1
        if int(self.scroll_offset.y) + height <= last < self.at + height:
            self.scroll_to(y=last - height + 1, animate=False, immediate=True)
            self.repaint()


def wrapped(first: Sequence[Run], text: str, width: int, style: Style, *, indent: int | None = None) -> list[list[Run]]:
    """A sentence behind what stands before it, on as many lines as it needs."""
    before = size_of(first) if indent is None else indent
    parts = textwrap.wrap(text, max(12, width - before), break_on_hyphens=False) or [""]
    return [[*(first if not at else [(" " * before, style)]), (part, style)] for at, part in enumerate(parts)]


def millis(value_ms: float | None) -> str:
    return UNKNOWN if value_ms is None else fmt.millis(value_ms)


def number(value: float | None) -> str:
    return UNKNOWN if value is None else fmt.count(value)


def span(interval: tuple[float, float] | None, form: Callable[[float], str]) -> str:
    """`[0.98 … 1.02 s]`: the unit once where both have the same."""
    if interval is None:
        return ""
    low, high = form(interval[0]), form(interval[1])
    low_number, _, low_unit = low.rpartition(" ")
    return f"[{low_number if low_number and high.endswith(' ' + low_unit) else low} … {high}]"


def level_mark(level: str, ink: Paint) -> Run:
    return {"good": ("●", ink.good), "warn": ("▲", ink.warn), "bad": ("×", ink.bad), "error": ("×", ink.bad)}.get(
        level, ("·", ink.muted)
    )


class ViewTabs(Painted):
    """All views by name, the letter that leads there underlined, the one on show marked; which attempt it is of.

    Where there is no room for all names, only the one on show has its name.
    """

    def __init__(self, choice: Callable[[], Choice], attempt: Callable[[], str], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._choice, self._attempt = choice, attempt
        self._ends: list[int] = []  # columns at which the views' names end

    class Clicked(Message):
        """On the name of a view."""

        def __init__(self, view: View) -> None:
            super().__init__()
            self.view: View = view

    def draw(self, width: int, height: int) -> list[Strip]:
        right: list[Run] = [(f"{self._attempt()} ", self.inks.muted)]
        names = self._names("  " if width >= 96 else " ")
        if sum(map(size_of, names)) + size_of(right) > width:
            names = self._names(" ", short=True)
        self._ends = list(itertools.accumulate(map(size_of, names)))
        return [strip_of(spread([run for name in names for run in name], right, width), width)]

    def on_click(self, event: events.Click) -> None:
        at = bisect.bisect_right(self._ends, event.x)
        if at < len(VIEWS):
            self.post_message(self.Clicked(VIEWS[at]))

    def _names(self, gap: str, *, short: bool = False) -> list[list[Run]]:
        """What each view takes of the line."""
        ink, here = self.inks, self._choice().view
        names: list[list[Run]] = []
        for view in VIEWS:
            key, name = BY_ID[f"view_{view}"].shown_key, view.capitalize()
            at = view.find(key)
            style = ink.primary + Style(bold=True) if view == here else ink.muted
            before, after = ("", "") if short and view != here else (name[:at], name[at + 1 :])
            letter = name[at] if before or after else key
            mark: Run = ("▸" if view == here else " ", style)
            names.append([mark, (before, style), (letter, style + Style(underline=True)), (after, style), (gap, ink.plain)])
        return names


class ContextLine(Painted):
    """What of the record is shown, what is wrong with it, and where back leads."""

    def __init__(self, parts: Callable[[], tuple[list[str], list[str], str]], *, id: str | None = None) -> None:
        """`parts`: what is shown, what is wrong, where esc leads."""
        super().__init__(id=id)
        self._parts = parts

    def draw(self, width: int, height: int) -> list[Strip]:
        ink, (shown, wrong, back) = self.inks, self._parts()
        right: list[Run] = [("esc ", ink.primary), (f"{back} ", ink.muted)] if back else []
        groups: list[list[Run]] = [[(" " if not at else " · ", ink.faint), (text, ink.plain)] for at, text in enumerate(shown)]
        room = width - size_of(right) - 1
        left = fitting(groups, room)
        if wrong and room - size_of(left) > 12:
            more = f" (+{len(wrong) - 1})" if len(wrong) > 1 else ""
            left += [("  ▲ ", ink.warn), (fmt.clip(wrong[0], room - size_of(left) - 4 - len(more)) + more, ink.warn)]
        return [strip_of(spread(left, right, width), width)]


def row_words(pane: ItemsPane[Any], item: object, width: int = 400) -> str:
    """All that a row says, for a filter."""
    if isinstance(item, Title):
        return item.text
    return "".join(text for line in pane.told(item, width, pane.inks) for text, _ in line)
