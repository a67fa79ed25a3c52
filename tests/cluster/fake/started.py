"""A process that stands for a container: in a session of its own, its lines read by a thread, ended with all it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from .containers import MARK


@dataclass
class Started:
    """One start of one container. `lines`: what it wrote and nobody has taken yet."""

    running: subprocess.Popen[bytes]
    reader: threading.Thread
    lines: deque[str]

    def over(self) -> int | None:
        """Exit code as Kubernetes writes it: 128 and the signal."""
        code = self.running.poll()
        return code if code is None or code >= 0 else 128 - code

    def finish(self) -> None:
        """It has ended: so does what is left of its session, and its last lines are read."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running.pid, signal.SIGKILL)
        self.reader.join(2.0)


def start(command: list[str], environment: dict[str, str], folder: Path, news: threading.Event) -> Started:
    """`news` is set when there are lines, and when it has ended. Raises OSError."""
    running = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=folder,
        start_new_session=True,
    )
    lines: deque[str] = deque()

    def read() -> None:
        assert running.stdout is not None
        with running.stdout:
            for raw in running.stdout:
                lines.append(raw.decode(errors="replace").rstrip("\n"))
                news.set()
        running.wait()
        news.set()

    reader = threading.Thread(target=read, daemon=True, name=f"log of {running.pid}")
    reader.start()
    return Started(running, reader, lines)


def kill_marked(uids: set[str]) -> None:
    """Every process of this machine that pods of this fake started, however many forks away."""
    marks = {f"{MARK}={uid}".encode() for uid in uids}
    for entry in Path("/proc").iterdir() if marks else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found = marks & set((entry / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(int(entry.name), signal.SIGKILL)
