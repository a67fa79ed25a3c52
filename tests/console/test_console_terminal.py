"""On a real pseudo-terminal: the true driver, and what happens when the terminal goes away."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any, cast

from textual.drivers._writer_thread import WriterThread

from console.terminal import Losable

# A session leader that takes the terminal as its own, so that losing it means SIGHUP as it does for a person.
PROGRAM = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.path.insert(0, {folder!r})
from sample import sample_app
result = sample_app().run()
open({result!r}, "w").write(str(result))
"""


def read_until(fd: int, wanted: bytes, seconds: float) -> bytes:
    seen, deadline_s = b"", time.monotonic() + seconds
    while wanted not in seen and time.monotonic() < deadline_s:
        if select.select([fd], [], [], 0.1)[0]:
            seen += os.read(fd, 65536)
    return seen


def test_losing_the_terminal_detaches(tmp_path: Path) -> None:
    result = tmp_path / "result"
    program = PROGRAM.format(folder=str(Path(__file__).parent), result=str(result))
    terminal, inside = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    console = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(inside)
    try:
        assert b"SYNTHETIC" in read_until(terminal, b"SYNTHETIC", 60)
        os.close(terminal)
        console.wait(60)
        assert result.read_text() == "detached"
    finally:
        console.kill()
        console.wait(5)


class GoneTerminal:
    """What a file of a closed terminal does."""

    def write(self, text: str) -> None:
        raise OSError(5, "Input/output error")

    flush = fileno = write


def test_nobody_waits_on_the_writer_of_a_lost_terminal() -> None:
    told: list[str] = []
    writer = WriterThread(cast(Any, Losable(cast(Any, GoneTerminal()), lambda: told.append("lost"))))
    writer.start()

    def write_more_than_is_queued() -> None:
        for _ in range(200):
            writer.write("x")
        writer.stop()

    waiting = threading.Thread(target=write_more_than_is_queued, daemon=True)
    waiting.start()
    waiting.join(10)
    assert not waiting.is_alive()
    assert told == ["lost"]
