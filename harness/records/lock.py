"""Whose a run's folder is: a head's, or a link's to a head elsewhere. The kernel frees the lock of a process that died."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from harness.records.layout import RunFolder

TRIED_FOR_S = 1.0


class FolderTaken(Exception):
    """Another process holds this run; the text says which."""


@contextlib.contextmanager
def folder_lock(folder: RunFolder, holder: str = "head") -> Iterator[None]:
    """`holder`: what holds folders of this kind. Raises FolderTaken."""
    handle = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _taken(handle):
            owner = os.pread(handle, 64, 0).decode(errors="replace").strip() or "unknown"
            raise FolderTaken(f"{folder.path} is held by the {holder} with process {owner}")
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    """Tried more than once: `is_held` of another process has it for a moment, or for longer where that process is not run."""
    until_s = time.monotonic() + TRIED_FOR_S
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)


def is_held(folder: RunFolder) -> bool:
    """Whether that process lives; a link may still be removing a run whose record it has."""
    try:
        handle = os.open(folder.lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
