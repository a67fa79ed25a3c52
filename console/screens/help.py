"""Every key, made from the action registry, so that it cannot be wrong: those of the screen first, as the key map has them.

Scrolls and filters. All rows are one widget: a widget for each of them took 0.4 s to open and 0.1 s for every key typed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from console.actions import ACTIONS, Action, Where
from console.commands import NAMES
from console.config import shown_key
from console.session import Session
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
    ("60 s, whole", "the window a latency is of: the last minute, or the whole attempt; rates are of the last 10 s"),
)  # fmt: skip

KEY_WIDTH: Final = 7
LEAD_WIDTH: Final = 36  # key and title; the texts of WORDS begin there as well (.help-key in app.tcss)
COMMAND_WIDTH: Final = 20
WIDE: Final = 96  # with fewer columns the command goes behind the text


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    command: str
    text: str

    @classmethod
    def of(cls, action: Action, here: Where, keys: Mapping[str, str]) -> Row:
        command = f":{action.command} {action.takes}".rstrip() if action.command in NAMES else ""
        places = "" if here in action.where or "app" in action.where else f"[{', '.join(action.where)}]"
        return cls(shown_key(action, keys), action.title, command, f"{action.help}  {places}".strip())

    def has(self, words: list[str]) -> bool:
        told = f"{self.key} {self.title} {self.command} {self.text}".lower()
        return all(word.lower() in told for word in words)

    def is_key(self, words: list[str]) -> bool:
        return len(words) == 1 and words[0] in self.key.split()

    def lines(self, width: int) -> list[Content]:
        """A narrow one has the command behind the text."""
        wide = width >= WIDE
        lead = LEAD_WIDTH + (COMMAND_WIDTH if wide else 0)
        told = self.text if wide else f"{self.text}  {self.command}".strip()
        parts = textwrap.wrap(told, max(16, width - lead), break_on_hyphens=False) or [""]
        head = Content.assemble(
            (f"{self.key:>{KEY_WIDTH}}  ", "$primary bold"),
            (f"{self.title:<{LEAD_WIDTH - KEY_WIDTH - 2}}", "$foreground"),
            (f"{self.command:<{COMMAND_WIDTH}}" if wide else "", "$ink-faint"),
            (parts[0], "$ink-muted"),
        )
        return [head, *(Content.styled(" " * lead + part, "$ink-muted") for part in parts[1:])]


class KeyTable(Static):
    """The rows that fit the filter, under their titles while nothing is typed."""

    def __init__(self, sections: list[tuple[str, list[Row]]]) -> None:
        super().__init__("", classes="help-key-table help-key")
        self._sections = sections
        self._words: list[str] = []

    def filter(self, words: list[str]) -> None:
        self._words = words
        self._draw()

    def on_resize(self, event: Resize) -> None:
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        if width <= 0:
            return
        lines: list[Content] = []
        if self._words:
            rows = [row for _, section in self._sections for row in section if row.has(self._words)]
            for row in sorted(rows, key=lambda row: not row.is_key(self._words)):
                lines += row.lines(width)
            if not rows:
                lines = [Content.styled(f"no key and no action has {' '.join(self._words)!r} in it", "$ink-muted")]
        else:
            for title, section in self._sections:
                lines += [Content(""), Content.styled(title, "$ink-muted bold")]
                for row in section:
                    lines += row.lines(width)
        self.update(Content("\n").join(lines))


class _App(Protocol):
    session: Session


class StateLines(Static):
    """All states; none has its glyph on one line and its word on the next."""

    def on_resize(self, event: Resize) -> None:
        joined = "  ".join(f"{GLYPHS[name]}\u00a0{name}" for name in SHOWN_STATES)  # textwrap keeps what it joins together
        self.update("\n".join(textwrap.wrap(joined, max(16, self.content_size.width))).replace("\u00a0", " "))


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
                yield KeyTable(self._sections())
                yield Static("Words", classes="help-title")
                for word, meaning in WORDS:
                    with Horizontal(classes="help-row"):
                        yield Static(f"{'':{KEY_WIDTH + 2}}{word}", classes="help-key", markup=False)
                        yield Static(meaning, classes="help-text", markup=False)
                yield Static("States", classes="help-title")
                yield StateLines("", classes="help-line", markup=False)

    def _can_be(self, action: Action) -> bool:
        """Keys of a replay are this screen's only while there is one; else they come last."""
        return not action.id.startswith("replay_") or cast(_App, self.app).session.kind == "replay"

    def _sections(self) -> list[tuple[str, list[Row]]]:
        here = [action for action in ACTIONS if self._where in action.where and self._can_be(action)]
        found = [(f"On this screen ({self._where})", here)]
        found += [
            (title, [action for action in ACTIONS if action.group == group and action not in here])
            for group, title in sorted(_TITLES.items(), key=lambda item: item[0] == "Replay")
        ]
        return [(title, [Row.of(action, self._where, self._keys) for action in actions]) for title, actions in found if actions]

    def on_mount(self) -> None:
        self.query_one("#help-filter", Input).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Rows that contain every word; titles and the rest only while nothing is typed."""
        words = event.value.split()
        self.query_one(KeyTable).filter(words)
        for row in self.query(".help-row"):
            told = " ".join(str(part.render()) for part in row.query(Static)).lower()
            row.display = all(word.lower() in told for word in words)
        for title in self.query(".help-title, .help-line"):
            title.display = not words
        self.query_one("#help-lines", VerticalScroll).scroll_home(animate=False)

    def action_scroll(self, way: str) -> None:
        lines = self.query_one("#help-lines", VerticalScroll)
        {"down": lines.scroll_down, "up": lines.scroll_up, "page_down": lines.scroll_page_down, "page_up": lines.scroll_page_up}[
            way
        ](animate=False)

    def action_close(self) -> None:
        self.dismiss(None)
