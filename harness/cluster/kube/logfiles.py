"""The files that pods' log lines are kept in: bounded, written in batches by a thread.

Results may lie on a network file system that stalls, so the event loop only collects lines; what a stalled disk makes
wait is bounded too, and the file says how many lines are missing. Above its limit a file becomes `<name>.1`, as a worker's
logs do on one machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from harness.cluster.kube.loglines import stamp_of, zoned
from harness.records.layout import RunFolder
from harness.worker.logs import LIMIT_BYTES

_MOST_WAITING_BYTES = 32 * 1024 * 1024
_STAMP_AGAIN_S = 1.0
Batch = dict[str, list[str]]


class LogFiles:
    """Names are those of RunFolder.log: node003, node003/gpu1."""

    def __init__(self, folder: RunFolder, *, limit_bytes: int = LIMIT_BYTES, most_waiting: int = _MOST_WAITING_BYTES) -> None:
        self._folder, self._limit, self._most_waiting = folder, limit_bytes, most_waiting
        self._waiting: Batch = {}
        self._waiting_size = 0
        self._left_out: dict[str, int] = {}
        self._stamped: dict[str, float] = {}  # name → time of its newest line that has one
        self.problem = ""  # of the disk

    def add(self, name: str, text: str, unix: float) -> None:
        """A line without a time gets one, unless it follows another within a second: then it may belong to it."""
        timed = zoned(text, unix)
        if timed is not None or unix - self._stamped.get(name, 0.0) > _STAMP_AGAIN_S:
            self._stamped[name] = unix
            text = timed or f"{stamp_of(unix)} {text}"
        self._collect(name, text)

    def note(self, name: str, text: str, unix: float, who: str = "worker") -> None:
        self._stamped.pop(name, None)  # what follows does not belong to it
        self._collect(name, f"--- {stamp_of(unix)} {who}: {text}")

    def take(self) -> Batch:
        """What waits, for `write`."""
        taken, self._waiting, self._waiting_size = self._waiting, {}, 0
        for name, count in self._left_out.items():
            taken.setdefault(name, []).append(
                f"--- {stamp_of(time.time())} worker: {count} lines left out: the disk was too slow"
            )
        self._left_out = {}
        return taken

    def write(self, batch: Batch) -> None:
        """Blocks: call it in a thread, one at a time."""
        problem = ""
        for name, lines in batch.items():
            try:
                self._append(self._folder.log(name), "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
            except OSError as error:
                problem = f"logs of pods cannot be written: {error.strerror or error}"
        self.problem = problem

    def _collect(self, name: str, line: str) -> None:
        if self._waiting_size > self._most_waiting:
            self._left_out[name] = self._left_out.get(name, 0) + 1
            return
        self._waiting.setdefault(name, []).append(line)
        self._waiting_size += len(line)

    def _append(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        for begin in range(0, len(content), self._limit):
            with path.open("ab") as file:
                file.write(content[begin : begin + self._limit])
                size = file.tell()
            if size > self._limit:
                os.replace(path, path.with_name(path.name + ".1"))
