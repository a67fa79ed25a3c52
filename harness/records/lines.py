"""A file of lines that only grows: one write(2) a line, unbuffered.

What a full disk refuses waits in memory and goes out, in order, with a later line: half a line at the end of the file is
then continued where it stopped. A process that was killed in the middle of a line leaves it; the next one starts on a new
line. One writer a file (the head that holds the run's lock).
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.records.errors import RecordError
from harness.records.files import read_plain


class LineFile:
    def __init__(self, path: Path) -> None:
        """Raises RecordError."""
        self.path = path
        self._waiting = bytearray()
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._handle).st_size
            if size and os.pread(self._handle, 1, size - 1) != b"\n":
                self._waiting += b"\n"
        except OSError as error:
            raise RecordError.from_os(path, "open", error) from error

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)

    def add(self, line: bytes) -> None:
        """Without its newline. Goes out with the next `flush`."""
        self._waiting += line + b"\n"

    def flush(self) -> None:
        """Write what waits. Raises RecordError, and then keeps the rest."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._handle, self._waiting)]
        except OSError as error:
            raise RecordError.from_os(self.path, "write", error) from error

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def read_lines(path: Path) -> tuple[list[bytes], bytes]:
    """Whole lines, and what follows the last newline. A missing file has none. Raises RecordError."""
    try:
        content = read_plain(path)
    except FileNotFoundError:
        return [], b""
    except OSError as error:
        raise RecordError.from_os(path, "read", error) from error
    *lines, last = content.split(b"\n")
    return lines, last
