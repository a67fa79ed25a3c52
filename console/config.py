"""What a user wants of every console: <config>/paceline/console.toml, all of it optional.

    theme = "paceline-dark"     # or $PACELINE_THEME
    fps = 4                     # 1, 2 or 4 pictures a second
    armed = true                # false: A must be pressed before any key can act

    [keys]                      # action id = Textual key names, comma separated; `paceline keys --toml` lists them all
    evict = "ctrl+k"
    freeze = "f,f5"

A file that cannot be used costs its settings, never the console: what was wrong is said in words and the rest applies.
What was asked for on the command line is different: an unknown theme there is refused before anything is started.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import platformdirs
from textual.binding import Binding
from textual.keys import Keys, format_key, key_to_character

from console.actions import ACTIONS, BY_ID, Action

#: Keys that text fields, dialogs and Textual itself live on: an action on one of them would never run, or nothing else would.
RESERVED: Final = frozenset({"tab", "shift+tab", "ctrl+q", "ctrl+c", "backspace", "delete"})
#: Keys with names of their own, without modifiers.
_NAMED: Final = frozenset(key.value for key in Keys if "+" not in key.value and not key.value.startswith("<")) | {
    "plus", "minus", "slash", "backslash", "at", "underscore",
}  # fmt: skip
_MODIFIERS: Final = ("ctrl", "shift", "alt", "super", "hyper", "meta")


class BadWish(Exception):
    """The command line asks for something that the console does not have; the text says what there is."""


@dataclass(slots=True)
class Config:
    theme: str = ""
    fps: int = 4
    armed: bool = True
    keys: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def config_file() -> Path:
    named = os.environ.get("PACELINE_CONFIG", "")
    return Path(named) if named else platformdirs.user_config_path("paceline") / "console.toml"


def load_config(path: Path | None = None) -> Config:
    path = path or config_file()
    config = Config(theme=os.environ.get("PACELINE_THEME", ""))
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if "PACELINE_CONFIG" in os.environ:
            config.problems.append(f"$PACELINE_CONFIG names {path}, which is not there")
        return config
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        config.problems.append(f"{path.name}: {error}")
        return config
    _read(raw, config, path.name)
    return config


def _read(raw: dict[str, Any], config: Config, name: str) -> None:
    known = ("theme", "fps", "armed", "keys")
    for key, value in raw.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            config.problems.append(f"{name}: unknown setting {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
        elif key == "theme" and isinstance(value, str):
            config.theme = config.theme or value
        elif key == "fps" and value in (1, 2, 4) and not isinstance(value, bool):
            config.fps = value
        elif key == "armed" and isinstance(value, bool):
            config.armed = value
        elif key == "keys" and isinstance(value, dict):
            config.keys, problems = keymap(value)
            config.problems += [f"{name}: {problem}" for problem in problems]
        else:
            right = {"theme": "a name", "fps": "1, 2 or 4", "armed": "true or false", "keys": "a table"}[key]
            config.problems.append(f"{name}: {key} = {value!r} must be {right}")


def keymap(wanted: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """(usable part, what is wrong with the rest). A key that two actions of one screen would have is refused for the new one."""
    good: dict[str, str] = {}
    problems = []
    for name, keys in wanted.items():
        if name not in BY_ID:
            near = difflib.get_close_matches(name, BY_ID, 1)
            problems.append(f"keys.{name}: no such action" + (f"; did you mean {near[0]}?" if near else ""))
        elif not isinstance(keys, str) or not all(part.strip() for part in keys.split(",")):
            problems.append(f"keys.{name} = {keys!r} must be key names with commas between them, such as 'ctrl+k'")
        elif wrong := next(filter(None, (_not_a_key(part.strip(), BY_ID[name]) for part in keys.split(","))), ""):
            problems.append(f"keys.{name}: {wrong}")
        else:
            good[name] = ",".join(dict.fromkeys(_normal(part.strip()) for part in keys.split(",")))
    while clash := next(((name, other) for name in good if (other := _clash(name, good))), None):
        name, other = clash  # taking one back gives another its default key again: look until nothing clashes
        problems.append(f"keys.{name} = {good[name]!r} is the key of {other} already")
        del good[name]
    return good, problems


def _normal(key: str) -> str:
    """`=` is `equals_sign` to Textual."""
    return next(iter(Binding.make_bindings([Binding(key, "")]))).key


def _not_a_key(key: str, action: Action) -> str:
    """Why no terminal sends this, or why it cannot be had; empty when it is a key. What an action has as shipped, it may keep."""
    *modifiers, base = key.split("+") if len(key) > 1 else [key]
    if _normal(key) in RESERVED and _normal(key) not in action.keys.split(","):
        return f"{key!r} belongs to text fields and to leaving"
    if len(base) == 1:  # some signs have a name that Textual cannot read again
        readable = base.isascii() or key_to_character(_normal(base)) == base
        named = readable and (not modifiers or base.islower() or not base.isalpha())
    else:
        named = base in _NAMED or key_to_character(base) is not None
    if named and all(modifier in _MODIFIERS for modifier in modifiers):
        return ""
    near = difflib.get_close_matches(key.lower(), [*_NAMED, *(one.value for one in Keys)], 1)
    return f"{key!r} is no key" + (f"; did you mean {near[0]!r}?" if near else " (f, F, ctrl+k, f5, pageup, equals_sign, …)")


def _clash(name: str, mapped: dict[str, str]) -> str:
    """Another action that one of these keys already runs on a screen that both are on."""
    mine = BY_ID[name]
    by_key: dict[str, list[Action]] = defaultdict(list)
    for action in ACTIONS:
        for key in mapped.get(action.id, action.keys).split(","):
            by_key[key].append(action)
    for key in mapped[name].split(","):
        for other in by_key[key]:
            if other.id != name and ("app" in other.where or "app" in mine.where or set(other.where) & set(mine.where)):
                return other.id
    return ""


def shown_key(action: Action, keys: Mapping[str, str]) -> str:
    """As footers and help write it: the user's own keys where the key map has some, `^k` for ctrl+k."""
    mapped = keys.get(action.id)
    if mapped is None:
        return action.shown_key
    return " ".join("^" + format_key(key[5:]) if key.startswith("ctrl+") else format_key(key) for key in mapped.split(","))


