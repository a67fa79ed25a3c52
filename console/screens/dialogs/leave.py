"""The demo's question when its console is left."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class AskOnQuit(ModalScreen[str]):
    """`leave`, `stop` or `cancel`."""

    BINDINGS: ClassVar = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("left,up", "app.focus_previous", "Previous", show=False),
        Binding("right,down", "app.focus_next", "Next", show=False),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as box:
            box.border_title = "Leave the console"
            yield Static("The run does not need this console: it can go on, and `paceline attach` comes back.", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Leave it running", id="leave", variant="primary", compact=True)
                yield Button("Stop it", id="stop", variant="error", compact=True)

    def on_mount(self) -> None:
        for cancel in self.query("#cancel").results(Button):  # none is there when the app closes while this opens
            cancel.focus()

    def action_cancel(self) -> None:
        self.dismiss("cancel")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id or "cancel")
