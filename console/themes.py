"""Themes are TOML files: ours in themes/, the user's in <config>/paceline/themes. A bad file costs that theme, never the console.

Textual has no loader for theme files. This one refuses unknown and missing keys and colours that do not parse, and says
which file and which key. Everything beyond Textual's own colours becomes a theme variable (`$state-slow`, `$heat-3`),
so style sheets and drawing code name meanings and no file but a theme names a colour.

`ThemeFolders` also watches: `changes()` looks at the folders (a stat for each file, no more unless one changed) and says
what a running console has to take over. A file that has become unusable leaves its last good version in force.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import platformdirs
from textual.color import Color, ColorParseError
from textual.theme import Theme

DEFAULT_THEME: Final = "paceline-dark"
ANSI_THEME: Final = "ansi-16"
#: As the theme key goes round; a user's own come after these, by name.
_ORDER: Final = (DEFAULT_THEME, "paceline-light", "high-contrast", "deuteranopia", "tritanopia", "amber", ANSI_THEME)

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
_OPTIONAL: Final = ("ansi",)
_PREFIX: Final = {"text": "ink", "states": "state", "chart": "chart"}
HEAT_STEPS: Final = 8
#: In place of a colour for the row under the cursor: swaps each cell's own colours. With 16 colours no ground suits all inks.
REVERSE: Final = "reverse"


class ThemeProblem(Exception):
    """A theme file that cannot be used; the text names the file and the key."""


# --- one file ------------------------------------------------------------------------------------------------


def load_theme(path: Path) -> Theme:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ThemeProblem(f"{path.name}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeProblem(f"{path.name}: {error}") from error
    return _Reader(path.name, raw).theme()


class _Reader:
    """Checks what a file says, key by key; the first thing wrong is told."""

    def __init__(self, file: str, raw: dict[str, Any]) -> None:
        self._file, self._raw = file, raw
        self._ansi = False

    def theme(self) -> Theme:
        raw = self._raw
        self._only("", raw, ("name", "dark", *_KEYS), _OPTIONAL)
        name, dark, ansi = raw["name"], raw["dark"], raw.get("ansi", False)
        if not isinstance(name, str) or not name.strip() or not isinstance(dark, bool) or not isinstance(ansi, bool):
            raise self._problem("name must be a word, and dark and ansi true or false")
        self._ansi = ansi
        for table, keys in _KEYS.items():
            if not isinstance(raw[table], dict):
                raise self._problem(f"[{table}] must be a table")
            self._only(f"{table}.", raw[table], keys)
        colors = {key: self._colour(f"colors.{key}", raw["colors"][key]) for key in _KEYS["colors"]}
        variables = self._variables(colors)
        return Theme(name=name, dark=dark, ansi=ansi, variables=variables, **colors)  # type: ignore[arg-type]

    def _variables(self, colors: Mapping[str, str]) -> dict[str, str]:
        raw, found = self._raw, {}
        reverse = raw["text"]["cursor"] == REVERSE
        for table, prefix in _PREFIX.items():
            for key in _KEYS[table]:
                value = colors["foreground"] if reverse and key == "cursor" else raw[table][key]
                found[f"{prefix}-{key}"] = self._colour(f"{table}.{key}", value)
        found["ink-cursor-text-style"] = REVERSE if reverse else "none"
        ramp = raw["heat"]["ramp"]
        if not isinstance(ramp, list) or len(ramp) != HEAT_STEPS:
            raise self._problem(f"heat.ramp must list {HEAT_STEPS} colours, from low to high")
        found |= {f"heat-{step}": self._colour(f"heat.ramp[{step}]", value) for step, value in enumerate(ramp)}
        return found | _derived(found, colors, self._ansi)

    def _only(self, where: str, table: dict[str, Any], keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        known = (*keys, *optional)
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                raise self._problem(
                    f"unknown key {where}{key}; " + (f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}")
                )
        for key in keys:
            if key not in table:
                raise self._problem(f"{where}{key} is missing")

    def _colour(self, key: str, value: object) -> str:
        try:
            colour = Color.parse(str(value))
        except ColorParseError as error:
            raise self._problem(f"{key} = {value!r} is not a colour (write {self._right})") from error
        if colour.a != 1:
            raise self._problem(f"{key} = {value!r} lets something shine through: a colour here must be opaque")
        if (colour.ansi is not None) != self._ansi:
            why = "all colours must be ANSI colours where ansi = true" if self._ansi else "ANSI colours need ansi = true"
            raise self._problem(f"{key} = {value!r}: {why} (write {self._right})")
        return colour.hex

    @property
    def _right(self) -> str:
        return "ansi_red, ansi_bright_red, …" if self._ansi else "#rrggbb"

    def _problem(self, text: str) -> ThemeProblem:
        return ThemeProblem(f"{self._file}: {text}")


def _derived(found: Mapping[str, str], colors: Mapping[str, str], ansi: bool) -> dict[str, str]:
    """Variables of Textual's own widgets that follow from ours."""
    ground = colors["background"]
    derived = {
        "border": found["ink-rule"],
        "border-blurred": found["ink-rule"],
        "scrollbar": found["ink-rule"],
        "scrollbar-hover": found["ink-faint"],
        "scrollbar-active": colors["primary"],
        "scrollbar-background": ground,
        "scrollbar-background-hover": ground,
        "scrollbar-background-active": ground,
        "scrollbar-corner-color": ground,
    }
    if ansi:  # Textual makes these transparent or the terminal's own, which may be white on a theme meant for black
        front = colors["foreground"]
        derived |= {"surface": colors["surface"], "panel": colors["panel"], "text": front, "text-muted": found["ink-muted"]}
        derived |= {"text-disabled": found["ink-faint"], "block-cursor-foreground": ground, "block-cursor-background": front}
        derived |= {"input-cursor-foreground": ground, "input-cursor-background": front, "input-selection-foreground": ground}
        derived |= {"input-selection-background": colors["primary"], "button-foreground": front}
        derived |= {"ansi-background": ground, "ansi-foreground": front}
    return derived


