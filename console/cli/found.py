"""Which run is meant, and whether its head lives."""

from __future__ import annotations

import re

from console import locations
from console.cli.errors import HeadDied
from console.cli.output import note, typed
from console.cli.remote import dead_links, is_followed, revived, unknown_here
from console.store.runs import RunRow
from harness.cluster.base import ClusterError
from harness.cluster.local import head_alive, placed_on
from harness.records.errors import RecordError
from harness.records.layout import NoSuchRun, RunFolder, find_run, list_runs
from harness.records.runfile import RunFile, read_run
from harness.wire.states import RUN_ENDED


def phase_in_words(run: RunFile, folder: RunFolder) -> str:
    """What run.json says, unless its head is gone without having ended the run."""
    if run.phase not in RUN_ENDED and not head_alive(folder):
        return f"{run.phase}, {_what_is_lost(folder)}"
    return run.phase


def phase_of(row: RunRow) -> str:
    """The same of a row of the list of runs."""
    if row.state == "damaged":
        return "record cannot be read"
    if row.state == "head gone":
        return f"{row.phase}, {_what_is_lost(RunFolder(row.path))}"
    return row.phase or "starting"


def _what_is_lost(folder: RunFolder) -> str:
    if placed_on(folder) != "kubernetes":
        return "head gone"
    return "link dead" if is_followed(folder) else "off its cluster"


def any_run(which: str | None) -> RunFolder:
    """For looking: the run meant, or the newest."""
    return find_run(which, locations.runs())


def attempt_of(text: str) -> tuple[RunFolder, int | None]:
    """RUN or RUN:N; a run whose own name ends like that is taken by its name."""
    try:
        return find_run(text, locations.runs()), None
    except NoSuchRun:
        parts = re.fullmatch(r"(.+):(\d{1,9})", text)
        if parts is None:
            raise
    return find_run(parts[1], locations.runs()), int(parts[2])


def newest_run(which: str | None) -> RunFolder:
    """For following: the run meant; else the newest that is going on; else the newest."""
    if which is not None:
        try:
            folder = _meant(which)
        except NoSuchRun as unknown:
            folder, _ = unknown_here(which, unknown)
        if not head_alive(folder):
            _try_to_follow(folder)
        return folder
    going_on = next((folder for folder in list_runs(locations.runs()) if head_alive(folder)), None)
    if going_on is None and len(dead := dead_links()) == 1:
        _try_to_follow(going_on := dead[0])
    return going_on if going_on is not None else find_run(None, locations.runs())


def _try_to_follow(folder: RunFolder) -> None:
    """A run on a cluster may go on although nothing of this machine follows it; its record so far can be looked at anyway."""
    try:
        revived(folder)
    except (HeadDied, ClusterError) as error:
        note(f"{folder.name}: {error}")


def live_run(which: str | None) -> RunFolder:
    """For acting: the run meant, or the newest whose head lives. A run on a cluster whose link has ended is followed again, if
    it is named or no other can be meant."""
    if which is not None:
        folder = _meant(which)
        if head_alive(folder) or revived(folder):
            return folder
        run = try_read(folder)
        if run is not None and run.phase in RUN_ENDED:
            raise NoSuchRun(f"{folder.name} has ended ({run.phase}); `{typed(f'show {folder.name}')}` shows how")
        if placed_on(folder) == "kubernetes":
            raise NoSuchRun(f"{folder.name} is no longer on its cluster; `{typed(f'show {folder.name}')}` shows what is recorded")
        raise NoSuchRun(f"{folder.name} has lost its head; `{typed(f'restart-head {folder.name}')}` starts a new one")
    root = locations.runs()
    for folder in list_runs(root):
        if head_alive(folder):
            return folder
    dead = dead_links()
    if len(dead) == 1 and revived(dead[0]):
        return dead[0]
    if dead:
        names = ", ".join(folder.name for folder in dead[:5])
        raise NoSuchRun(f"the links of {len(dead)} runs on clusters have ended, name the one that is meant: {names}")
    raise NoSuchRun(f"no run is going on in {root}; `{typed('runs')}` lists what is there, `{typed('run SPEC')}` starts one")


def _meant(which: str) -> RunFolder:
    """Of several runs that fit, the only one that is going on."""
    try:
        return find_run(which, locations.runs())
    except NoSuchRun:
        going_on = [folder for folder in list_runs(locations.runs()) if which in folder.name and head_alive(folder)]
        if len(going_on) == 1:
            return going_on[0]
        raise


def ended_run(which: str) -> RunFolder | None:
    """The run meant, if it has ended: there is a record to open, and nobody to follow. None also for a name that fits none."""
    try:
        folder = _meant(which)
    except NoSuchRun:
        return None
    if head_alive(folder) or is_followed(folder):
        return None
    run = try_read(folder)
    return folder if run is not None and run.phase in RUN_ENDED else None


def headless_run(which: str) -> RunFolder | None:
    """The run meant, if its head has died without ending it. On a cluster the head may live: only its link is gone."""
    folder = find_run(which, locations.runs())
    if is_followed(folder):
        return None
    run = try_read(folder)
    return folder if not head_alive(folder) and run is not None and run.phase not in RUN_ENDED else None


def try_read(folder: RunFolder) -> RunFile | None:
    """None for a record that cannot be read; listings name it instead of failing."""
    try:
        return read_run(folder.path)
    except RecordError:
        return None
