"""Putting bytes on disk so that a reader sees all of them or none.

Written aside in the same folder under a dotted `.tmp` name, flushed to the disk, then renamed: the rule that lets
a record be read while it is written, and after a kill.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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
