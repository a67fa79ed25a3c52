"""While several commands go out one after the other: how far they are, and the way to stop the rest."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen
from textual.widgets import Static


class Sending(ModalScreen[None]):
    """Small, at the bottom: the picture behind it goes on. What was sent stays sent."""

    BINDINGS: ClassVar = [Binding("escape,ctrl+c", "stop", "Stop the rest", show=False)]

    def __init__(self, what: str, total: int) -> None:
        super().__init__()
        self._what, self._total = what, total
        self.stopped = False

    def compose(self) -> ComposeResult:
        yield Static("", id="sending", markup=False)

    def at(self, number: int, slot: str) -> None:
        if self.is_mounted:
            self.query_one("#sending", Static).update(f"{self._what} {number} of {self._total}: {slot} · esc stops the rest")

    def action_stop(self) -> None:
        self.stopped = True
