"""`paceline keys`: every key of the console, from the registry of actions and the user's own key map."""

from __future__ import annotations

import shutil
import textwrap
from typing import Annotated

from cyclopts import Parameter

from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.output import complain, say, say_json

_TITLES = {
    "Screens": "Screens", "Act": "Acts on the run (each asks first)", "Look": "Looking", "Replay": "Replay of a record",
    "Move": "Moving", "Console": "This console",
}  # fmt: skip


def keys(
    *,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print a JSON list of actions and their keys")] = False,
    toml: Annotated[bool, Parameter(name="--toml", negative="", help="Print a key map to start from, for console.toml")] = False,
) -> int:
    """The console's keys, as your key map has them. Exits with 1 when a part of it cannot be used."""
    if json and toml:
        raise BadInput("keys: --json or --toml, not both")
    from console.actions import ACTIONS
    from console.config import as_toml, config_file, load_config, shown_key

    config = load_config()
    mine = config.keys
    if toml:
        say(as_toml(mine))
    elif json:
        say_json(
            [
                {"id": action.id, "keys": mine.get(action.id, action.keys).split(","), "shown": shown_key(action, mine),
                 "title": action.title, "help": action.help, "group": action.group, "where": list(action.where),
                 "acts": action.acts, "command": action.command, "takes": action.takes, "mapped": action.id in mine}
                for action in ACTIONS
            ]
        )  # fmt: skip
    else:
        _say_table(mine)
        say(f"\nYours go into {config_file()}: `paceline keys --toml` prints a map to start from.")
    for problem in config.problems:
        complain(problem)
    return NOT_VALID if config.problems else OK


def _say_table(mine: dict[str, str]) -> None:
    from console.actions import ACTIONS
    from console.config import shown_key

    width = max(60, shutil.get_terminal_size((120, 40)).columns)
    widest = max(len(shown_key(action, mine)) for action in ACTIONS)
    title = max(len(action.title) for action in ACTIONS)
    for group, heading in _TITLES.items():
        say(f"\n{heading}" if group != "Screens" else heading)
        for action in (action for action in ACTIONS if action.group == group):
            where = "" if "app" in action.where else f" [{', '.join(action.where)}]"
            told = f"{action.help or action.title.lower()}{where}{'  (yours)' if action.id in mine else ''}"
            lead = f"  {shown_key(action, mine):>{widest}}  {action.title:<{title}}  "
            for number, part in enumerate(textwrap.wrap(told, max(20, width - len(lead)), break_on_hyphens=False)):
                say((" " * len(lead) if number else lead) + part)
