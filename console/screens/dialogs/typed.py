"""The question before what cannot be taken back: its name has to be typed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Button, Input, Static

from console.screens.dialogs.base import Answer, Dialog, Facts, reason_box


class TypeToConfirm(Dialog):
    """The button works only once the name is typed. `reasoned`: whether it is about what a journal tells."""

    first_focus = "#word"
    hint = "enter: to the button · shift-tab: reason · esc cancels"

    def __init__(self, title: str, facts: Facts, yes: str, word: str, what: str, *, reasoned: bool = True) -> None:
        super().__init__(title, facts, yes, danger=True, yes_at_once=False)
        self._word, self._what, self._reasoned = word, what, reasoned
        if not reasoned:
            self.hint = "enter: to the button · esc cancels"

    def fields(self) -> ComposeResult:
        if self._reasoned:
            yield from self.field("reason", reason_box())
        yield Static(f"type {self._what} to confirm: {self._word}", classes="ask", markup=False)
        yield from self.field("", Input(id="word", compact=True))

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "word":
            self.query_one("#yes", Button).disabled = event.value.strip() != self._word
            self.complain("")

    def whats_missing(self) -> str:
        typed = self.typed("word")
        if typed == self._word:
            return ""
        return f"{typed!r} is not {self._what}: it is {self._word}" if typed else f"{self._what} is {self._word}"

    def answer(self) -> Answer:
        return Answer(value=self.typed("word"), reason=self.typed("reason") if self._reasoned else "")
