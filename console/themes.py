"""Themes are TOML files: ours in themes/, the user's in <config>/paceline/themes. A bad file costs that theme, never the console.

Textual has no loader for theme files. This one refuses unknown and missing keys and colours that do not parse, and says
which file and which key. Everything beyond Textual's own colours becomes a theme variable (`$state-slow`, `$heat-3`),
so style sheets and drawing code name meanings and no file but a theme names a colour.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import platformdirs
from textual.color import Color, ColorParseError
from textual.theme import Theme

DEFAULT_THEME: Final = "paceline-dark"

_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "colors": (
        "primary", "secondary", "accent", "foreground", "background", "surface", "panel", "success", "warning", "error",
    ),
    "text": ("muted", "faint", "rule", "cursor"),
    "states": (
        "ready", "slow", "suspect", "lost", "evicted", "rejected", "draining", "drained", "warming", "registered", "new",
    ),
    "heat": ("ramp",),
    "chart": ("target", "offered", "completed", "p99", "p50", "limit", "mark"),
}  # fmt: skip
_PREFIX: Final = {"text": "ink", "states": "state", "chart": "chart"}
HEAT_STEPS: Final = 8


class ThemeProblem(Exception):
    """A theme file that cannot be used; the text names the file and the key."""


def load_theme(path: Path) -> Theme:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeProblem(f"{path.name}: {error}") from error
    _only(path, "", raw, ("name", "dark", *_KEYS))
    name, dark = raw["name"], raw["dark"]
    if not isinstance(name, str) or not name or not isinstance(dark, bool):
        raise ThemeProblem(f"{path.name}: name must be a word and dark must be true or false")
    variables: dict[str, str] = {}
    for table, keys in _KEYS.items():
        if not isinstance(raw[table], dict):
            raise ThemeProblem(f"{path.name}: [{table}] must be a table")
        _only(path, f"{table}.", raw[table], keys)
        if table in _PREFIX:
            variables |= {f"{_PREFIX[table]}-{key}": _colour(path, f"{table}.{key}", raw[table][key]) for key in keys}
    ramp = raw["heat"]["ramp"]
    if not isinstance(ramp, list) or len(ramp) != HEAT_STEPS:
        raise ThemeProblem(f"{path.name}: heat.ramp must list {HEAT_STEPS} colours")
    variables |= {f"heat-{step}": _colour(path, f"heat.ramp[{step}]", value) for step, value in enumerate(ramp)}
    colors = {key: _colour(path, f"colors.{key}", raw["colors"][key]) for key in _KEYS["colors"]}
    variables |= {
        "border": variables["ink-rule"],
        "border-blurred": variables["ink-rule"],
        "scrollbar": variables["ink-rule"],
        "scrollbar-hover": variables["ink-faint"],
        "scrollbar-active": colors["primary"],
        "scrollbar-background": colors["background"],
        "scrollbar-background-hover": colors["background"],
        "scrollbar-background-active": colors["background"],
        "scrollbar-corner-color": colors["background"],
    }
    return Theme(name=name, dark=dark, variables=variables, **colors)  # type: ignore[arg-type]


def _only(path: Path, where: str, table: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in table:
        if key not in keys:
            raise ThemeProblem(f"{path.name}: unknown key {where}{key} (known here: {', '.join(keys)})")
    for key in keys:
        if key not in table:
            raise ThemeProblem(f"{path.name}: {where}{key} is missing")


def _colour(path: Path, key: str, value: object) -> str:
    try:
        return Color.parse(str(value)).hex
    except ColorParseError as error:
        raise ThemeProblem(f"{path.name}: {key} = {value!r} is not a colour (write #rrggbb)") from error


def shipped_folder() -> Path:
    """console/_themes in an installed wheel, ../themes in a checkout."""
    installed = Path(__file__).parent / "_themes"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "themes"


def user_folder() -> Path:
    return platformdirs.user_config_path("paceline") / "themes"


def load_themes(folders: Iterable[Path] | None = None) -> tuple[list[Theme], list[str]]:
    """All usable themes, the default one first, and what was wrong with the others. A later folder wins a name."""
    found: dict[str, Theme] = {}
    problems: list[str] = []
    for folder in folders if folders is not None else (shipped_folder(), user_folder()):
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            try:
                theme = load_theme(path)
            except ThemeProblem as problem:
                problems.append(str(problem))
            else:
                found[theme.name] = theme
    return sorted(found.values(), key=lambda theme: (theme.name != DEFAULT_THEME, theme.name)), problems


@cache
def fallback_variables() -> dict[str, str]:
    """Values of our variables under a theme that lacks them (one of Textual's own)."""
    return dict(load_theme(shipped_folder() / f"{DEFAULT_THEME}.toml").variables)
