"""One of several: the straggler policy, or which attempt comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.widgets import Button, Input

from console.screens.dialogs.base import Answer, Dialog, Facts, reason_box
from console.screens.dialogs.fields import Choice, Option
from console.screens.dialogs.rate import RateInput, parse_qps
from console.screens.load_acts import rate_step, stepped


class AskChoice(Dialog):
    """`present` is in force now: choosing it would change nothing. The focus is on the choice while there is one to make."""

    def __init__(
        self, title: str, facts: Facts, yes: str, label: str, options: Sequence[Option], present: Callable[[], str], chosen: str
    ) -> None:
        super().__init__(title, facts, yes, yes_at_once=False)
        self._label, self._options, self._present, self._chosen = label, options, present, chosen
        if chosen == present():
            self.first_focus = "#choice"

    def fields(self) -> ComposeResult:
        yield from self.field(self._label, Choice(self._options, self._chosen, id="choice"))
        yield from self.field("reason", reason_box())

    def judge_again(self) -> None:
        self._judge()

    def on_choice_chosen(self) -> None:
        self._judge()

    def on_choice_submitted(self) -> None:
        self.go_on()

    def _judge(self) -> None:
        self.query_one("#yes", Button).disabled = bool(self.whats_missing())
        self.complain(f"{self._present()} → {self._value}" if self._value != self._present() else "", wrong=False)

    @property
    def _value(self) -> str:
        return self.query_one("#choice", Choice).value

    def whats_missing(self) -> str:
        return f"{self._value} is in force already: ↑ ↓ choose another" if self._value == self._present() else ""

    def answer(self) -> Answer:
        return Answer(value=self._value, reason=self.typed("reason"))


class AskAttempt(Dialog):
    """The next attempt's kind and rate; `problem` is what the run's specification says against the two together."""

    def __init__(
        self, facts: Facts, kinds: Sequence[Option], kind: str, qps: float, problem: Callable[[str, float], str]
    ) -> None:
        super().__init__("Begin the next attempt?", facts, "Begin")
        self._kinds, self._kind, self._qps, self._problem = kinds, kind, qps, problem
        self._step = rate_step(qps)

    def fields(self) -> ComposeResult:
        yield from self.field("kind", Choice(self._kinds, self._kind, id="kind"))
        yield from self.field("QPS", RateInput(f"{self._qps:g}", id="qps", compact=True, max_length=12))
        yield from self.field("reason", reason_box())

    def on_steps_input_stepped(self, event: RateInput.Stepped) -> None:
        box = self.query_one("#qps", Input)
        qps = parse_qps(box.value)
        if qps is not None:
            box.value = f"{stepped(qps, event.steps, self._step):.10g}"
            box.cursor_position = len(box.value)

    def on_input_changed(self) -> None:
        self._judge()

    def on_choice_chosen(self) -> None:
        self._judge()

    def on_choice_submitted(self) -> None:
        self.go_on()

    def _judge(self) -> None:
        problem = self.whats_missing()
        self.query_one("#yes", Button).disabled = bool(problem)
        self.complain(problem)

    def whats_missing(self) -> str:
        text = self.typed("qps")
        qps = parse_qps(text)
        if qps is None:
            return f"{text!r} is not a rate: a number above 0, at most 1000000, without separators"
        return self._problem(self.query_one("#kind", Choice).value, qps)

    def answer(self) -> Answer:
        kind = self.query_one("#kind", Choice).value
        return Answer(value=kind, reason=self.typed("reason"), qps=parse_qps(self.typed("qps")))
