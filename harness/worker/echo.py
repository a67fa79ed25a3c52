"""What replicas write to their logs, again on the worker's own output: in a pod that is the only log anybody can read.

A line of `node003-gpu1.log` comes out as `[node003/gpu1] text`, so that a reader can tell replicas apart again; lines of a
process that carries a whole node come as they are. Only whole lines are taken; a file that was emptied begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

_MOST_BYTES = 1 << 20  # of one log at a time


@dataclass(slots=True)
class LogEcho:
    write: Callable[[str], object]
    _offsets: dict[Path, int] = field(default_factory=dict)

    def look(self, logs: Iterable[Path]) -> None:
        """Copy what has been written to these files since the last look."""
        for path in logs:
            try:
                self._copy(path)
            except OSError:
                continue  # not written yet, or gone with its replica

    def _copy(self, path: Path) -> None:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = self._offsets.get(path, 0)
            if size < offset:
                offset = 0
            file.seek(offset)
            read = file.read(_MOST_BYTES)
        whole = read[: read.rfind(b"\n") + 1]
        if not whole and len(read) == _MOST_BYTES:
            whole = read  # one endless line must not hold up the rest
        self._offsets[path] = offset + len(whole)
        node, gpu, number = path.stem.rpartition("-gpu")
        mark = f"[{node}/gpu{number}] " if gpu else ""
        for line in whole.decode("utf-8", "replace").splitlines():
            self.write(f"{mark}{line}\n")
