"""The `:` line without its widget: what was typed, which action that is, and how it could go on.

A command is an action's name with `-` for `_` (`:evict node003/gpu1`, `:rate 3900`, `:sort z`, `:fleet`); any beginning
that fits only one is enough. Arguments are completed from what the console knows: slots, columns, themes, policies.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from console.actions import ACTIONS, Action

#: Names that hands bring along from elsewhere.
ALIASES: Final[Mapping[str, str]] = {
    "q": "leave", "quit": "leave", "q!": "leave", "detach": "leave", "exit": "leave", "stop": "stop_run", "qps": "rate",
    "set-rate": "rate", "theme": "next_theme", "h": "help", "screenshot": "picture", "save": "export", "replicas": "mode_fleet",
    "log": "log", "logs": "mode_events", "journal": "mode_events", "take-control": "control", "restart": "new_attempt",
    "speed": "replay_speed", "play": "replay_play", "start-attempt": "new_attempt",
}  # fmt: skip
_NOT_TYPED: Final = frozenset(
    {"up", "down", "left", "right", "page_up", "page_down", "top", "bottom", "back", "command_line", "command_palette"}
)

NAMES: Final[dict[str, Action]] = {action.command: action for action in ACTIONS if action.id not in _NOT_TYPED}

Values = Callable[[str], Sequence[str]]


class BadCommand(Exception):
    """What was typed is no command; the text says what would be."""


@dataclass(frozen=True, slots=True)
class Typed:
    action: Action
    argument: str


def parse(text: str) -> Typed:
    name, _, argument = text.strip().removeprefix(":").strip().partition(" ")
    if not name:
        raise BadCommand("type a command; tab completes, esc leaves")
    action = _find(name)
    argument = argument.strip()
    if argument and not action.takes:
        raise BadCommand(f"{action.command} takes nothing; {argument!r} was not understood")
    return Typed(action, argument)


def _find(name: str) -> Action:
    name = name.lower().replace("_", "-")
    if name in NAMES:
        return NAMES[name]
    by_id = {action.id: action for action in NAMES.values()}
    if name in ALIASES:
        return by_id[ALIASES[name]]
    fits = {action.id: action for known, action in NAMES.items() if known.startswith(name)}
    if len(fits) == 1:
        return next(iter(fits.values()))
    if fits:
        raise BadCommand(f"{name} could be {', '.join(sorted(action.command for action in fits.values()))}")
    near = difflib.get_close_matches(name, [*NAMES, *ALIASES], 1)
    raise BadCommand(f"there is no command {name!r}" + (f"; did you mean {near[0]}?" if near else " (? lists them)"))


def completions(text: str, values: Values, limit: int = 8) -> list[str]:
    """Whole lines that the typed one could become, best first."""
    typed = text.lstrip().removeprefix(":").lstrip()
    name, space, argument = typed.partition(" ")
    if not space:
        known = sorted([*NAMES, *(alias for alias in ALIASES if alias not in NAMES)])
        starts = [one for one in known if one.startswith(name.lower())]
        inside = [one for one in known if name and name.lower() in one and one not in starts]
        return (starts + inside)[:limit]
    try:
        action = _find(name)
    except BadCommand:
        return []
    if not action.takes:
        return []
    argument = argument.strip().lower()
    offered = values(action.takes)
    starts = [one for one in offered if one.lower().startswith(argument)]
    inside = [one for one in offered if argument and argument in one.lower() and one not in starts]
    return [f"{name} {one}" for one in (starts + inside)[:limit]]
