"""Looking at what is there: the first page and profiles."""

from __future__ import annotations

import itertools
import os
import sys
from typing import Annotated

from cyclopts import Parameter

from console import locations
from console.cli.errors import OK
from console.cli.output import say, say_json, table, typed
from console.cli.run_list import run_table
from console.store.runs import scan

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON")]

_RECENT = 5


def welcome() -> int:
    """On a terminal the console, to choose and start a run; else what can be run, what has been run, and what to type."""
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from console.cli.start import open_launch

        return open_launch()
    return first_page()


def first_page() -> int:
    from harness.specfile import profiles as shipped

    say("Paceline: operations console for distributed LLM inference benchmarks\n")
    say("Profiles")
    descriptions = shipped()
    width = max(map(len, descriptions))
    for name, description in descriptions.items():
        say(f"  {name:<{width}}  {description}")
    recent = list(itertools.islice(scan(locations.runs(), {}), _RECENT))
    say(f"\nRuns in {locations.runs()}")
    if recent:
        say("  " + run_table(recent).replace("\n", "\n  "))
    else:
        say("  none yet")
    going = next((row for row in recent if row.state == "running"), None)
    say("\nType")
    suggestions = [
        ("demo", "two minutes of LoadGen over 64 synthetic replicas, in the console"),
        ("demo --explore", "the same without end; the rate can be changed at once"),
        ("run SPEC", "a profile or a TOML file; -s fleet.nodes=4 overrides a field"),
        *([("attach", f"open {going.name}")] if going else []),
        ("doctor", "will this machine carry a run?"),
        ("--help", "all commands"),
    ]
    say(table_of_commands(suggestions))
    return OK


def table_of_commands(commands: list[tuple[str, str]]) -> str:
    shown = [(typed(command), meaning) for command, meaning in commands]
    width = max(len(command) for command, _ in shown)
    return "\n".join(f"  {command:<{width}}  {meaning}" for command, meaning in shown)


def profiles(*, json: AsJson = False) -> int:
    """Profiles that ship with the package."""
    from harness.specfile import profiles as shipped

    found = shipped()
    if json:
        say_json([{"name": name, "description": description} for name, description in found.items()])
    else:
        say(table(["profile", "what it is"], found.items()))
    return OK
