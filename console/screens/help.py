"""Every key, made from the action registry, so that it cannot be wrong about itself. Scrolls; any of esc, q, ? closes."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from console.actions import ACTIONS
from console.store.fleet import SHOWN_STATES
from console.widgets.paint import GLYPHS

_TITLES = {"Act": "Act on the run (each asks first)", "Look": "Look", "Move": "Move", "Console": "This console"}


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar = [Binding("escape,q,f1,question_mark", "close", "Close", show=False)]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            for group, title in _TITLES.items():
                yield Static(title, classes="help-title")
                for action in ACTIONS:
                    if action.group == group:
                        yield Static(self._line(action.shown_key, action.title, action.help), classes="help-line")
            yield Static("States", classes="help-title")
            yield Static("  ".join(f"{GLYPHS[name]} {name}" for name in SHOWN_STATES), classes="help-line", markup=False)

    @staticmethod
    def _line(key: str, title: str, text: str) -> Content:
        return Content.assemble((f"{key:>7}  ", "$primary bold"), (f"{title:<24} ", "$foreground"), (text, "$ink-muted"))

    def on_mount(self) -> None:
        self.query_one("#help").focus()

    def action_close(self) -> None:
        self.dismiss(None)
