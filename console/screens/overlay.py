"""Lines in a frame over the screen, scrolled by the keys that scroll everything else."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static


class LinesOver(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,D,q", "close", "Close", show=False),
        Binding("down,j", "scroll('down')", "Down", show=False),
        Binding("up,k", "scroll('up')", "Up", show=False),
        Binding("pagedown,space", "scroll('page_down')", "Page down", show=False),
        Binding("pageup", "scroll('page_up')", "Page up", show=False),
        Binding("home,g", "scroll('home')", "First line", show=False),
        Binding("end,b", "scroll('end')", "Last line", show=False),
    ]

    def framed(self, title: str, keys: str, text: str = "") -> ComposeResult:
        """`text`: what stands there until `put`."""
        with Vertical(id="describe") as box:
            box.border_title, box.border_subtitle = title, keys
            with VerticalScroll(id="describe-lines"):
                yield Static(text, id="description", markup=False)

    def on_mount(self) -> None:  # Textual calls that of every class
        self.query_one("#describe-lines").focus()

    @property
    def room(self) -> int:
        """Columns of a line."""
        return self.query_one("#description", Static).content_size.width

    def put(self, lines: Content) -> None:
        self.query_one("#description", Static).update(lines)

    def action_scroll(self, way: str) -> None:
        lines = self.query_one("#describe-lines", VerticalScroll)
        moves = {
            "down": lines.scroll_down, "up": lines.scroll_up, "page_down": lines.scroll_page_down,
            "page_up": lines.scroll_page_up, "home": lines.scroll_home, "end": lines.scroll_end,
        }  # fmt: skip
        moves[way](animate=False)

    def action_close(self) -> None:
        self.dismiss(None)
