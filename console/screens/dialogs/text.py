"""One line of text: tags, a note, a path."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.widgets import Button, Input

from console.screens.dialogs.base import Answer, Dialog, Facts


class AskText(Dialog):
    """`problem` says what is wrong with a text, "" when nothing is. Enter in the field is a yes: what is asked here can be
    taken back."""

    first_focus = "#text"
    hint = "enter takes it · esc cancels"

    def __init__(
        self, title: str, facts: Facts, yes: str, label: str, text: str, problem: Callable[[str], str], *, example: str = ""
    ) -> None:
        super().__init__(title, facts, yes)
        self._label, self._text, self._problem, self._example = label, text, problem, example

    def fields(self) -> ComposeResult:
        yield from self.field(self._label, Input(self._text, placeholder=self._example, id="text", compact=True))

    def on_input_changed(self) -> None:
        problem = self.whats_missing()
        self.query_one("#yes", Button).disabled = bool(problem)
        self.complain(problem)

    def go_on(self) -> None:
        if not self._refuse():
            self.dismiss(self.answer())

    def whats_missing(self) -> str:
        return self._problem(self.typed("text"))

    def answer(self) -> Answer:
        return Answer(value=self.typed("text"))
