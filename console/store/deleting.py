"""What stands against deleting a run, and deleting those against which nothing does. For the screen and the command alike."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from console.store.runs import RunRow
from console.typed import typed
from harness.cluster.kube.linkfile import read_link
from harness.cluster.local import head_alive, placed_on, workers_alive
from harness.records.errors import RecordError
from harness.records.labels import read_labels
from harness.records.layout import RunFolder
from harness.records.lock import is_held
from harness.records.removing import GoesOn, remove_rest, set_aside


@dataclass(frozen=True, slots=True)
class Against:
    """Why a run should stay. `forced`: whether force overrules it."""

    text: str
    forced: bool


@dataclass(frozen=True, slots=True)
class Deleted:
    """`problems`: files that are out of sight but still there."""

    paths: list[Path] = field(default_factory=list)
    refused: dict[Path, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def against(path: Path, root: Path) -> Against | None:
    """The weightiest reason; None: nothing stands against it."""
    folder = RunFolder(path)
    name = shlex.quote(folder.name)
    if path == root or path in root.parents:
        return Against("it is the folder that the runs lie in", False)
    if head_alive(folder):
        return Against(f"it goes on; `{typed(f'stop {name}')}` ends it and keeps its record", False)
    if workers := workers_alive(folder):
        return Against(
            f"{workers} of its worker processes live; `{typed(f'restart-head {name}')}` takes them up, then stop ends them", False
        )
    if is_held(folder):
        return Against("a process still holds it (a link that removes its objects, or a head that starts)", False)
    try:
        if read_labels(folder).pinned:
            return Against(f"it is pinned; `{typed(f'pin {name} --off')}` takes the pin out", True)
    except RecordError as error:
        return Against(f"whether it is pinned cannot be read: {error}", True)
    if placed_on(folder) == "kubernetes":
        link = read_link(folder)
        if link is None or not link.cleaned:
            return Against(f"its objects may still be on the cluster; `{typed(f'clean-up {name}')}` shows and removes them", True)
    return None


def delete(paths: Sequence[Path], root: Path, *, force: bool = False) -> Deleted:
    """All of them or, when something stands against one, none. Blocking: a record of 2 GB takes a second or two."""
    refused = {path: found.text for path in paths if (found := against(path, root)) and not (force and found.forced)}
    if refused:
        return Deleted(refused=refused)
    gone: list[Path] = []
    for path in paths:
        try:
            set_aside(RunFolder(path))
        except (GoesOn, RecordError) as error:
            refused[path] = str(error)
        else:
            gone.append(path)
    problems = [problem for folder in _roots(gone) for problem in remove_rest(folder)]
    return Deleted(gone, refused, problems)


def _roots(paths: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(path.parent for path in paths))


def prunable(rows: Iterable[RunRow]) -> list[RunRow]:
    """Ended runs that nobody has pinned or labelled, newest first."""
    found = [row for row in rows if row.state == "ended" and not (row.pinned or row.tags or row.note or row.label_problem)]
    return sorted(found, key=lambda row: row.when_unix, reverse=True)
