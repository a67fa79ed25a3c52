"""Questions before acts. Cancel has the focus, esc cancels, and nothing happens without an explicit yes.

Whom a dialog is about (slot, incarnation) is captured when the key is pressed: the fleet may re-sort behind it, the
question does not change. Its figures go on (`tell_again`, once a second): minutes may pass before an answer. The two
dialogs that need typing (rate, stop) give the focus to their field; Enter there only moves on to the button or says what
is wrong, and the button stays off until the text is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

Fact = tuple[str, str]
Facts = Callable[[], Sequence[Fact]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A yes; `value` is what was typed into the asked field, `reason` the optional why."""

    value: str = ""
    reason: str = ""


class Dialog(ModalScreen[Answer | None]):
    first_focus = "#cancel"
    BINDINGS: ClassVar = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("left,right", "other_button", "Other button", show=False),
    ]

    def __init__(self, title: str, facts: Facts, yes: str, *, danger: bool = False, yes_at_once: bool = True) -> None:
        super().__init__()
        self._title, self._facts, self._yes, self._danger, self._yes_at_once = title, facts, yes, danger, yes_at_once
        self._told: list[Fact] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="danger" if self._danger else "") as box:
            box.border_title = self._title
            self._told = list(self._facts())
            for label, text in self._told:
                with Horizontal(classes="fact"):
                    yield Static(label, classes="fact-label", markup=False)
                    yield Static(text, classes="fact-text", markup=False)
            yield from self.fields()
            yield Static("", id="complaint", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                variant: Literal["error", "primary"] = "error" if self._danger else "primary"
                yield Button(self._yes, id="yes", variant=variant, compact=True, disabled=not self._yes_at_once)

    def fields(self) -> ComposeResult:
        yield from ()

    def tell_again(self) -> None:
        """The figures as they are now; a fact that no longer has its place (its slot is gone) stays as it was."""
        fresh = list(self._facts())
        if [label for label, _ in fresh] != [label for label, _ in self._told]:
            return
        for shown, (_, text), (_, before) in zip(self.query(".fact-text").results(Static), fresh, self._told, strict=True):
            if text != before:
                shown.update(text)
        self._told = fresh

    def on_mount(self) -> None:
        self.query_one(self.first_focus).focus()

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_other_button(self) -> None:
        cancel, yes = self.query_one("#cancel", Button), self.query_one("#yes", Button)
        (yes if cancel.has_focus and not yes.disabled else cancel).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(self.answer() if event.button.id == "yes" else None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        yes = self.query_one("#yes", Button)
        if yes.disabled:
            self.complain(self.whats_missing())
        else:
            yes.focus()

    def whats_missing(self) -> str:
        """Why the button is off, for Enter in a field."""
        return ""

    def complain(self, text: str, wrong: bool = True) -> None:
        complaint = self.query_one("#complaint", Static)
        complaint.update(text)
        complaint.set_class(wrong and bool(text), "wrong")

    def answer(self) -> Answer | None:
        return Answer()

    def field(self, label: str, box: Input) -> ComposeResult:
        with Horizontal(classes="fact"):
            yield Static(label, classes="fact-label", markup=False)
            yield box


def reason_box() -> Input:
    return Input(placeholder="for the journal (optional)", id="reason", compact=True, max_length=200)


class ConfirmAct(Dialog):
    """An act on a replica: why, what it does, and a reason for the journal."""

    def fields(self) -> ComposeResult:
        yield from self.field("reason", reason_box())

    def answer(self) -> Answer:
        return Answer(reason=self.query_one("#reason", Input).value.strip())


class AskRate(Dialog):
    """A new target rate: a number, checked as it is typed."""

    first_focus = "#qps"

    def __init__(self, facts: Facts, current_qps: float) -> None:
        super().__init__("Change the target rate", facts, "Set rate", yes_at_once=False)
        self._current_qps = current_qps

    def fields(self) -> ComposeResult:
        yield from self.field("new QPS", Input(placeholder=f"{self._current_qps:g}", id="qps", compact=True, max_length=12))
        yield from self.field("reason", reason_box())

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id != "qps":
            return
        problem, said = self._check(event.value)
        self.query_one("#yes", Button).disabled = bool(problem) or not event.value.strip()
        self.complain(problem or said, wrong=bool(problem))

    def whats_missing(self) -> str:
        return self._check(self.query_one("#qps", Input).value)[0] or "type the new rate, in queries per second"

    def _check(self, text: str) -> tuple[str, str]:
        """(what is wrong, what the change amounts to)"""
        if not text.strip():
            return "", ""
        qps = parse_qps(text)
        if qps is None:
            return f"{text.strip()!r} is not a rate (above 0, at most 1,000,000)", ""
        if qps == self._current_qps:
            return "that is the rate already", ""
        if self._current_qps <= 0:
            return "", f"to {qps:g} qps"
        return "", f"{self._current_qps:g} → {qps:g} qps ({(qps / self._current_qps - 1) * 100:+.1f}%)"

    def answer(self) -> Answer | None:
        text = self.query_one("#qps", Input).value
        if parse_qps(text) is None:
            return None
        return Answer(value=text.strip(), reason=self.query_one("#reason", Input).value.strip())


def parse_qps(text: str) -> float | None:
    """A finite number in (0, 1e6]; a comma or blank as thousands mark is refused rather than guessed."""
    try:
        qps = float(text.strip())
    except ValueError:
        return None
    return qps if math.isfinite(qps) and 0 < qps <= 1_000_000 and "_" not in text else None


class TypeToConfirm(Dialog):
    """An act that cannot be taken back: the button works only once the name is typed."""

    first_focus = "#word"

    def __init__(self, title: str, facts: Facts, yes: str, word: str, what: str) -> None:
        super().__init__(title, facts, yes, danger=True, yes_at_once=False)
        self._word, self._what = word, what

    def fields(self) -> ComposeResult:
        yield Static(f"type {self._what} to confirm:", classes="ask", markup=False)
        yield from self.field("", Input(placeholder=self._word, id="word", compact=True))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one("#yes", Button).disabled = event.value.strip() != self._word
        self.complain("")

    def whats_missing(self) -> str:
        typed = self.query_one("#word", Input).value.strip()
        return f"{typed!r} is not {self._what}: it is {self._word}" if typed else f"{self._what} is {self._word}"

    def answer(self) -> Answer | None:
        typed = self.query_one("#word", Input).value.strip()
        return Answer(value=typed) if typed == self._word else None


class AskOnQuit(ModalScreen[str]):
    """The demo's question: `leave`, `stop` or `cancel`."""

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
        self.query_one("#cancel", Button).focus()

    def action_cancel(self) -> None:
        self.dismiss("cancel")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id or "cancel")
