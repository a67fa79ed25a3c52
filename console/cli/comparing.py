"""`paceline compare`, `scaling` and `definitions`: runs beside each other, fleets of several sizes, and what each figure is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from console import locations
from console.cli.errors import OK, BadInput
from console.cli.found import any_run, attempt_of
from console.cli.output import note, say_json, typed
from console.cli.waiting import told_if_slow

if TYPE_CHECKING:
    from harness.records.layout import RunFolder

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object")]


def compare(
    *runs: Annotated[str, Parameter(help="2 to 8 runs; RUN:2 is attempt 2 of RUN (else the last that measured anything)")],
    baseline: Annotated[str | None, Parameter(help="The run that the others are compared with (the first)")] = None,
    explain: Annotated[bool, Parameter(negative="", help="Formula, window and source of the figures shown")] = False,
    json: AsJson = False,
    csv: Annotated[bool, Parameter(name="--csv", negative="", help="A line a figure and run")] = False,
) -> int:
    """Runs beside each other: figures with 95 % intervals, what their differences are worth, and settings that differ.

    A difference is called better or worse when its 95 % interval leaves zero out and it is 0.5 % or more. What makes runs hard
    to compare (another model, load, limit or fleet) is said first.
    """
    _either("compare", as_json=json, as_csv=csv)
    from console.cli import compared
    from console.cli.view_words import explained, plain, say_csv, say_definitions
    from harness.analysis.comparing import LEAST, MOST, rows_of
    from harness.analysis.comparing import compare as compare_attempts
    from harness.records.reader import Record

    if not LEAST <= len(runs) <= MOST:
        raise BadInput(
            f"compare takes {LEAST} to {MOST} runs, {len(runs)} given; as in `{typed('compare RUN RUN')}`, or RUN:1 RUN:2 "
            "for two attempts of one run"
        )
    sides = [attempt_of(text) for text in runs]
    base = 0 if baseline is None else _place(baseline, sides)
    with told_if_slow(f"reading the samples of {len(sides)} attempts"):
        found = compare_attempts([(Record(folder.path), attempt) for folder, attempt in sides], base)
    if json:
        definitions = {"definitions": explained([row.id for row in found.figures])} if explain else {}
        say_json(plain(found) | definitions)
        return OK
    if csv:
        say_csv(rows_of(found))
    else:
        compared.say_comparison(found)
        if explain:
            say_definitions(explained([row.id for row in found.figures]))
    for remark in found.remarks:
        note(f"record: {remark}")
    return OK


def scaling(
    *runs: Annotated[str, Parameter(help="These runs only (all of the runs folder)")],
    reference: Annotated[
        list[Path], Parameter(negative="", help="A file of published results, beside those that ship (published.toml)")
    ] = [],  # noqa: B006 - cyclopts reads it, nobody writes it
    explain: Annotated[bool, Parameter(negative="", help="Formula, window and source of the figures shown")] = False,
    json: AsJson = False,
    csv: Annotated[bool, Parameter(name="--csv", negative="", help="A line a run")] = False,
) -> int:
    """How a fleet scales with its nodes: tokens/s, a node, a GPU, and efficiency against linear, beside published results.

    At each number of nodes the VALID run with the most tokens/s counts; the others are listed. Efficiency is tokens/s a node over
    those of the smallest number of nodes that counts.
    """
    _either("scaling", as_json=json, as_csv=csv)
    from console.cli import compared
    from console.cli.view_words import explained, plain, say_csv, say_definitions
    from harness.analysis.published import read_references, shipped
    from harness.analysis.scaling import FIGURES, rows_of
    from harness.analysis.scaling import scaling as scale
    from harness.records.layout import list_runs

    references = shipped() + [one for path in reference for one in read_references(path.expanduser())]
    folders = [any_run(run) for run in runs] if runs else list_runs(locations.runs())
    with told_if_slow(f"reading {len(folders):,} runs"):
        found = scale({folder.path: folder for folder in folders}.values(), references)
    definitions = explained(FIGURES) if explain else []
    if json:
        say_json(plain(found) | ({"definitions": definitions} if explain else {}))
    elif csv:
        say_csv(rows_of(found))
    else:
        compared.say_scaling(found, locations.runs() if not runs else None)
        say_definitions(definitions)
    return OK


def definitions(name: str | None = None, /, *, json: AsJson = False) -> int:
    """What each figure is: its formula, the time it is of, and where it comes from. NAME is a figure or a part of its name."""
    from console.cli import compared
    from console.cli.view_words import plain
    from harness.analysis.definitions import DEFINITIONS, define, find

    found = list(DEFINITIONS.values()) if name is None else find(name) or [define(name)]  # define says what is near
    if json:
        say_json({"definitions": plain(found)})
    else:
        compared.say_found(found, whole=name is not None)
    return OK


def _either(command: str, *, as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise BadInput(f"{command}: --json or --csv, not both")


def _place(baseline: str, sides: list[tuple[RunFolder, Any]]) -> int:
    folder, attempt = attempt_of(baseline)
    for number, (path, own) in enumerate(sides):
        if path.path == folder.path and attempt in (None, own):
            return number
    raise BadInput(f"compare: --baseline {baseline} is none of the runs given")