def as_toml(keys: Mapping[str, str]) -> str:
    """A key map to start from: every action with its key, those that are as shipped as comments."""
    lines = [
        f"# Goes into {config_file()}. Take away the # and change the key; several are separated by commas.",
        "",
        "[keys]",
    ]
    group = ""
    for action in ACTIONS:
        if action.group != group:
            group = action.group
            lines += ["", f"# {group}"]
        mark = "" if action.id in keys else "# "
        told = f"{action.title}{f': {action.help}' if action.help else ''} ({', '.join(action.where)})"
        lines.append(f"{f'{mark}{action.id} = {_quoted(keys.get(action.id, action.keys))}':<36}  # {told}")
    return "\n".join(lines)


def _quoted(keys: str) -> str:
    return '"' + keys.replace("\\", "\\\\").replace('"', '\\"') + '"'


def console_config(theme: str | None = None, fps: int | None = None) -> Config:
    """The user's file, then what the command line asks for. Raises BadWish for a theme that does not exist."""
    config = load_config()
    config.fps = fps or config.fps
    if not (theme or config.theme):
        return config
    from console.themes import load_themes

    names = [known.name for known in load_themes()[0]]
    if theme is not None and theme not in names:
        raise BadWish(_no_theme("--theme", theme, names))
    config.theme = theme or config.theme
    if config.theme not in names:
        config.problems.append(_no_theme("theme", config.theme, names))
    return config


def _no_theme(where: str, theme: str, names: list[str]) -> str:
    near = difflib.get_close_matches(theme, names, 1)
    return f"{where}: there is no theme {theme!r}" + (f"; did you mean {near[0]}?" if near else "") + f" ({', '.join(names)})"
