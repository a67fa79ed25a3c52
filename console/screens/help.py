"""Every key, made from the action registry, so that it cannot be wrong about itself. Scrolls; any of esc, q, ? closes."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from console.actions import ACTIONS
from console.store.fleet import SHOWN_STATES
from console.widgets.paint import GLYPHS

_TITLES = {"Act": "Act on the run (each asks first)", "Look": "Look", "Move": "Move", "Console": "This console"}


#: What stands on screens without an explanation beside it.
WORDS: Final = (
    ("ACTS n", "operators' acts that touched the attempt. Drain and readmit are what load balancing may do: with them it can "
     "still be VALID, and the count stays beside the verdict. After an evict or a recycle it cannot; after a rate change it "
     "is SUPERSEDED. Explorations have no verdict to lose."),
    ("held", "the cursor stays on its slot and the order rests a few seconds; thin bar: it rests on the first row"),
    ("ratio, z", "step time against the fleet's curve, and how far out that is; orange: beyond both straggler limits"),
    ("60 s, whole", "the window a figure is of: the last minute, or the whole attempt"),
)  # fmt: skip


def _row(key: str, title: str, text: str) -> ComposeResult:
    with Horizontal(classes="help-row"):
        yield Static(Content.assemble((f"{key:>7}  ", "$primary bold"), (title, "$foreground")), classes="help-key")
        yield Static(text, classes="help-text", markup=False)


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar = [Binding("escape,q,f1,question_mark", "close", "Close", show=False)]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            for group, title in _TITLES.items():
                yield Static(title, classes="help-title")
                for action in ACTIONS:
                    if action.group == group:
                        yield from _row(action.shown_key, action.title, action.help)
            yield Static("Words", classes="help-title")
            for word, meaning in WORDS:
                yield from _row("", word, meaning)
            yield Static("States", classes="help-title")
            yield Static("  ".join(f"{GLYPHS[name]} {name}" for name in SHOWN_STATES), classes="help-line", markup=False)

    def on_mount(self) -> None:
        self.query_one("#help").focus()

    def action_close(self) -> None:
        self.dismiss(None)
