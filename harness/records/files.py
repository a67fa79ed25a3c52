"""Putting bytes on disk so that a reader sees all of them or none, and reading what may be no file at all.

Written aside in the same folder under a dotted `.tmp` name, flushed to the disk, then renamed: the rule that lets
a record be read while it is written, and after a kill.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from harness.records.errors import RecordError


def write_atomically(path: Path, content: bytes) -> None:
    """Create or replace `path`. Raises RecordError, and then leaves the old content (or nothing) in place."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(handle, left) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(aside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise RecordError.from_os(path, "write", error) from error


def open_plain(path: Path) -> BinaryIO:
    """For reading. Raises OSError, also for a pipe or a device, which would keep its reader waiting or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no plain file", str(path))


def read_plain(path: Path, most: int | None = None) -> bytes:
    """All of a plain file; of one that has more than `most` bytes nothing. Raises OSError."""
    with open_plain(path) as file:
        if most is not None and (size := os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"it has {size / 1e6:,.0f} MB, and {most / 1e6:,.0f} MB is the most", str(path))
        return file.read()
