"""The `:` line without its widget: what was typed, which action that is, and how it could go on.

A command is an action's name with `-` for `_` (`:evict node003/gpu1`, `:rate 3900`, `:sort z`, `:fleet`); any beginning
that fits only one is enough. Arguments are completed from what the console knows: slots, columns, themes, policies.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from console.actions import ACTIONS, Action, Where

#: Names that hands bring along from elsewhere.
ALIASES: Final[Mapping[str, str]] = {
    "q": "leave", "quit": "leave", "q!": "leave", "detach": "leave", "exit": "leave", "stop": "stop_run", "qps": "rate",
    "set-rate": "rate", "theme": "next_theme", "h": "help", "screenshot": "picture", "save": "export", "replicas": "mode_fleet",
    "log": "log", "logs": "mode_events", "journal": "mode_events", "take-control": "control", "restart": "new_attempt",
    "speed": "replay_speed", "play": "replay_play", "start-attempt": "new_attempt",
    "set": "edit",
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
    """Raises BadCommand, and nothing else."""
    name, argument = split(text)
    if not name:
        raise BadCommand("type a command; tab completes, esc leaves")
    action = find(name)
    if argument and not action.takes:
        raise BadCommand(f"{action.command} takes nothing; {argument!r} was not understood")
    return Typed(action, argument)


def split(text: str) -> tuple[str, str]:
    """Name and argument; any number of colons and blanks around them."""
    name, *argument = text.strip().lstrip(":").strip().split(maxsplit=1)[:2] or [""]
    return name, argument[0].strip() if argument else ""


def find(name: str) -> Action:
    """The action of that name, alias or beginning. Raises BadCommand."""
    name = name.lower().replace("_", "-")
    if name in NAMES:
        return NAMES[name]
    by_id = {action.id: action for action in NAMES.values()}
    if name in ALIASES:
        return by_id[ALIASES[name]]
    fits = {action.id: action for known, action in NAMES.items() if known.startswith(name)}
    fits |= {action_id: by_id[action_id] for alias, action_id in ALIASES.items() if not fits and alias.startswith(name)}
    if len(fits) == 1:
        return next(iter(fits.values()))
    if fits:
        raise BadCommand(f"{name} could be {', '.join(sorted(action.command for action in fits.values()))}")
    near = difflib.get_close_matches(name, [*NAMES, *ALIASES], 1)
    raise BadCommand(f"there is no command {name!r}" + (f"; did you mean {near[0]}?" if near else " (? lists them)"))


def completions(text: str, values: Values, here: Where | None = None, limit: int | None = 8) -> list[str]:
    """Whole lines that the typed one could become, best first: of names, those that the screen `here` has, in the registry's
    order; of values, those that begin so."""
    typed = text.lstrip().lstrip(":").lstrip()
    if not any(mark.isspace() for mark in typed):
        return _names(typed.lower().replace("_", "-"), here)[:limit]
    name, argument = split(typed)
    try:
        action = find(name)
    except BadCommand:
        return []
    if not action.takes:
        return []
    return [f"{name} {one}" for one in _ranked(argument.lower(), list(values(action.takes)))[:limit]]


def _names(begun: str, here: Where | None) -> list[str]:
    """Names that begin so, aliases that do, names that have it inside; each action once. One letter is inside of most."""
    names = sorted(NAMES, key=lambda name: not usable(NAMES[name], here))  # stable: the registry's order otherwise
    aliases = [alias for alias in ALIASES if begun and alias.startswith(begun)]
    offered = {NAMES[name].id: name for name in names if name == begun}
    for name in names:
        if name.startswith(begun):
            offered.setdefault(NAMES[name].id, name)
    for alias in aliases:
        offered.setdefault(ALIASES[alias], alias)
    if len(begun) > 1:
        for name in names:
            if begun in name:
                offered.setdefault(NAMES[name].id, name)
    return list(offered.values())


def _ranked(begun: str, known: Sequence[str]) -> list[str]:
    starts = [one for one in known if one.lower().startswith(begun)]
    inside = [one for one in known if begun and begun in one.lower() and not one.lower().startswith(begun)]
    return sorted(starts, key=lambda one: one.lower() != begun) + inside


def usable(action: Action, here: Where | None) -> bool:
    """Acts work from everywhere: they name whom they are about."""
    return here is None or "app" in action.where or here in action.where or bool(action.acts and action.takes)
