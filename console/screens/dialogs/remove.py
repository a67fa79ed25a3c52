"""Evict, drain or recycle: how gently, and against the guards only when that is asked for."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Input

from console.screens.dialogs.base import Answer, ConfirmAct, Facts, reason_box
from console.screens.dialogs.fields import Choice, Tick
from console.screens.dialogs.rate import parse_seconds

_LONGEST_S = 86_400.0
GENTLY, AT_ONCE = "drain first", "at once"
_MODES = (
    (GENTLY, "finishes what it has, until the deadline"),
    (AT_ONCE, "what it has goes to others again, now"),
)


class AskRemoval(ConfirmAct):
    """`deadline_s`: what a drain may take unless said otherwise (None: this act has no deadline); `guard`: what the head's
    guards say against it, empty when nothing. Only then is there something to force. `cordon`: what cordoning would mean, and
    why it cannot be done; None where there is no node to cordon. `reason`: one that is known already."""

    def __init__(
        self,
        title: str,
        facts: Facts,
        yes: str,
        *,
        danger: bool,
        guard: Callable[[], str],
        deadline_s: float | None = None,
        modes: bool = False,
        cordon: Callable[[], tuple[str, str]] | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(title, facts, yes, danger=danger)
        self._cordon, self._reason = cordon, reason
        self._guard, self._deadline_s, self._modes = guard, deadline_s, modes

    def fields(self) -> ComposeResult:
        if self._modes:
            yield from self.field("mode", Choice(_MODES, GENTLY, id="mode"))
        if self._deadline_s is not None:
            yield from self.field(
                "deadline", Input(f"{self._deadline_s:g}", id="deadline", compact=True, max_length=8), "seconds"
            )
        if self._cordon is not None:
            with Horizontal(classes="fact tick-row"):
                yield Tick("", id="cordon")
        with Horizontal(classes="fact tick-row", id="force-row"):
            yield Tick("", id="force")
        yield from self.field("reason", reason_box(self._reason))

    def judge_again(self) -> None:
        self._offer_force()
        self._offer_cordon()

    def _offer_cordon(self) -> None:
        """A right that is missing is said; nothing is offered that would be refused."""
        if self._cordon is None:
            return
        tick, (label, why_not) = self.query_one("#cordon", Tick), self._cordon()
        tick.tell(f"{label}: not possible, {why_not}" if why_not else label)
        if tick.disabled is not bool(why_not):
            tick.disabled = bool(why_not)
        if why_not:
            tick.on = False

    def _offer_force(self) -> None:
        objection, tick = self._guard(), self.query_one("#force", Tick)
        tick.display = bool(objection)
        tick.tell(f"force: do it in spite of {objection}")
        if not objection:
            tick.on = False

    def on_choice_chosen(self) -> None:
        box, at_once = self.query_one("#deadline", Input), self.query_one("#mode", Choice).value == AT_ONCE
        box.disabled = at_once
        self.complain("")

    def on_choice_submitted(self) -> None:
        self.go_on()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "deadline":
            self.complain(self.whats_missing())

    def whats_missing(self) -> str:
        if self._deadline_s is None or self._at_once:
            return ""
        text = self.typed("deadline")
        seconds = parse_seconds(text, _LONGEST_S)
        if not seconds:
            rather = f"; 0 is what {AT_ONCE!r} does" if seconds == 0 and self._modes else ""
            return f"{text!r} is not a deadline: seconds above 0, at most {_LONGEST_S:g}{rather}"
        return ""

    @property
    def _at_once(self) -> bool:
        return self._modes and self.query_one("#mode", Choice).value == AT_ONCE

    def answer(self) -> Answer:
        seconds = None
        if self._at_once:
            seconds = 0.0
        elif self._deadline_s is not None:
            typed = parse_seconds(self.typed("deadline"), _LONGEST_S)
            seconds = typed if typed != self._deadline_s else None
        cordon = self._cordon is not None and self.query_one("#cordon", Tick).on
        return Answer(reason=self.typed("reason"), deadline_s=seconds, force=self.query_one("#force", Tick).on, cordon=cordon)
