"""The `:` line at the bottom: every action by name, completed as it is typed. Enter runs it, tab completes, esc leaves.

Dismisses with the line that was typed; what it means and whether it can be done is the app's business.
"""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from console.commands import NAMES, BadCommand, Values, completions, parse

HISTORY: list[str] = []  # of this process: a line is worth having again after another run was opened


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

    def compose(self) -> ComposeResult:
        with Vertical(id="command-box"):
            yield Static("", id="command-hints")
            yield Input(value=self._begun, placeholder="command", id="command", compact=True, select_on_focus=False)

    def on_mount(self) -> None:
        self.query_one("#command", Input).focus()
        self._hint(self._begun)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._hint(event.value)

    def _hint(self, text: str) -> None:
        lines: list[Content] = []
        for line in reversed(completions(text, self._values)):
            action = NAMES.get(line.split(" ")[0])
            takes = f" {action.takes}" if action is not None and action.takes and " " not in line else ""
            told = action.help if action is not None and " " not in line else ""
            lines.append(Content.assemble((f" {line}", "$primary"), (f"{takes}  ", "$ink-faint"), (told, "$ink-muted")))
        self.query_one("#command-hints", Static).update(Content("\n").join(lines))

    def _say(self, text: str) -> None:
        self.query_one("#command-hints", Static).update(Content.styled(f" {text}", "$error"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        try:
            parse(text)
        except BadCommand as problem:
            self._say(str(problem))
            return
        if not HISTORY or HISTORY[-1] != text:
            HISTORY.append(text)
        self.dismiss(text)

    def action_complete(self) -> None:
        box = self.query_one("#command", Input)
        offered = completions(box.value, self._values)
        if not offered:
            return
        action = NAMES.get(offered[0])
        box.value = offered[0] + (" " if action is not None and action.takes and " " not in offered[0] else "")
        box.cursor_position = len(box.value)

    def action_earlier(self) -> None:
        self._recall(self._back + 1)

    def action_later(self) -> None:
        self._recall(self._back - 1)

    def _recall(self, back: int) -> None:
        self._back = min(max(0, back), len(HISTORY))
        box = self.query_one("#command", Input)
        box.value = HISTORY[-self._back] if self._back else ""
        box.cursor_position = len(box.value)

    def action_leave(self) -> None:
        self.dismiss("")
