"""Every key, made from the action registry, so that it cannot be wrong: those of the screen first. Scrolls, filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from console.actions import ACTIONS, Action, Where
from console.store.fleet import SHOWN_STATES
from console.widgets.paint import GLYPHS

_TITLES = {
    "Screens": "Screens", "Act": "Act on the run (each asks first)", "Look": "Look", "Replay": "Replay of a record",
    "Move": "Move", "Console": "This console",
}  # fmt: skip


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
    BINDINGS: ClassVar = [
        Binding("escape,f1,question_mark", "close", "Close", show=False),
        Binding("down", "scroll('down')", "Down", show=False, priority=True),
        Binding("up", "scroll('up')", "Up", show=False, priority=True),
        Binding("pagedown", "scroll('page_down')", "Page down", show=False, priority=True),
        Binding("pageup", "scroll('page_up')", "Page up", show=False, priority=True),
    ]

    def __init__(self, where: Where, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._where, self._keys = where, keys

    def compose(self) -> ComposeResult:
        with Vertical(id="help") as box:
            box.border_title = "Help"
            box.border_subtitle = "type to filter · ↑ ↓ PgUp PgDn scroll · esc closes"
            yield Input(placeholder="filter: a key, a word", id="help-filter", compact=True)
            with VerticalScroll(id="help-lines"):
                yield from self._sections()

    def _sections(self) -> ComposeResult:
        here = [action for action in ACTIONS if self._where in action.where]
        yield Static(f"On this screen ({self._where})", classes="help-title")
        for action in here:
            yield from self._row_of(action)
        for group, title in _TITLES.items():
            rest = [action for action in ACTIONS if action.group == group and action not in here]
            if rest:
                yield Static(title, classes="help-title")
            for action in rest:
                yield from self._row_of(action)
        yield Static("Words", classes="help-title")
        for word, meaning in WORDS:
            yield from _row("", word, meaning)
        yield Static("States", classes="help-title")
        yield Static("  ".join(f"{GLYPHS[name]} {name}" for name in SHOWN_STATES), classes="help-line", markup=False)

    def _row_of(self, action: Action) -> ComposeResult:
        key = self._keys.get(action.id, action.shown_key)
        places = "" if self._where in action.where or "app" in action.where else f"  [{', '.join(action.where)}]"
        takes = f" {action.takes}" if action.takes else ""
        yield from _row(key, action.title, f"{action.help or action.title.lower()}{places}  :{action.command}{takes}")

    def on_mount(self) -> None:
        self.query_one("#help-filter", Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Rows that contain every word; titles and the rest only while nothing is typed."""
        words = event.value.lower().split()
        for row in self.query(".help-row"):
            told = " ".join(str(part.render()) for part in row.query(Static)).lower()
            row.display = all(word in told for word in words)
        for title in self.query(".help-title, .help-line"):
            title.display = not words

    def action_scroll(self, way: str) -> None:
        lines = self.query_one("#help-lines", VerticalScroll)
        {"down": lines.scroll_down, "up": lines.scroll_up, "page_down": lines.scroll_page_down, "page_up": lines.scroll_page_up}[
            way
        ](animate=False)

    def action_close(self) -> None:
        self.dismiss(None)
