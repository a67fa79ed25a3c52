"""Everything a key can do, as data. Bindings, footer, palette and help are made from this one list.

An Action's `id` is the name of the method that runs it (`action_<id>`) and what a key map refers to. `acts` marks what
changes the run: greyed, and answered with the reason, when this console may only look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from textual.binding import Binding, BindingType

Group = Literal["Act", "Look", "Move", "Console"]


@dataclass(frozen=True, slots=True)
class Action:
    id: str
    keys: str  # Textual key names, comma separated
    shown_key: str
    title: str  # palette
    help: str
    group: Group
    footer: str = ""  # label in the footer; "" = not there
    acts: bool = False
    scope: Literal["app", "live"] = "live"

    @property
    def short(self) -> str:
        return (self.footer or self.title).split(" ")[0]


ACTIONS: Final = (
    Action("evict", "e", "e", "Evict replica", "take it out; its samples are dispatched again", "Act", "Evict", True),
    Action("drain", "d", "d", "Drain replica", "no new samples; it finishes what it has", "Act", "Drain", True),
    Action("recycle", "r", "r", "Recycle replica", "drain, then restart its engine in place", "Act", "Recycle", True),
    Action("readmit", "a", "a", "Readmit replica", "take a drained or evicted replica back", "Act", "", True),
    Action("rate", "equals_sign", "=", "Change target QPS", "the dialog says by which mechanism", "Act", "QPS", True),
    Action("pause", "p", "p", "Pause or resume issuing", "explore attempts only", "Act", "", True),
    Action("stop_run", "S", "S", "Stop the run", "end the load and the fleet; asks for the run's name", "Act", "", True, "app"),
    Action("open", "enter", "↵", "Replica detail", "facts, states and throughput of one replica", "Look", "Detail"),
    Action("filter", "slash", "/", "Filter rows", "by part of a slot or a state; esc clears", "Look", "Filter"),
    Action("sort", "o", "o", "Next sort order", "worst, slot, tok/s, ratio, TTFT, waiting, in flight", "Look", "Sort"),
    Action("freeze", "f", "f", "Freeze the order", "rows stay where they are, numbers go on", "Look", "Freeze"),
    Action("faults", "z", "z", "Faults only", "hide what is ready and not slow", "Look", "Faults"),
    Action("heat", "h", "h", "Next heat metric", "tok/s against the median, TTFT, batch, waiting, ratio", "Look", "Heat"),
    Action("charts", "t", "t", "Charts or heat map", "on a narrow terminal", "Look", ""),
    Action("result", "v", "v", "Result by replica", "from the record, once the run has ended", "Look", ""),
    Action("copy", "y", "y", "Copy log path", "of the replica, through the terminal (OSC 52)", "Look", ""),
    Action("up", "up,k", "↑ k", "Up", "one row", "Move"),
    Action("down", "down,j", "↓ j", "Down", "one row", "Move"),
    Action("page_up", "pageup", "PgUp", "Page up", "one page", "Move"),
    Action("page_down", "pagedown", "PgDn", "Page down", "one page", "Move"),
    Action("top", "home,g", "g", "First row", "", "Move"),
    Action("bottom", "end,G", "G", "Last row", "", "Move"),
    Action("back", "escape", "esc", "Back", "leave what is open, clear the filter, or let go of the row", "Move"),
    Action("help", "question_mark,f1", "?", "Help", "every key of this console", "Console", "Help", False, "app"),
    Action("next_theme", "T", "T", "Next theme", "goes round the installed themes", "Console", "", False, "app"),
    Action("picture", "ctrl+s", "ctrl+s", "Save a picture", "SVG, into the run's record", "Console", "", False, "app"),
    Action("command_palette", "ctrl+p", "ctrl+p", "Palette", "all actions by name", "Console", "", False, "app"),
    Action("leave", "q", "q", "Detach", "close this console; the run goes on", "Console", "Detach", False, "app"),
)  # fmt: skip

BY_ID: Final = {action.id: action for action in ACTIONS}
FOOTER: Final = tuple(action for action in ACTIONS if action.footer)


def bindings(scope: Literal["app", "live"], ids: Iterable[str] = ()) -> list[BindingType]:
    """Textual bindings of one scope (or of the named actions), each with the id a key map refers to."""
    wanted = set(ids)
    chosen = [action for action in ACTIONS if (action.id in wanted if wanted else action.scope == scope)]
    return [Binding(action.keys, action.id, action.title, show=False, id=action.id) for action in chosen]