# --- folders of them -----------------------------------------------------------------------------------------


def shipped_folder() -> Path:
    """console/_themes in an installed wheel, ../themes in a checkout."""
    installed = Path(__file__).parent / "_themes"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "themes"


def user_folder() -> Path:
    return platformdirs.user_config_path("paceline") / "themes"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a look at the folders brought: the themes there are now, and what happened to which."""

    themes: list[Theme]
    renewed: list[str]  # names that are new or look different
    gone: list[str]
    problems: list[str]  # of files that have just become unusable


_Stamp = tuple[int, int, int]


class ThemeFolders:
    """All usable themes of some folders. A later folder wins a name, and so does the later of two files in one folder."""

    def __init__(self, folders: Iterable[Path] | None = None) -> None:
        self.folders = tuple(folders) if folders is not None else (shipped_folder(), user_folder())
        self._stamps: dict[Path, _Stamp] = {}
        self._good: dict[Path, Theme] = {}
        self._bad: dict[Path, str] = {}
        self._doubtful: set[Path] = set()
        for path, stamp in self._look().items():
            self._stamps[path] = stamp
            self._read(path)

    @property
    def themes(self) -> list[Theme]:
        """The default one first."""
        found = {theme.name: theme for _, theme in self.files()}
        rank = {name: at for at, name in enumerate(_ORDER)}
        return sorted(found.values(), key=lambda theme: (rank.get(theme.name, len(rank)), theme.name))

    @property
    def problems(self) -> list[str]:
        return list(self._bad.values())

    def files(self) -> list[tuple[Path, Theme]]:
        """Each usable file, in the order in which a later one wins."""
        return [(path, self._good[path]) for path in self._stamps if path in self._good]

    def changes(self) -> Changes | None:
        """What has changed since the last look; None when nothing has. A file seen half written is given one more look."""
        before = {theme.name: theme for theme in self.themes}
        now = self._look()
        told: list[str] = []
        if now == self._stamps and not self._doubtful:
            return None
        for path in self._stamps.keys() - now.keys():
            for known in (self._good, self._bad):
                known.pop(path, None)
            self._doubtful.discard(path)
        touched = [path for path in now if now[path] != self._stamps.get(path) or path in self._doubtful]
        self._stamps = now
        for path in touched:
            problem = self._read(path)
            if problem and path not in self._doubtful:
                self._doubtful.add(path)
                continue
            self._doubtful.discard(path)
            if problem:
                told.append(problem)
        themes = self.themes
        after = {theme.name: theme for theme in themes}
        renewed = [name for name, theme in after.items() if before.get(name) != theme]
        gone = [name for name in before if name not in after]
        return Changes(themes, renewed, gone, told) if renewed or gone or told else None

    def _read(self, path: Path) -> str:
        """Takes over a file; what is wrong with it, else nothing."""
        try:
            self._good[path] = load_theme(path)
        except ThemeProblem as problem:
            self._bad[path] = str(problem)
            return str(problem)
        self._bad.pop(path, None)
        return ""

    def _look(self) -> dict[Path, _Stamp]:
        stamps: dict[Path, _Stamp] = {}
        for folder in self.folders:
            try:
                paths = sorted(folder.glob("*.toml"))
            except OSError:  # a folder that vanished or may not be read has no themes
                continue
            for path in paths:
                try:
                    facts = path.stat()
                except OSError:
                    continue
                stamps[path] = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        return stamps


def load_themes(folders: Iterable[Path] | None = None) -> tuple[list[Theme], list[str]]:
    """All usable themes, the default one first, and what was wrong with the others."""
    found = ThemeFolders(folders)
    return found.themes, found.problems


@cache
def fallback_variables() -> dict[str, str]:
    """Values of our variables under a theme that lacks them (one of Textual's own)."""
    return dict(load_theme(shipped_folder() / f"{DEFAULT_THEME}.toml").variables)
