"""What all dialogs share: facts that go on, fields, one line of complaint, Cancel and Yes. And the plainest of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.css.query import NoMatches
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from console.screens.acts import Grave

Fact = tuple[str, str]  # its name and its text, which may be a Grave one
Facts = Callable[[], Sequence[Fact]]

#: Lines of a dialog that are not its body: borders, complaint, buttons, and space on a terminal that is not short.
_AROUND, _AROUND_SHORT = 8, 5
_TALL = 30


@dataclass(frozen=True, slots=True)
class Answer:
    """A yes. `value`: what was typed or chosen; `reason`: the optional why; None: left as the head has it."""

    value: str = ""
    reason: str = ""
    qps: float | None = None
    ramp_s: float | None = None
    deadline_s: float | None = None
    force: bool = False
    cordon: bool = False


class Dialog(ModalScreen[Answer | None]):
    first_focus = "#cancel"
    hint = "tab moves on · esc cancels"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (_TALL, "-tall")]  # noqa: RUF012 - as Textual declares it
    BINDINGS: ClassVar = [
        Binding("escape", "cancel", "Cancel", show=False),
        Binding("left,right", "other_button", "Other button", show=False),
        Binding("up,pageup", "scroll_body(-1)", "Up", show=False),
        Binding("down,pagedown", "scroll_body(1)", "Down", show=False),
    ]

    def __init__(self, title: str, facts: Facts, yes: str, *, danger: bool = False, yes_at_once: bool = True) -> None:
        super().__init__()
        self._title, self._facts, self._yes, self._danger, self._yes_at_once = title, facts, yes, danger, yes_at_once
        self._told: list[Fact] = []
        self._open = False
        self._refused = ""  # why the last try to go on was not taken

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="danger" if self._danger else "") as box:
            box.border_title = self._title
            with VerticalScroll(id="dialog-body", can_focus=False):
                self._told = list(self._facts())
                for label, text in self._told:
                    with Horizontal(classes="fact"):
                        yield Static(label, classes="fact-label", markup=False)
                        yield Static(text, classes=f"fact-text{' grave' if isinstance(text, Grave) else ''}", markup=False)
                with Vertical(id="fields"):
                    yield from self.fields()
            yield Static("", id="complaint", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                variant: Literal["error", "primary"] = "error" if self._danger else "primary"
                yield Button(self._yes, id="yes", variant=variant, compact=True, disabled=not self._yes_at_once)

    def fields(self) -> ComposeResult:
        yield from ()

    def tell_again(self) -> None:
        """All that depends on the moment, once a second. Figures may also come while it is built or taken down."""
        if self._open:
            with contextlib.suppress(NoMatches):
                self._tell_figures()
                self.judge_again()
                if self._refused and self._refused == self.whats_missing():
                    self.complain(self._refused)  # it still holds: who reads slowly must not lose it to the next figures

    def judge_again(self) -> None:
        """What the figures mean for the fields."""

    def _tell_figures(self) -> None:
        """A fact that no longer has its place (its slot is gone) stays as it was."""
        fresh = list(self._facts())
        texts = list(self.query(".fact-text").results(Static))
        if [label for label, _ in fresh] != [label for label, _ in self._told] or len(texts) != len(fresh):
            return
        for shown, (_, text), (_, before) in zip(texts, fresh, self._told, strict=True):
            if text != before:
                shown.update(text)
                shown.set_class(isinstance(text, Grave), "grave")
        self._told = fresh

    def on_mount(self) -> None:
        self._open = True
        with contextlib.suppress(NoMatches):  # the app closes while this opens: parts of it are gone already
            self.query_one(self.first_focus).focus()
            self.judge_again()

    def on_resize(self, event: Resize) -> None:
        """The facts scroll, the buttons are always there."""
        around = _AROUND if event.size.height >= _TALL else _AROUND_SHORT
        for body in self.query("#dialog-body"):
            body.styles.max_height = max(3, event.size.height - around)
            self.call_after_refresh(self._hint)

    def _hint(self) -> None:
        more = self.query_one("#dialog-body", VerticalScroll).max_scroll_y > 0
        self.query_one("#dialog").border_subtitle = f"{'PgDn shows more · ' if more else ''}{self.hint}"

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_other_button(self) -> None:
        cancel, yes = self.query_one("#cancel", Button), self.query_one("#yes", Button)
        (yes if cancel.has_focus and not yes.disabled else cancel).focus()

    def action_scroll_body(self, lines: int) -> None:
        self.query_one("#dialog-body", VerticalScroll).scroll_relative(y=lines, animate=False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id != "yes":
            self.dismiss(None)
        elif not self._refuse():
            self.dismiss(self.answer())

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.go_on()

    def go_on(self) -> None:
        """Enter in a field: to the button, or why not."""
        if not self._refuse():
            self.query_one("#yes", Button).focus()

    def _refuse(self) -> bool:
        self._refused = self.whats_missing()
        if self._refused:
            self.complain(self._refused)
        return bool(self._refused)

    def whats_missing(self) -> str:
        """What keeps the answer from being a yes, in words; empty when nothing does."""
        return ""

    def complain(self, text: str, wrong: bool = True) -> None:
        complaint = self.query_one("#complaint", Static)
        complaint.update(text)
        complaint.set_class(wrong and bool(text), "wrong")

    def answer(self) -> Answer:
        return Answer()

    def typed(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value.strip()

    def field(self, label: str, box: Widget, beside: str = "") -> ComposeResult:
        with Horizontal(classes="fact"):
            yield Static(label, classes="fact-label", markup=False)
            yield box
            if beside:
                yield Static(beside, classes="fact-beside", markup=False)


def reason_box(known: str = "") -> Input:
    """`known`: a reason that is there already, to be sent as it is or changed."""
    return Input(known[:200], placeholder="for the journal (optional)", id="reason", compact=True, max_length=200)


class ConfirmAct(Dialog):
    """An act: why, what it does, and a reason for the journal."""

    hint = "tab moves on · shift-tab: reason · esc cancels"

    def fields(self) -> ComposeResult:
        yield from self.field("reason", reason_box())

    def answer(self) -> Answer:
        return Answer(reason=self.typed("reason"))
