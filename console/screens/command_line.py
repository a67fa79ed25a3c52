"""The `:` line at the bottom: every action by name, completed as it is typed. Enter runs it, tab completes, esc leaves.

Dismisses with the line that was typed; what it means and whether it can be done is the app's business. Above the line
stand the ways it could go on, best one lowest, next to what is typed; or, in words, what is wrong with it.
"""

from __future__ import annotations

from typing import ClassVar, Final, Protocol, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from console.actions import Action, Where
from console.commands import BadCommand, Values, completions, find, parse, split, usable
from console.screens.base import PaintedScreen

HISTORY: Final[list[str]] = []  # of this process: a line is worth having again after another run was opened
HISTORY_LINES: Final = 200
SHOWN: Final = 8
SHOWN_SHORT: Final = 6  # on a terminal of few lines the table behind stays in sight


class _App(Protocol):
    @property
    def painted_screen(self) -> PaintedScreen | None: ...

    def why_not(self, action: Action) -> str: ...


class CommandLine(ModalScreen[str]):
    BINDINGS: ClassVar = [
        Binding("escape,ctrl+c", "leave", "Leave", show=False),
        Binding("tab", "complete", "Complete", show=False, priority=True),
        Binding("up", "earlier", "Earlier", show=False, priority=True),
        Binding("down", "later", "Later", show=False, priority=True),
    ]

    def __init__(self, values: Values, begun: str = "") -> None:
        super().__init__()
        self._values, self._begun = values, begun
        self._back = 0
        self._draft = ""  # what was being typed before an earlier line was taken back

    def compose(self) -> ComposeResult:
        with Vertical(id="command-box"):
            yield Static("", id="command-hints")
            with Horizontal(id="command-row"):
                yield Static(":", id="command-prompt")
                yield Input(
                    value=self._begun,
                    placeholder="command   tab completes · ↑ earlier lines · esc leaves",
                    id="command",
                    compact=True,
                    select_on_focus=False,
                )

    def on_mount(self) -> None:
        self.query_one("#command", Input).focus()

    def on_resize(self) -> None:
        self._hint(self.query_one("#command", Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._hint(event.value)

    @property
    def _here(self) -> Where | None:
        shown = cast(_App, self.app).painted_screen
        return shown.WHERE if shown is not None else None

    # --- what it could become ------------------------------------------------------------------------------

    def _hint(self, text: str) -> None:
        shown = SHOWN if self.size.height >= 30 else SHOWN_SHORT
        offered = completions(text, self._values, self._here, limit=None)
        lines = self._of_action(text) if any(mark.isspace() for mark in text.strip(" :")) or text.endswith(" ") else []
        if len(offered) > shown:
            lines.append(Content.styled(f" {len(offered) - shown + 1:,d} more", "$ink-faint"))
            offered = offered[: shown - 1]
        wide = max((len(self._with_takes(line)) for line in offered), default=0)
        for number, line in reversed(list(enumerate(offered))):
            lines.append(self._line(line, wide, best=number == 0))
        self.query_one("#command-hints", Static).update(Content("\n").join(lines))

    def _of_action(self, text: str) -> list[Content]:
        """While its argument is typed: what the command does and what it takes."""
        try:
            action = find(split(text)[0])
        except BadCommand as problem:
            return [Content.styled(f" {problem}", "$error")]
        takes = action.takes or "takes nothing"
        return [Content.assemble((f" {action.command} {takes}  ", "$foreground"), (self._told(action), "$ink-muted"))]

    def _line(self, line: str, wide: int, *, best: bool) -> Content:
        shown, told, off = self._with_takes(line), "", False
        if " " not in line:
            action = find(line)
            told = self._told(action)
            off = not usable(action, self._here) or bool(cast(_App, self.app).why_not(action))
        room = max(0, self.size.width - wide - 5)
        told = told if len(told) <= room else told[: max(0, room - 1)] + "…"
        name = "$ink-faint" if off else "$primary bold" if best else "$primary"
        return Content.assemble((f" {shown:<{wide}}", name), (f"   {told}", "$ink-faint" if off else "$ink-muted"))

    def _told(self, action: Action) -> str:
        """What it does; for what cannot be done now, why."""
        if not usable(action, self._here):
            return f"on {', '.join(action.where)}"
        return cast(_App, self.app).why_not(action) or action.help or action.title.lower()

    @staticmethod
    def _with_takes(line: str) -> str:
        takes = "" if " " in line else find(line).takes
        return f"{line} {takes}" if takes else line

    def _say(self, text: str) -> None:
        self.query_one("#command-hints", Static).update(Content.styled(f" {text}", "$error"))

    # --- keys ----------------------------------------------------------------------------------------------

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        if not text:
            self.dismiss("")
            return
        try:
            parse(text)
        except BadCommand as problem:
            self._say(str(problem))
            return
        if text in HISTORY:
            HISTORY.remove(text)
        HISTORY.append(text)
        del HISTORY[:-HISTORY_LINES]
        self.dismiss(text)

    def action_complete(self) -> None:
        """To the best line; while several begin alike, as far as they agree."""
        box = self.query_one("#command", Input)
        offered = completions(box.value, self._values, self._here, limit=None)
        if not offered:
            return
        typed = box.value.lstrip().lstrip(":").lstrip().lower()
        line = _agreed([one for one in offered if one.lower().startswith(typed)])
        if len(line) <= len(typed):
            line = offered[0]
        if line in offered and " " not in line and find(line).takes:
            line += " "
        self._put(line)

    def _put(self, line: str) -> None:
        box = self.query_one("#command", Input)
        box.value = line
        box.cursor_position = len(line)

    def action_earlier(self) -> None:
        self._recall(self._back + 1)

    def action_later(self) -> None:
        self._recall(self._back - 1)

    def _recall(self, back: int) -> None:
        if self._back == 0:
            self._draft = self.query_one("#command", Input).value
        self._back = min(max(0, back), len(HISTORY))
        self._put(HISTORY[-self._back] if self._back else self._draft)

    def action_leave(self) -> None:
        self.dismiss("")


def _agreed(lines: list[str]) -> str:
    """The longest beginning that they share."""
    if not lines:
        return ""
    first, last = min(lines), max(lines)
    at = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:at]
