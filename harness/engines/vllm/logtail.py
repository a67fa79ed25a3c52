"""What vLLM's processes wrote: their last error, for the reason of a death, and what they told of their start.

vLLM tells a failed start as "Engine core initialization failed. See root cause above": the cause is only in the output of
its child. A replica's output goes to a file, which this process can read back through its own descriptors; where it is a
terminal or a pipe there is nothing to read, and the reason stays as short as vLLM gave it.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress

_TAIL_BYTES = 256 * 1024
_START_BYTES = 4 * 1024 * 1024
_LINES = 400  # what lies before is of another matter
_LINE_CHARACTERS = 300
_LINE_SEARCHED = 4000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Exit|OutOfMemory)): (\S.*)$")
_WORKER = re.compile(r"Worker proc \S+ died unexpectedly(?: \(exit code: -?\d+\))?")
#: What only points elsewhere.
_HOLLOW = (
    "Error: cancelled",
    "Executor failed",
    "initialization failed",
    "See root cause",
    "See stack trace",
    "EngineCore encountered an issue",
)


class LogTail:
    """Reads what was written since it was made."""

    def __init__(self, descriptors: tuple[int, ...] = (1, 2)) -> None:
        self._files: dict[tuple[int, int], tuple[int, int]] = {}  # (device, inode) → own descriptor, size at the beginning
        for descriptor in descriptors:
            with suppress(OSError):
                status = os.fstat(descriptor)
                where = status.st_dev, status.st_ino
                if stat.S_ISREG(status.st_mode) and where not in self._files:
                    self._files[where] = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC), status.st_size

    def last_error(self) -> str:
        """`ValueError: …`; "" if none was written or nothing can be read."""
        for descriptor, start in self._files.values():
            lines = self._lines(descriptor, start)[-_LINES:]
            for line in reversed(lines):
                found = _ERROR.search(line)
                if found and not any(hollow in line for hollow in _HOLLOW):
                    return f"{found[1]}: {found[2]}"[:_LINE_CHARACTERS]
            if died := _WORKER.search("\n".join(lines)):  # killed, since it said nothing itself
                return died[0]
        return ""

    def beginning(self) -> list[str]:
        """Lines since the beginning, of the first 4 MiB: the start of an engine is told there. Long ones are cut, as they are
        searched for expressions."""
        return [
            line[:_LINE_SEARCHED] for descriptor, start in self._files.values() for line in self._first_lines(descriptor, start)
        ]

    @staticmethod
    def _first_lines(descriptor: int, start: int) -> list[str]:
        try:
            begin = start if start <= os.fstat(descriptor).st_size else 0
            text = os.pread(descriptor, _START_BYTES, begin).decode("utf-8", "replace")
        except OSError:
            return []
        return _COLOUR.sub("", text).splitlines()

    @staticmethod
    def _lines(descriptor: int, start: int) -> list[str]:
        try:
            size = os.fstat(descriptor).st_size
            begin = max(start if start <= size else 0, size - _TAIL_BYTES)  # a file that was emptied begins anew
            text = os.pread(descriptor, size - begin, begin).decode("utf-8", "replace")
        except OSError:
            return []
        return _COLOUR.sub("", text).splitlines()

    def close(self) -> None:
        for descriptor, _ in self._files.values():
            with suppress(OSError):
                os.close(descriptor)
        self._files.clear()
