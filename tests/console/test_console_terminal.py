"""On a real pseudo-terminal: the true driver, and what happens when the terminal goes away."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

PROGRAM = """
import sys
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
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-c", program])
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        assert b"SYNTHETIC" in read_until(terminal, b"SYNTHETIC", 30)
        os.close(terminal)
        deadline_s = time.monotonic() + 15
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            assert time.monotonic() < deadline_s, "the console outlived its terminal"
            time.sleep(0.05)
        pid = 0
        assert result.read_text() == "detached"
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
