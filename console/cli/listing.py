"""Looking at what is there: the first page, profiles, runs, and one run's result."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from console import locations
from console.cli.errors import OK
from console.cli.found import any_run, phase_in_words, try_read
from console.cli.output import number, say, say_json, table, typed, when
from console.cli.remote import dead_links
from harness.cluster.local import head_alive
from harness.records.layout import RunFolder, list_runs

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
    recent = list_runs(locations.runs())[:_RECENT]
    say(f"\nRuns in {locations.runs()}")
    if recent:
        say("  " + _run_table([_row(folder) for folder in recent]).replace("\n", "\n  "))
    else:
        say("  none yet")
    going = next((folder for folder in recent if head_alive(folder)), None)
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


def runs(*, json: AsJson = False) -> int:
    """Runs in the folder of runs, newest first."""
    rows = [_row(folder) for folder in list_runs(locations.runs())]
    if json:
        say_json(rows)
    elif rows:
        say(_run_table(rows))
        for folder in dead_links():
            say(f"{folder.name}: its link to the cluster is dead; `{typed(f'attach {folder.name}')}` starts it again")
    else:
        say(f"no runs in {locations.runs()} ({typed('demo')} starts one)")
    return OK


def show(
    run: str | None = None,
    /,
    *,
    attempt: Annotated[int | None, Parameter(help="Figures of this attempt (default: the last)")] = None,
    json: AsJson = False,
) -> int:
    """A run's verdict and figures, from its record; of one that is going on, those until now.

    `ACTS n` beside a verdict: n acts of operators (or of the straggler policy) touched its attempts. Drains and readmits,
    which load balancing may do anyway, leave VALID possible; every other act rules it out for its attempt.
    """
    from console.cli.report import result_of, say_result

    result = result_of(any_run(run), number=attempt)
    if json:
        say_json(result)
    else:
        say_result(result)
    return OK


def _row(folder: RunFolder) -> dict[str, Any]:
    run = try_read(folder)
    if run is None:
        return {"run": folder.name, "phase": "record cannot be read", "verdict": "", "record": str(folder.path)}
    last = run.attempts[-1] if run.attempts else None
    return {
        "run": folder.name,
        "phase": phase_in_words(run, folder),
        "verdict": run.verdict,
        "synthetic": run.synthetic,
        "started_unix": run.started_unix or None,
        "ended_unix": run.ended_unix or None,
        "attempts": len(run.attempts),
        "target_qps": last.target_qps if last else None,
        "completed": last.totals.get("completed") if last else None,
        "ttft_p99_ms": last.ttft_ms.get("p99") if last else None,
        "tpot_p99_ms": last.tpot_ms.get("p99") if last else None,
        "acts": max(run.acts, sum(attempt.acts for attempt in run.attempts)),  # the first is written when the run ends
        "record": str(folder.path),
    }


def _run_table(rows: list[dict[str, Any]]) -> str:
    return table(
        ["run", "started", "phase", "verdict", "target QPS", "completed", "TTFT p99 ms", "TPOT p99 ms", ""],
        [
            [
                row["run"],
                when(row.get("started_unix")),
                row["phase"],
                row["verdict"] or "-",
                number(row.get("target_qps")),
                number(row.get("completed")),
                number(row.get("ttft_p99_ms")),
                number(row.get("tpot_p99_ms")),
                " ".join(
                    [*(["synthetic"] if row.get("synthetic") else []), *([f"ACTS {row['acts']}"] if row.get("acts") else [])]
                ),
            ]
            for row in rows
        ],
        right=range(4, 8),
    )
