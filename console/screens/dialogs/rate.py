"""A new target rate: typed, or staged in steps with the keys, perhaps as a ramp."""

from __future__ import annotations

import math
from collections.abc import Callable

from textual.app import ComposeResult
from textual.events import Key
from textual.widgets import Button, Input

from console.screens.dialogs.base import Answer, Dialog, Facts, reason_box
from console.screens.dialogs.fields import StepsInput
from console.screens.load_acts import RateNow, rate_step, stepped
from console.widgets import fmt

_LONGEST_RAMP_S = 3600.0


class RateInput(StepsInput):
    """`+` and `-` step as well: a rate has no sign."""

    def on_key(self, event: Key) -> None:
        if event.character in ("+", "-"):
            event.stop()
            event.prevent_default()
            self.action_step(1 if event.character == "+" else -1)


class AskRate(Dialog):
    """`staged` and `ramp` are what the fields begin with; `problem` is what the run's specification says against a rate."""

    first_focus = "#qps"
    hint = "enter: to the button · enter again: sets it · esc cancels"

    def __init__(
        self, facts: Facts, now: Callable[[], RateNow], problem: Callable[[float], str], staged: str = "", ramp: str = ""
    ) -> None:
        super().__init__("Change the target rate", facts, "Set rate", yes_at_once=False)
        self._now, self._problem, self._staged, self._ramp = now, problem, staged, ramp
        self._step = rate_step(now().qps)

    def fields(self) -> ComposeResult:
        now = self._now()
        yield from self.field(
            "new QPS", RateInput(self._staged, placeholder=f"{now.qps:g}", id="qps", compact=True, max_length=12)
        )
        yield from self.field("ramp", self._ramp_box(now.no_ramp))
        yield from self.field("reason", reason_box())

    def _ramp_box(self, no_ramp: str) -> Input:
        placeholder = no_ramp or "seconds, evenly to the new rate (optional)"
        return Input(
            "" if no_ramp else self._ramp, placeholder=placeholder, id="ramp", compact=True, max_length=8, disabled=bool(no_ramp)
        )

    def judge_again(self) -> None:
        no_ramp, box = self._now().no_ramp, self.query_one("#ramp", Input)
        if bool(no_ramp) != box.disabled:
            box.disabled, box.value = bool(no_ramp), ""
            box.placeholder = self._ramp_box(no_ramp).placeholder
        self._judge()

    def on_steps_input_stepped(self, event: RateInput.Stepped) -> None:
        box = self.query_one("#qps", Input)
        from_qps = parse_qps(box.value)
        if from_qps is None and box.value.strip():
            return
        box.value = f"{stepped(self._now().qps if from_qps is None else from_qps, event.steps, self._step):.10g}"
        box.cursor_position = len(box.value)

    def on_input_changed(self) -> None:
        self._judge()

    def _judge(self) -> None:
        problem = self.whats_missing()
        untouched = not self.typed("qps") and not self.typed("ramp")
        self.query_one("#yes", Button).disabled = bool(problem)
        self.complain("" if untouched else problem or self._amounts_to(), wrong=bool(problem))

    def whats_missing(self) -> str:
        text = self.typed("qps")
        if not text:
            return "type the new rate, in queries per second"
        qps = parse_qps(text)
        if qps is None:
            return f"{text!r} is not a rate: a number above 0, at most 1000000, without separators"
        if qps == self._now().qps:
            return "that is the rate already"
        ramp = self.typed("ramp")
        if ramp and parse_seconds(ramp, _LONGEST_RAMP_S) is None:
            return f"{ramp!r} is not a ramp: seconds, 0 to {_LONGEST_RAMP_S:g}"
        return self._problem(qps)

    def _amounts_to(self) -> str:
        now, qps = self._now(), parse_qps(self.typed("qps"))
        if qps is None:
            return ""
        change = f" ({fmt.signed((qps / now.qps - 1) * 100)}%)" if now.qps > 0 else ""
        text = f"{now.qps:g} → {qps:g} qps{change}"
        if now.serving:
            text += f", per replica {now.qps / now.serving:.3g} → {qps / now.serving:.3g} qps"
        return text

    def answer(self) -> Answer:
        ramp_s = parse_seconds(self.typed("ramp"), _LONGEST_RAMP_S)
        return Answer(
            value=self.typed("qps"), reason=self.typed("reason"), qps=parse_qps(self.typed("qps")), ramp_s=ramp_s or None
        )


def parse_qps(text: str) -> float | None:
    """A finite number in (0, 1e6]; a comma or blank as thousands mark is refused rather than guessed."""
    qps = _number(text)
    return qps if qps is not None and 0 < qps <= 1_000_000 else None


def parse_seconds(text: str, most_s: float) -> float | None:
    seconds = _number(text)
    return seconds if seconds is not None and 0 <= seconds <= most_s else None


def _number(text: str) -> float | None:
    try:
        number = float(text.strip())
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None
