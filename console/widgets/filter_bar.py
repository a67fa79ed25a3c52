"""The line in which a filter is typed, and beside it what it does: how many rows are left, or what is wrong with it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.strip import Strip
from textual.widgets import Input

from console.widgets import fmt
from console.widgets.paint import Painted, strip_of


class _Says(Painted):
    text, wrong = "", False

    def draw(self, width: int, height: int) -> list[Strip]:
        ink = self.inks
        return [strip_of([(fmt.clip(self.text, width), ink.bad if self.wrong else ink.muted)], width)]


class FilterBar(Horizontal):
    DEFAULT_CSS = """
    FilterBar { height: 1; }
    FilterBar > #filter-mark { width: 2; }
    FilterBar > #filter { width: 2fr; }
    FilterBar > #filter-says { width: 3fr; margin-left: 1; }
    """

    def compose(self) -> ComposeResult:
        yield Input(placeholder="slow  !ready  n033  z>3  ttft>2.5s", id="filter", compact=True, select_on_focus=False)
        yield _Says(id="filter-says")

    def open(self, text: str) -> None:
        box = self.query_one("#filter", Input)
        box.value = text
        box.cursor_position = len(text)
        box.focus()

    def say(self, text: str, *, wrong: bool = False) -> None:
        says = self.query_one("#filter-says", _Says)
        says.text, says.wrong = text, wrong
        says.repaint()
