"""Where a record is put together before it has its name: a dotted folder beside the runs, renamed when all is there.

A killed import leaves only that folder; nobody lists it, and the next import removes it (its lock is free then).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from harness.imports.errors import ImportProblem
from harness.records.layout import RunFolder

_PREFIX: Final = ".importing-"
_ALIVE: Final = "alive"
_SPARE_BYTES: Final = 64 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Staging:
    """Context manager. `run` becomes the run's folder, `unpacked` is for archives and goes away."""

    def __init__(self, root: Path) -> None:
        """Raises ImportProblem, OSError."""
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True)
            _sweep(root)
            self._base = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        except OSError as error:
            why = "it is a file" if root.is_file() else error.strerror
            raise ImportProblem(f"{root}: runs cannot be put there: {why}; set PACELINE_RUNS to another folder") from error
        self._handle = os.open(self._base / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.run = RunFolder(self._base / "run")
        self.run.path.mkdir()
        self.unpacked = self._base / "unpacked"

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        shutil.rmtree(self._base, ignore_errors=True)
        os.close(self._handle)

    def needs(self, n_bytes: int, what: str) -> None:
        """Raises ImportProblem if the disk has no room for that and a little more."""
        free = shutil.disk_usage(self.root).free
        if n_bytes + _SPARE_BYTES > free:
            raise ImportProblem(
                f"{what} takes {n_bytes / 1e6:,.0f} MB, and {self.root} has {free / 1e6:,.0f} MB free; "
                "free some space or set PACELINE_RUNS to another disk"
            )

    def free_name(self, wanted: str) -> str:
        """`wanted`, or wanted-2, -3 …"""
        for n in range(1, 10_000):
            name = wanted if n == 1 else f"{wanted}-{n}"
            if not os.path.lexists(self.root / name):
                return name
        raise ImportProblem(f"{self.root}: {wanted} and {wanted}-2 to -9999 are taken; give another --name")

    def publish(self, name: str) -> RunFolder:
        """Give the record its name. Raises FileExistsError if somebody else took it meanwhile."""
        target = self.root / name
        target.mkdir()  # claims the name; an empty folder is no run
        os.rename(self.run.path, target)
        return RunFolder(target)


def checked_name(name: str) -> str:
    """Raises ImportProblem for what cannot name a folder of runs."""
    if not _NAME.fullmatch(name):
        raise ImportProblem(
            f"--name {name!r} is no name for a run: letters, digits, '.', '_' and '-' (up to 100), the first a letter or digit"
        )
    return name


def made_name(*parts: str) -> str:
    """A name of those parts, with what a name cannot have replaced."""
    joined = "-".join(part for part in parts if part)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", joined).strip("._-")[:80].rstrip("._-") or "imported"


def _sweep(root: Path) -> None:
    """Remove what killed imports left."""
    for left in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if _abandoned(left):
                shutil.rmtree(left, ignore_errors=True)


def _abandoned(folder: Path) -> bool:
    try:
        handle = os.open(folder / _ALIVE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # killed, or about to make it
        return time.time() - folder.stat().st_mtime > 60
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
