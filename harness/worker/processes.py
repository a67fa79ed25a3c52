"""One replica process as its worker sees it: launch, command, end, and what its death looked like.

The child leads a process group of its own, so that helpers which an engine starts (workers of a tensor-parallel group)
end with it. It arms PR_SET_PDEATHSIG itself and watches stdin for EOF: a worker that is killed -9 takes it along, and its
guard (guard.py) then takes the helpers.
SIGKILL also ends a process that is stopped (SIGSTOP), SIGTERM does not; hence the grace period, then SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.cluster.procinfo import ended_in_words
from harness.worker.launch import LaunchConfig, SlotLife
from harness.worker.logs import ReplicaLog
from harness.worker.pipes import LineReader, LineWriter

KILL_AFTER_S = 3.0


class ReplicaProcess:
    """A running child. `check` is called on SIGCHLD; the first call that finds it ended returns how, in words."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        command: Sequence[str],
        environ: Mapping[str, str],
        make_config: Callable[[int], LaunchConfig],
        log_path: Path,
        on_status: Callable[[dict[str, Any]], None],
    ) -> None:
        self._loop = loop
        self.log = ReplicaLog(log_path)
        status_read, status_write = os.pipe()
        config = make_config(status_write)
        names = config.slots[0].slot if len(config.slots) == 1 else f"{len(config.slots)} slots from {config.slots[0].slot}"
        try:
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=self.log.fd,
                stderr=self.log.fd,
                pass_fds=(status_write,),
                process_group=0,
                env=environ,
            )
        except OSError:
            self.log.close()
            os.close(status_read)
            raise
        finally:
            os.close(status_write)
        self.pid = self._popen.pid
        self.log.note(f"process {self.pid} starts for {names}")
        assert self._popen.stdin is not None
        self._commands = LineWriter(loop, os.dup(self._popen.stdin.fileno()))
        self._popen.stdin.close()
        self._commands.write(config.line())
        self._on_status = on_status
        self._status = LineReader(loop, status_read, self._heard, lambda: None)
        self._killing: asyncio.TimerHandle | None = None
        self._begun = False
        self.ending = False
        self.never_began = False  # it ended by itself before our code ran in it

    def start(self, life: SlotLife) -> None:
        self._commands.write({"start": life.line()})

    def stop(self, slot: str, incarnation: str) -> None:
        self._commands.write({"stop": slot, "incarnation": incarnation})

    def end(self) -> None:
        """SIGTERM now, SIGKILL after the grace period. Repeats do nothing."""
        if not self.ending:
            self.ending = True
            self._signal(signal.SIGTERM)
            self._killing = self._loop.call_later(KILL_AFTER_S, self.kill)

    def kill(self) -> None:
        self.ending = True
        self._signal(signal.SIGKILL)

    def check(self) -> str | None:
        """How the process ended, or None while it lives. Afterwards the object is closed."""
        code = self._popen.poll()
        if code is None:
            return None
        self._status.drain()  # a reason that it wrote before it ended counts more than its exit code
        self.never_began = code >= 0 and not self._begun
        if self._killing is not None:
            self._killing.cancel()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # helpers that its engine left behind
        ended = ended_in_words(code)
        self.log.note(f"process {self.pid} {ended}")
        self._commands.close()
        self._status.close()
        return ended

    def _heard(self, message: dict[str, Any]) -> None:
        if "begun" in message:
            self._begun = True
        else:
            self._on_status(message)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(number)
