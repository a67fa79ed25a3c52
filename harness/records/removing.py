"""Deleting runs: first out of sight with one rename, then file by file. A kill in between leaves no half run in any list.

What waits to be removed lies in `.deleted/` beside the runs, one folder a run, where no list of runs looks.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Final

from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.lock import FolderTaken, folder_lock

DELETED: Final = ".deleted"


class GoesOn(Exception):
    """A process holds the run; the text says which."""


def set_aside(folder: RunFolder) -> Path:
    """Out of sight at once, all of it or nothing; where it lies now. Raises GoesOn and RecordError."""
    path = folder.path
    if path.is_symlink():
        raise RecordError(path, f"is a link to {os.readlink(path)}: delete the run there, and remove the link")
    waiting = path.parent / DELETED
    aside = waiting / f"{os.fsdecode(os.fsencode(path.name)[:200])}.{time.time_ns()}"
    try:
        waiting.mkdir(exist_ok=True)
        with folder_lock(folder):  # a head that starts now finds the folder held, then gone
            path.rename(aside)
    except FolderTaken as taken:
        _drop_if_empty(waiting)
        raise GoesOn(str(taken)) from taken
    except OSError as error:
        _drop_if_empty(waiting)
        if error.errno in (errno.EBUSY, errno.EXDEV):
            raise RecordError(path, "cannot delete: it is a file system of its own (a mount)") from error
        raise RecordError.from_os(path, "delete", error) from error
    return aside


def remove_rest(root: Path) -> list[str]:
    """Remove what waits to be removed, whoever set it aside; what could not be, in words."""
    problems = []
    for path in rests(root):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # somebody else removes it, too
        except OSError as error:
            problems.append(str(RecordError.from_os(Path(error.filename or path), "delete", error)))
    _drop_if_empty(root / DELETED)
    return problems


def rests(root: Path) -> list[Path]:
    """Runs whose deletion has not come to its end."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(root / DELETED) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _drop_if_empty(waiting: Path) -> None:
    try:
        waiting.rmdir()
    except OSError:
        return
