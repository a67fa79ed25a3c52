"""The log file of a replica process: written by the process itself, bounded by the worker.

The process has the file as stdout and stderr (append mode), so that it can never block on its worker and its last words
survive any death. The worker looks at the size once a second and, above the limit, keeps the newest bytes in `<name>.1`
and empties the file; with append mode the writer simply goes on at the start.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 8 * 1024 * 1024
TAIL_LINES = 20
_TAIL_BYTES = 8192
_LINE_CHARACTERS = 400


class ReplicaLog:
    """Opened for one process; `fd` is what the child inherits."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._limit = limit_bytes
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._start = os.fstat(self.fd).st_size  # this process's part of the file begins here

    def note(self, text: str) -> None:
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03d}"  # as logging writes it
        with suppress(OSError):  # a full disk must not stop the worker
            os.write(self.fd, f"--- {stamp} worker: {text}\n".encode())

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """The last lines that this process wrote."""
        size = os.fstat(self.fd).st_size
        start = self._start if self._start <= size else 0  # emptied since
        begin = max(start, size - _TAIL_BYTES)
        text = os.pread(self.fd, size - begin, begin).decode("utf-8", "replace")
        found = text.splitlines()
        if begin > start and found:
            found = found[1:]  # cut in its middle
        return [line[:_LINE_CHARACTERS] for line in found[-lines:]]

    def keep_bounded(self) -> None:
        size = os.fstat(self.fd).st_size
        if size <= self._limit:
            return
        kept = os.pread(self.fd, self._limit, size - self._limit)
        aside = self.path.with_name(self.path.name + ".1")
        try:
            aside.write_bytes(kept)
        finally:
            os.ftruncate(self.fd, 0)  # the bound holds even where the disk is full
            self._start = 0

    def close(self) -> None:
        os.close(self.fd)
