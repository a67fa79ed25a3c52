"""Another number of nodes: typed, or in steps with the arrows; what goes or comes is told as it is typed."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Button, Input

from console.screens.dialogs.base import Answer, Dialog, Facts, reason_box
from console.screens.dialogs.fields import StepsInput, Tick


class AskNodes(Dialog):
    """`judge` says of what is typed: the number (None: it is none), what it would mean or what is wrong with it, and what the
    head's guards have against it."""

    first_focus = "#nodes"
    hint = "enter: to the button · enter again: scales · esc cancels"

    def __init__(self, facts: Facts, judge: Callable[[str], tuple[int | None, str, str]], now: int, staged: str = "") -> None:
        super().__init__("Change the number of nodes", facts, "Scale", yes_at_once=False)
        self._judge_text, self._now, self._staged = judge, now, staged

    def fields(self) -> ComposeResult:
        yield from self.field(
            "nodes", StepsInput(self._staged, placeholder=str(self._now), id="nodes", compact=True, max_length=6)
        )
        with Horizontal(classes="fact tick-row", id="force-row"):
            yield Tick("", id="force")
        yield from self.field("reason", reason_box())

    def on_steps_input_stepped(self, event: StepsInput.Stepped) -> None:
        box = self.query_one("#nodes", Input)
        nodes = self._judge_text(box.value)[0] if box.value.strip() else self._now
        if nodes is None:
            return
        wanted = str(max(1, nodes + event.steps))
        if self._judge_text(wanted)[0] is not None or wanted == str(self._now):
            box.value = wanted
            box.cursor_position = len(box.value)

    def on_input_changed(self) -> None:
        self.judge_again()

    def judge_again(self) -> None:
        nodes, text, objection = self._judge_text(self.typed("nodes"))
        tick = self.query_one("#force", Tick)
        tick.display = bool(objection)
        tick.tell(f"force: do it in spite of {objection}")
        if not objection:
            tick.on = False
        self.query_one("#yes", Button).disabled = nodes is None
        self.complain(text if self.typed("nodes") else "", wrong=nodes is None)

    def whats_missing(self) -> str:
        if not self.typed("nodes"):
            return "type how many nodes the run shall have"
        nodes, text, _ = self._judge_text(self.typed("nodes"))
        return text if nodes is None else ""

    def on_choice_submitted(self) -> None:
        self.go_on()

    def answer(self) -> Answer:
        return Answer(value=self.typed("nodes"), reason=self.typed("reason"), force=self.query_one("#force", Tick).on)
