"""A server of our own: started beside the replica, watched, ended with it.

It runs in a process group of its own that a guard leads (guard.py): whichever way the replica ends, and also when the
server dies and leaves its helpers behind, the whole group goes. Its output goes to the replica's log line by line. Its
exit code is no verdict: `vllm serve` ends with 0 after its engine has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.cluster.procinfo import ended_in_words
from harness.engines.base import ArgumentError, EngineError

log = logging.getLogger("paceline.engine.openai")

GUARD = Path(__file__).with_name("guard.py")
NO_PROGRAM = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EISDIR)
LINE_BYTES = 2000
LINES_KEPT = 40
READ_BYTES = 8192  # at once: of the shortest lines that is 40 ms of logging
READS_AT_ITS_END = 32  # a pipe holds 64 KiB, but helpers that live on may go on writing
LOOK_S = 0.05  # how soon its end is noticed


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def why_taken(port: int) -> str:
    """Whoever listens there would be taken for our server, and be asked, until ours has found out that it cannot."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger are nobody
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


class Server:
    """Not asyncio's subprocess: its wait() lasts until the output is closed, and helpers that live on keep that open."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], stop_s: float) -> None:
        self._command, self._env, self._stop_s = list(command), dict(env), stop_s
        self._loop = asyncio.get_running_loop()
        self._guard: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output = -1  # its stdout and stderr; -1: closed
        self._unread = b""
        self._last: deque[str] = deque(maxlen=LINES_KEPT)

    @property
    def last_line(self) -> str:
        """Its last words, and what sounded like an error shortly before: servers end politely after one."""
        if not self._last:
            return "none, it said nothing"
        last = self._last[-1]
        error = next((line for line in reversed(self._last) if "error" in line.lower()), last)
        return last if error is last else f"{last} (before it: {error})"

    def start(self) -> None:
        self._guard = subprocess.Popen([sys.executable, "-IS", str(GUARD)], stdin=subprocess.PIPE, process_group=0)
        self._output, written = os.pipe()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                env={**os.environ, **self._env},
                process_group=self._guard.pid,
            )
        except OSError as error:
            told = f"fleet.engine_args.command: {self._command[0]!r} cannot be started: {error.strerror or error}"
            if error.errno in NO_PROGRAM:
                raise ArgumentError(f"{told}; the first word must be a program, by its path or found on PATH") from None
            raise EngineError(told) from None
        finally:
            os.close(written)
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._read, 1)
        log.info("server process %d starts: %s", self._process.pid, " ".join(self._command))

    async def ended(self) -> str:
        """Waits for its end; says how it went, in words that complete "the server …"."""
        assert self._process is not None
        while self._process.poll() is None:  # noqa: ASYNC110 - a child tells nobody but who asks
            await asyncio.sleep(LOOK_S)
        self._read()  # what it said last
        return f"{ended_in_words(self._process.returncode)}; last line: {self.last_line}"

    async def stop(self) -> None:
        """SIGTERM to the server, SIGKILL to its group after stop_s or when this is cancelled. Repeats do nothing."""
        try:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ended(), self._stop_s)
        finally:
            self._end_group()
            self._read()
            self._close_output()

    def _end_group(self) -> None:
        guard, self._guard = self._guard, None
        if guard is None:
            return
        os.killpg(guard.pid, signal.SIGKILL)  # it is there: nobody but us reaps the guard, which leads it
        assert guard.stdin is not None
        guard.stdin.close()
        for process in (self._process, guard):
            if process is not None:
                process.wait()  # killed: at once

    def _read(self, most: int = READS_AT_ITS_END) -> None:
        """One that writes without pause must not keep the loop from its other work, hence at most so many reads."""
        for _ in range(most):
            if self._output < 0:
                return
            try:
                chunk = os.read(self._output, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            *lines, self._unread = (self._unread + chunk).replace(b"\r", b"\n").split(b"\n")
            if len(self._unread) > LINE_BYTES or not chunk:  # no line end in sight, or none to come
                lines, self._unread = [*lines, self._unread], b""
            for line in lines:
                self._say(line)
            if not chunk:
                self._close_output()

    def _close_output(self) -> None:
        if self._output >= 0:
            self._loop.remove_reader(self._output)
            os.close(self._output)
            self._output = -1

    def _say(self, line: bytes) -> None:
        text = line[:LINE_BYTES].decode("utf-8", "replace").rstrip()
        if text:
            self._last.append(text)
            log.info("server: %s", text)
