"""`paceline themes`: which there are, where they come from, and what is wrong with a file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.output import plural, say, say_json, table

if TYPE_CHECKING:
    from textual.theme import Theme

    from console.contrast import Weak


def themes(
    *,
    check: Annotated[
        Path | None, Parameter(negative="", help="Say whether this file can be used, and what in it is hard to read")
    ] = None,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print JSON")] = False,
) -> int:
    """Themes of the console, and theme files that cannot be used. Exits with 1 if there are such."""
    return _check(check, json) if check is not None else _list(json)


def _list(as_json: bool) -> int:
    from console.themes import ThemeFolders, shipped_folder, user_folder

    folders = ThemeFolders()
    files = folders.files()
    times = Counter(theme.name for _, theme in files)
    winners = {theme.name: path for path, theme in files}
    rows: list[dict[str, Any]] = [
        {
            "name": theme.name,
            "dark": theme.dark,
            "ansi": theme.ansi,
            "file": str(path),
            "shipped": path.parent == shipped_folder(),
            "in_use": winners[theme.name] == path,
        }
        for path, theme in files
    ]
    if as_json:
        say_json({"themes": rows, "problems": folders.problems, "user_folder": str(user_folder())})
        return NOT_VALID if folders.problems else OK
    lines = [[theme["name"], _kind(theme), _place(theme), _note(theme, times)] for theme in rows]
    say(table(["theme", "kind", "from", ""], lines))
    say(f"\nYour own go into {user_folder()}: copy one from {shipped_folder()}, change its name.")
    say("A running console takes a changed file over within two seconds; `--check FILE` examines one.")
    if folders.problems:
        say(f"\n{plural(len(folders.problems), 'file')} not used:")
        for problem in folders.problems:
            say(f"  {problem}")
    return NOT_VALID if folders.problems else OK


def _kind(row: dict[str, Any]) -> str:
    return ("dark" if row["dark"] else "light") + (", 16 colours" if row["ansi"] else "")


def _place(row: dict[str, Any]) -> str:
    return "shipped" if row["shipped"] else str(row["file"])


def _note(row: dict[str, Any], times: Counter[str]) -> str:
    if times[row["name"]] == 1:
        return ""
    return "in use" if row["in_use"] else "replaced by a later one of that name"


def _check(path: Path, as_json: bool) -> int:
    from console.contrast import AA_TEXT, weak_pairs
    from console.themes import ThemeProblem, load_theme

    try:
        theme = load_theme(path)
    except ThemeProblem as problem:
        if not as_json:
            raise BadInput(str(problem)) from problem
        say_json({"file": str(path), "usable": False, "problem": str(problem)})
        return NOT_VALID
    weak = weak_pairs(theme)
    if as_json:
        say_json({"file": str(path), "usable": True, "name": theme.name, "weak": [_facts(pair) for pair in weak]})
        return OK
    _say_checked(theme, weak, AA_TEXT)
    return OK


def _facts(pair: Weak) -> dict[str, Any]:
    return {"ink": pair.ink, "ground": pair.ground, "ratio": round(pair.ratio, 2), "needed": pair.needed}


def _say_checked(theme: Theme, weak: list[Weak], needed: float) -> None:
    if not weak:
        say(f"{theme.name} can be used; every ink has at least {needed:g}:1 on every ground (WCAG AA)")
        return
    say(f"{theme.name} can be used; {plural(len(weak), 'pair')} of colours would be hard to read:")
    for pair in sorted(weak, key=lambda one: one.ratio):
        say(f"  {pair}")
