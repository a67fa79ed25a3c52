"""`paceline delete` and `prune`: runs that are no longer wanted. What stands against it is `console.store.deleting`."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from console import locations
from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.found import phase_of
from console.cli.output import complain, note, plural, say, say_json, table
from console.cli.waiting import told_if_slow
from console.store.deleting import Deleted, against, prunable
from console.store.deleting import delete as remove
from console.store.runs import RunRow, row_of, scan
from console.widgets import fmt
from harness.records.disk import size_of
from harness.records.layout import NoSuchRun, find_run
from harness.records.removing import remove_rest, rests

Yes = Annotated[bool, Parameter(negative="", help="Delete without asking")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="List as JSON and delete nothing without --yes")]

_AGE = re.compile(r"(\d+(?:\.\d+)?)(h|d|w)")
_AGE_S = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def delete(
    *run: str,
    yes: Yes = False,
    force: Annotated[bool, Parameter(negative="", help="Also what is pinned, or may have objects on a cluster")] = False,
    json: AsJson = False,
) -> int:
    """Delete runs and all that was recorded of them, once confirmed. When one must stay, all do.

    A run that goes on is never deleted. Without RUN: remove what a deletion that was cut short has left.
    """
    root = locations.runs()
    if not run:
        return _rest(root, json)
    rows = list({row.path: row for row in (_row(name, root, whole=yes) for name in run)}.values())
    return _delete(rows, root, yes=yes, force=force, as_json=json)


def prune(
    *,
    keep: Annotated[int | None, Parameter(help="All but the newest so many")] = None,
    older_than: Annotated[str | None, Parameter(help="Those that began longer ago: 12h, 30d or 8w")] = None,
    yes: Yes = False,
    json: AsJson = False,
) -> int:
    """Delete ended runs that nobody has pinned, tagged or noted, once confirmed; with both bounds, what both mean."""
    if keep is None and older_than is None:
        raise BadInput("prune: say what may go: --keep N, --older-than 30d, or both")
    if keep is not None and keep < 0:
        raise BadInput(f"prune: --keep {keep} must be 0 or more")
    root = locations.runs()
    rows = prunable(scan(root, {}))[keep or 0 :]
    if older_than is not None:
        begun_before_unix = time.time() - _age_s(older_than)
        rows = [row for row in rows if row.when_unix < begun_before_unix]
    rows = [row for row in rows if not (found := against(row.path, root)) or _left_alone(row, found.text)]
    if not rows:
        if json:
            say_json(_as_json([], Deleted(), meant_only=not yes))
        else:
            say("nothing to delete: no ended run without pin, tag and note is meant by that")
        return OK
    return _delete(rows, root, yes=yes, force=False, as_json=json)


def _left_alone(row: RunRow, why: str) -> bool:
    note(f"{row.name} is left alone: {why}")
    return False


def _age_s(text: str) -> float:
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise BadInput(f"prune: --older-than {text!r} is not an age: 12h, 30d or 8w")
    return float(found[1]) * _AGE_S[found[2]]


def _row(name: str, root: Path, *, whole: bool) -> RunRow:
    """Also of a folder whose run.json is not there. `whole`: nobody is asked, so a part of a name will not do."""
    if not name.strip():  # "$RUN" of a variable that is not set must not mean any run
        raise BadInput("delete: RUN is empty; name the runs that are to be deleted")
    here = root / name
    row = row_of(here) if here.parent == root and name not in (".", "..") else None
    if row is None:
        try:
            folder = find_run(name, root)
        except NoSuchRun as unknown:
            raise BadInput(f"delete: {unknown}") from unknown
        if whole and name != folder.name and Path(name).resolve() != folder.path:
            raise BadInput(f"delete: --yes takes whole names: {name!r} is part of {folder.name}")
        row = row_of(folder.path)
        assert row is not None, "find_run has seen its run.json"
    return row


def _delete(rows: list[RunRow], root: Path, *, yes: bool, force: bool, as_json: bool) -> int:
    with told_if_slow(f"adding up the files of {plural(len(rows), 'run')}"):
        for row in rows:
            row.size_bytes = size_of(row.path)
    refused = {row.path: found.text for row in rows if (found := against(row.path, root)) and not (force and found.forced)}
    if not refused and not yes:
        if as_json:
            say_json(_as_json(rows, Deleted(), meant_only=True))
            return OK
        if not _confirmed(rows):
            say("nothing was deleted")
            return NOT_VALID
    with told_if_slow(f"deleting {plural(len(rows), 'run')}"):
        done = Deleted(refused=refused) if refused else remove([row.path for row in rows], root, force=force)
    if as_json:
        say_json(_as_json(rows, done))
    return _told(rows, done, quiet=as_json)


def _confirmed(rows: list[RunRow]) -> bool:
    if not sys.stdin.isatty():
        raise BadInput("delete: there is no terminal to ask on; --yes deletes without asking")
    cells = [[row.name, phase_of(row), row.verdict or "-", fmt.size(row.size_bytes), _labels(row)] for row in rows]
    say(table(["run", "phase", "verdict", "size", ""], cells, right=(3,)))
    size = fmt.size(sum(row.size_bytes for row in rows))
    say(f"\nAll that was recorded of {plural(len(rows), 'run')} ({size}) is deleted for good.")
    return input("Delete? (y/N) ").strip().lower() in ("y", "yes")


def _labels(row: RunRow) -> str:
    return " ".join([*(["PINNED"] if row.pinned else []), *(f"#{tag}" for tag in row.tags), row.note]).strip()


def _told(rows: list[RunRow], done: Deleted, *, quiet: bool) -> int:
    names = {row.path: row.name for row in rows}
    if not quiet:
        for row in rows:
            if row.path in done.paths:
                say(f"{row.name}: deleted, {fmt.size(row.size_bytes)}")
    for path, why in done.refused.items():
        complain(f"{names[path]} is not deleted: {why}")
    if done.refused and not done.paths and len(rows) > len(done.refused):
        complain("nothing was deleted")
    for problem in done.problems:
        complain(problem)
    return NOT_VALID if done.refused or done.problems else OK


def _as_json(rows: list[RunRow], outcome: Deleted, *, meant_only: bool = False) -> dict[str, Any]:
    """`meant`: what would be deleted, when nothing was yet."""
    sizes = {row.path: {"run": row.name, "size_bytes": int(row.size_bytes), "record": str(row.path)} for row in rows}
    if meant_only:
        return {"meant": list(sizes.values()), "deleted": []}
    refused = [{"run": sizes[path]["run"], "why": why} for path, why in outcome.refused.items()]
    return {"deleted": [sizes[path] for path in outcome.paths], "refused": refused, "problems": outcome.problems}


def _rest(root: Path, as_json: bool) -> int:
    left = rests(root)
    with told_if_slow(f"deleting what is left of {plural(len(left), 'run')}"):
        taken, problems = sum(size_of(path) for path in left), remove_rest(root)
    if as_json:
        say_json({"removed": len(left), "size_bytes": int(taken), "problems": problems})
    elif left:
        say(
            f"the rest of {plural(len(left), 'run')} is deleted, {fmt.size(taken)}"
            if not problems
            else "not all could be deleted"
        )
    else:
        say("no deletion was cut short; name the runs that are to be deleted")
    for problem in problems:
        complain(problem)
    return NOT_VALID if problems else OK
