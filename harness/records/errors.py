"""What the record says when it cannot be written or read: the path, and a reason in words."""

from __future__ import annotations

import errno
from pathlib import Path

_IN_WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file may not grow further (file size limit)",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.ENOENT: "it does not exist",
    errno.EIO: "the disk reports an input/output error",
}
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class RecordError(Exception):
    """`path` could not be written or read; `reason` is for people. `full` tells a full disk from other trouble."""

    def __init__(self, path: Path, reason: str, *, full: bool = False) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.full = full

    @classmethod
    def from_os(cls, path: Path, act: str, error: OSError) -> RecordError:
        """`act` completes "cannot …": "cannot write: the disk is full"."""
        code = error.errno or 0
        words = _IN_WORDS.get(code, error.strerror or str(error))
        return cls(path, f"cannot {act}: {words}", full=code in _FULL)
