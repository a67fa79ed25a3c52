"""`paceline export` and `paceline system`: a submission made of records, and the description of the system it ran on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from console.cli.errors import NOT_VALID, OK, BadInput
from console.cli.found import any_run, attempt_of
from console.cli.output import note, plural, say, say_json, typed
from console.cli.waiting import ended_in_order

if TYPE_CHECKING:
    from harness.mlperf.submission.candidates import Candidate
    from harness.mlperf.submission.plan import Plan
    from harness.mlperf.submission.tree import Written

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON")]
_ORGANISATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def export_app(group: Group) -> App:
    return _app("export", "Write runs in the form that others ask for.", group, mlperf)


def system_app(group: Group) -> App:
    return _app("system", "Describe the system for a submission: draft the file, or say what it misses.", group, describe, check)


def _app(name: str, about: str, group: Group, *commands: Any) -> App:
    app = App(name=name, help=about, group=group, default_parameter=Parameter(show_default=False), version_flags=[])
    for command in commands:
        app.command(command)
    return app


def mlperf(
    *runs: Annotated[str, Parameter(help="Runs, or single attempts as RUN:N")],
    submitter: Annotated[str, Parameter(help="The organisation, as it names its folder")],
    system: Annotated[Path, Parameter(help="System description (see `paceline system describe`)")],
    division: Annotated[Literal["closed", "open"], Parameter(help="closed or open (closed)")] = "closed",
    out: Annotated[Path | None, Parameter(help="Folder to make (mlperf-v6.1-SUBMITTER)")] = None,
    force: Annotated[
        bool, Parameter(negative="", help="Write the tree although it cannot be submitted, and mark it as such")
    ] = False,
    json: AsJson = False,
) -> int:
    """Write an MLPerf Inference v6.1 submission (datacenter): systems, results with logs, compliance, src and docs.

    The attempts of all RUNs are sorted into Offline, Server and Interactive (Server run as MODEL-interactive), and within
    each into performance, accuracy and compliance tests. A set that is incomplete, not VALID, or not as the rules want it is
    refused with every reason at once. Synthetic runs can never be submitted.

    The open division does without the accuracy gate, the range of tokens per sample, compliance tests, and a complete set of
    scenarios; seeds, durations, token limits and the absence of errors are asked of it too.
    """
    from harness.mlperf.submission.plan import make_plan
    from harness.mlperf.submission.system import read_system
    from harness.mlperf.submission.tree import check_room, write_tree

    if not runs:
        raise BadInput(f"export mlperf: name at least one run ({typed('runs')} lists them)")
    if not _ORGANISATION.fullmatch(submitter):
        raise BadInput(f"--submitter {submitter!r}: it names a folder; letters, digits and . _ - are allowed")
    described, candidates = read_system(system), _candidates(runs)
    where = (out or Path(f"mlperf-v6.1-{submitter}")).absolute()
    note(f"reading {plural(len(candidates), 'attempt')}: logs, samples and the hash of accuracy logs")
    plan = make_plan(candidates, described, submitter, division)
    written = None
    if plan.units and (plan.submittable or force):
        check_room(plan, where)
        note(f"writing {where}")
        with ended_in_order():
            written = write_tree(plan, where)
    if json:
        say_json(_as_json(plan, written))
    else:
        _say(plan, written)
    return OK if written is not None else NOT_VALID


def describe(
    run: str | None = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="File to write, which must not exist (stdout)")] = None,
    json: AsJson = False,
) -> int:
    """Draft a system description (TOML) from facts: of this node, and with RUN of what its record says.

    What cannot be known stays empty, with a comment that says what to write. On a cluster, run it on a GPU node: the head's
    hardware is not the system's.
    """
    from harness.mlperf.submission.describing import as_toml, draft
    from harness.mlperf.submission.inventory import Inventory

    found = draft(Inventory(), any_run(run) if run is not None else None)
    if out is not None:
        _write_new(out, as_toml(found))
    if json:
        facts = {key: {"value": fact.value, "source": fact.source} for key, fact in found.facts.items()}
        say_json({"facts": facts, "remarks": found.remarks, "out": str(out) if out is not None else None})
    elif out is None:
        say(as_toml(found).rstrip("\n"))
    if out is not None:
        note(f"{out}: {plural(len(found.facts), 'key')} known; `{typed(f'system check {out}')}` says what is missing")
    return OK


def _write_new(out: Path, text: str) -> None:
    """All of it or nothing. Raises BadInput."""
    try:
        file = out.open("x", encoding="utf-8")
    except FileExistsError:
        raise BadInput(f"--out {out}: it is there already; give another name") from None
    except OSError as error:
        raise BadInput(f"--out {out}: {error.strerror}; give another place") from error
    try:
        with file:
            file.write(text)
    except OSError as error:
        out.unlink(missing_ok=True)
        raise BadInput(f"--out {out}: {error.strerror}; free some space or give another place") from error


def check(file: Annotated[Path, Parameter(help="System description (TOML)")], /, *, json: AsJson = False) -> int:
    """Say what a system description lacks for a submission; exit code 1 if anything."""
    from harness.mlperf.submission.demands import DEMANDS
    from harness.mlperf.submission.system import measurement_problems, problems_of, read_system

    described = read_system(file)
    missing = problems_of(described)
    named = [benchmark for benchmark in DEMANDS if benchmark in described.measurements]
    for benchmark in named or ["all models"]:
        missing += measurement_problems(described, benchmark)
    if json:
        say_json({"system": described.id, "complete": not missing, "missing": missing})
    else:
        for problem in missing:
            say(problem)
        say(
            f"{file}: {plural(len(missing), 'gap')} to fill"
            if missing
            else f"{file}: complete; its files are named {described.id}"
        )
    return NOT_VALID if missing else OK


def _candidates(runs: tuple[str, ...]) -> list[Candidate]:
    """Each attempt once, however often it is named."""
    from harness.mlperf.submission.candidates import attempts_of

    found: dict[tuple[Path, int], Candidate] = {}
    for which in runs:
        for candidate in attempts_of(*attempt_of(which)):
            found[candidate.run_folder.path, candidate.attempt.number] = candidate
    return list(found.values())


def _as_json(plan: Plan, written: Written | None) -> dict[str, Any]:
    return {
        "submittable": plan.submittable,
        "division": plan.division,
        "submitter": plan.submitter,
        "system": plan.system.id,
        "reasons": plan.reasons,
        "parts": [
            {"benchmark": unit.benchmark, "scenario": unit.folder, "part": part, "attempt": candidate.name}
            for unit in plan.units
            for part, candidate in unit.parts.items()
        ],
        "left_out": plan.left_out,
        "out": str(written.out) if written is not None else None,
        "to_fill_in": written.to_fill_in if written is not None else [],
    }


def _say(plan: Plan, written: Written | None) -> None:
    for unit in plan.units:
        parts = ", ".join(f"{part} {candidate.name}" for part, candidate in unit.parts.items())
        say(f"{unit.benchmark} {unit.folder}: {parts}")
    for left in plan.left_out:
        say(f"left out: {left}")
    if plan.reasons:
        say(f"\ncannot be submitted, {plural(len(plan.reasons), 'reason')}:")
        for reason in plan.reasons:
            say(f"  {reason}")
    if written is None:
        helps = (
            "; --force writes the tree, marked as not submittable"
            if plan.units
            else ": no attempt has a place in the tree, which --force does not change"
        )
        say(f"\nnothing was written{helps}")
        return
    say(f"\nwritten {written.out}" + ("" if plan.submittable else "  NOT SUBMITTABLE (NOT_SUBMITTABLE.md says why)"))
    for path in written.to_fill_in:
        say(f"  to fill in: {path}")
