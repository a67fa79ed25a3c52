"""`paceline import`: somebody else's run as a record of ours."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from console import locations
from console.cli.errors import OK
from console.cli.output import note, plural, say, say_json, typed
from console.cli.waiting import ended_in_order

_QUIET_S = 1.0
_EVERY_S = 2.0


def import_(
    path: Path,
    /,
    *,
    name: Annotated[str | None, Parameter(help="Name among the runs (default: what it was, or what its logs tell)")] = None,
    as_: Annotated[
        Literal["run", "loadgen", "endpoints"] | None,
        Parameter(name="--as", help="What PATH is (default: what it looks like)"),
    ] = None,
    json: Annotated[bool, Parameter(name="--json", negative="", help="Print JSON")] = False,
) -> int:
    """Take a run from elsewhere into the folder of runs, to be listed, drilled into, compared and reported like others.

    PATH is a Paceline run's folder or a .tar.gz or .zip of one; LoadGen's logs (a folder with mlperf_log_detail.txt, or a
    submission's results/SYSTEM/MODEL with performance, accuracy and TEST folders: an attempt each); or a run of
    mlcommons/endpoints (events.jsonl, result_summary.json). What the files do not say is told and stands in the record.
    """
    from harness.imports.importing import import_run

    with ended_in_order():
        made = import_run(path, locations.runs(), name=name, kind=as_, progress=_Progress())
    told = made.told
    if json:
        say_json(
            {
                "run": made.folder.name, "kind": made.kind, "verdict": made.run.verdict, "reasons": made.run.reasons,
                "attempts": [_attempt(attempt) for attempt in made.run.attempts], "read": told.read, "missing": told.missing,
                "left_out": told.left_out, "problems": made.problems, "record": str(made.folder.path),
            }
        )  # fmt: skip
        return OK
    attempts = plural(len(made.run.attempts), "attempt")
    say(f"{made.folder.name}: {made.run.verdict or 'no verdict'}, {attempts} ({_NAMES[made.kind]})")
    for heading, lines in (
        ("read", told.read), ("not known", told.missing), ("left out", told.left_out), ("damaged", made.problems),
    ):  # fmt: skip
        for line in lines:
            say(f"  {heading:<9}  {line}")
    say(f"\n{typed(f'show {made.folder.name}')}")
    return OK


_NAMES = {"run": "a Paceline run", "loadgen": "LoadGen's logs", "endpoints": "a run of mlcommons/endpoints"}


def _attempt(attempt: Any) -> dict[str, Any]:
    return {
        "number": attempt.number, "kind": attempt.kind, "scenario": attempt.scenario, "verdict": attempt.verdict,
        "reasons": attempt.reasons, "notes": attempt.notes, "totals": attempt.totals,
    }  # fmt: skip


class _Progress:
    """A line on stderr every two seconds, if it takes longer than one."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _QUIET_S

    def __call__(self, what: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        share = f"{100 * done / total:3.0f} %  " if total else ""
        of = f" of {total / 1e6:,.0f}" if total else ""
        note(f"{what}: {share}{done / 1e6:,.0f}{of} MB")
        sys.stderr.flush()
