"""Fields of dialogs that Textual does not have as quietly: a number in steps, one of several on a line each, and yes or no."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input

Option = tuple[str, str]  # what is answered and shown, what it does


class StepsInput(Input):
    """Digits are typed, the arrows step."""

    BINDINGS: ClassVar = [Binding("up", "step(1)", "Up", show=False), Binding("down", "step(-1)", "Down", show=False)]

    class Stepped(Message):
        def __init__(self, steps: int) -> None:
            super().__init__()
            self.steps = steps

    def action_step(self, steps: int) -> None:
        self.post_message(self.Stepped(steps))


class Choice(Widget, can_focus=True):
    """One of a few, each on its line: ↑ ↓ choose at once, so that what is marked is what will be answered."""

    BINDINGS: ClassVar = [
        Binding("up", "choose(-1)", "Up", show=False),
        Binding("down", "choose(1)", "Down", show=False),
        Binding("enter", "go_on", "Go on", show=False),
    ]
    at: reactive[int] = reactive(0, layout=False)

    class Chosen(Message):
        """Another option is marked."""

    class Submitted(Message):
        """Enter: on to the next."""

    def __init__(self, options: Sequence[Option], chosen: str, *, id: str) -> None:
        super().__init__(id=id, classes="choice")
        self._options = list(options)
        self.styles.height = len(self._options)
        names = [name for name, _ in self._options]
        self.set_reactive(Choice.at, names.index(chosen) if chosen in names else 0)

    @property
    def value(self) -> str:
        return self._options[self.at][0]

    def render(self) -> Content:
        width = max(len(name) for name, _ in self._options)
        lines = []
        for number, (name, told) in enumerate(self._options):
            chosen = number == self.at
            mark, style = (
                ("(•) ", "$primary bold" if self.has_focus else "$foreground bold") if chosen else ("( ) ", "$ink-muted")
            )
            lines.append(
                Content.assemble((f"{mark}{name:<{width}}", style), (f"  {told}", "$foreground" if chosen else "$ink-muted"))
            )
        return Content("\n").join(lines)

    def watch_at(self) -> None:
        self.post_message(self.Chosen())

    def action_choose(self, by: int) -> None:
        self.at = min(max(0, self.at + by), len(self._options) - 1)

    def action_go_on(self) -> None:
        self.post_message(self.Submitted())

    def on_click(self, event: Click) -> None:
        if 0 <= event.y < len(self._options):
            self.at = event.y

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()


class Tick(Widget, can_focus=True):
    """Yes or no on one line; space changes it."""

    BINDINGS: ClassVar = [
        Binding("space", "toggle_tick", "Tick", show=False),
        Binding("enter", "go_on", "Go on", show=False),
    ]
    on: reactive[bool] = reactive(False)

    class Toggled(Message):
        """It changed."""

    def __init__(self, text: str, *, id: str) -> None:
        super().__init__(id=id, classes="tick")
        self._text = text

    def tell(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self.refresh()

    def render(self) -> Content:
        if self.disabled:
            return Content.styled(f"[-] {self._text}", "$ink-faint")
        style = "$primary bold" if self.has_focus else "$foreground"
        return Content.assemble(("[x] " if self.on else "[ ] ", style), (self._text, "$warning"))

    def watch_on(self) -> None:
        self.post_message(self.Toggled())

    def action_toggle_tick(self) -> None:
        self.on = not self.on

    def action_go_on(self) -> None:
        self.post_message(Choice.Submitted())

    def on_click(self) -> None:
        self.on = not self.on

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
