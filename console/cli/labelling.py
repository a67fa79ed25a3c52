"""`paceline tag`, `note` and `pin`: what people say of a run, kept in its labels.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from console import locations
from console.cli.errors import OK, BadInput
from console.cli.output import say, say_json
from harness.records.labels import BadLabel, Labels, change_labels, one_line, read_labels, with_note, with_pin, with_tags
from harness.records.layout import RunFolder, find_run

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print the labels as one JSON object")]


def tag(
    run: str,
    /,
    *tags: str,
    remove: Annotated[bool, Parameter(negative="", help="Take these tags off instead")] = False,
    json: AsJson = False,
) -> int:
    """Put tags on a run, or take them off; without TAG: show its labels. `runs --tag T` and the filter `tag:T` find them."""
    if not tags:
        if remove:
            raise BadInput("tag: --remove needs the TAGs that are to be taken off")
        folder = _meant(run)
        return _told(folder, read_labels(folder), json)
    return _changed(run, lambda labels: with_tags(labels, () if remove else tags, tags if remove else ()), json)


def note(
    run: str,
    /,
    *text: str,
    clear: Annotated[bool, Parameter(negative="", help="Remove the note")] = False,
    json: AsJson = False,
) -> int:
    """Write a run's note (one line, the words need no quotes); without TEXT: show it. `runs note:WORD` finds it."""
    if clear and text:
        raise BadInput("note: --clear removes the note; give TEXT or --clear, not both")
    if not (clear or text):
        folder = _meant(run)
        return _told(folder, read_labels(folder), json)
    if text and not one_line(" ".join(text)):  # "$TEXT" of a variable that is not set must not remove a note
        raise BadInput("note: TEXT is empty; --clear removes the note")
    return _changed(run, lambda labels: with_note(labels, " ".join(text)), json)


def pin(
    run: str, /, *, off: Annotated[bool, Parameter(negative="", help="Take the pin out")] = False, json: AsJson = False
) -> int:
    """Pin a run: it is then not deleted unless that is forced."""
    return _changed(run, lambda labels: with_pin(labels, not off), json)


def _meant(run: str) -> RunFolder:
    if not run.strip():  # "$RUN" of a variable that is not set must not mean any run
        raise BadInput("RUN is empty; name a run")
    return find_run(run, locations.runs())


def _changed(run: str, change: Callable[[Labels], Labels], as_json: bool) -> int:
    folder = _meant(run)
    try:
        labels = change_labels(folder, change)
    except BadLabel as problem:
        raise BadInput(f"{folder.name}: {problem}") from problem
    return _told(folder, labels, as_json)


def _told(folder: RunFolder, labels: Labels, as_json: bool) -> int:
    if as_json:
        say_json({"run": folder.name, "tags": labels.tags, "note": labels.note, "pinned": labels.pinned})
        return OK
    said = [f"tags {' '.join(labels.tags)}"] if labels.tags else []
    said += [f"note {labels.note}"] if labels.note else []
    said += ["pinned"] if labels.pinned else []
    say(f"{folder.name}: {'; '.join(said) or 'no tags, no note, not pinned'}")
    return OK
