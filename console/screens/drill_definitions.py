"""What each figure of a view is: its formula, the time that it is of and where it comes from, over the view itself."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from harness.analysis.definitions import Definition

_LEAST_WIDTH: Final = 24
_LABEL: Final = 9


class DefinitionsScreen(ModalScreen[None]):
    BINDINGS: ClassVar = [
        Binding("escape,D,q,enter", "close", "Close", show=False),
        Binding("down,j", "scroll('down')", "Down", show=False),
        Binding("up,k", "scroll('up')", "Up", show=False),
        Binding("pagedown,space", "scroll('page_down')", "Page down", show=False),
        Binding("pageup", "scroll('page_up')", "Page up", show=False),
        Binding("home,g", "scroll('home')", "First line", show=False),
        Binding("end,b", "scroll('end')", "Last line", show=False),
    ]

    def __init__(self, title: str, ids: Sequence[str]) -> None:
        super().__init__()
        self._title, self._ids = title, ids

    def compose(self) -> ComposeResult:
        with Vertical(id="describe") as box:
            box.border_title = self._title
            box.border_subtitle = "↑ ↓ PgUp PgDn scroll · esc closes"
            with VerticalScroll(id="describe-lines"):
                yield Static("", id="description", markup=False)

    def on_mount(self) -> None:
        self.query_one("#describe-lines").focus()
        self.call_after_refresh(self._draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        from harness.analysis.definitions import used_ids

        shown = self.query_one("#description", Static)
        width = max(_LEAST_WIDTH, shown.content_size.width - 1)  # a scrollbar may come
        lines = [line for one in used_ids(self._ids) for line in _lines(one, width)]
        shown.update(
            Content("\n").join(lines or [Content.styled("this view has no figures, only what replicas report", "$ink-muted")])
        )

    def action_scroll(self, way: str) -> None:
        lines = self.query_one("#describe-lines", VerticalScroll)
        moves = {
            "down": lines.scroll_down, "up": lines.scroll_up, "page_down": lines.scroll_page_down,
            "page_up": lines.scroll_page_up, "home": lines.scroll_home, "end": lines.scroll_end,
        }  # fmt: skip
        moves[way](animate=False)

    def action_close(self) -> None:
        self.dismiss(None)


def _lines(one: Definition, width: int) -> list[Content]:
    unit = f" [{one.unit}]" if one.unit else ""
    lines = [Content.assemble((one.title, "$foreground bold"), (f"{unit}  {one.id}", "$ink-faint"))]
    for label, text in (("is", one.formula), ("of", one.window), ("from", one.source)):
        parts = textwrap.wrap(text, max(16, width - _LABEL), break_on_hyphens=False) or [""]
        lines.append(Content.assemble((f"  {label:<{_LABEL - 2}}", "$ink-muted"), (parts[0], "$foreground")))
        lines += [Content.styled(" " * _LABEL + part, "$foreground") for part in parts[1:]]
    return [*lines, Content("")]
