"""What a user wants of every console: <config>/paceline/console.toml, all of it optional.

    theme = "paceline-dark"     # or $PACELINE_THEME
    fps = 4                     # 1, 2 or 4 pictures a second
    armed = true                # false: A must be pressed before any key can act

    [keys]                      # action id = Textual key names, comma separated; `?` shows ids and keys
    evict = "ctrl+k"
    freeze = "f,pause"

A file that cannot be used costs its settings, never the console: what was wrong is said in words and the rest applies.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from console.actions import ACTIONS, BY_ID, Action


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
        else:
            good[name] = ",".join(part.strip() for part in keys.split(","))
    for name in list(good):
        if other := _clash(name, good):
            problems.append(f"keys.{name} = {good[name]!r} is the key of {other} already")
            del good[name]
    return good, problems


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
