"""One attempt as the supervisor sees it: a driver process, a private pipe to it, and how it ended.

The pipe is a PAIR over ipc in a folder only this user can enter. Whatever happens to the driver (it ends by itself,
is told to, crashes, hangs, is killed) `ended` is set exactly once, with a reason that a person can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

from harness.cluster.procinfo import ended_in_words
from harness.driver.config import DriverConfig
from harness.head.roster import Replica
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord
from harness.spec import RunSpec
from harness.wire import attempt as down
from harness.wire.frames import WireError, encode
from harness.wire.pump import Pump

_START_S = 120.0  # to load the dataset and listen
_SILENT_S = 15.0  # the driver reports ten times a second
_QUIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the load ended. `verdict` is set when it was the head's or an operator's decision."""

    ok: bool
    reason: str
    verdict: str = ""


class Attempt:
    def __init__(
        self,
        record: AttemptRecord,
        spec: RunSpec,
        folder: RunFolder,
        context: zmq.Context[zmq.Socket[bytes]],
        on_message: Callable[[down.ToSupervisor], None],
    ) -> None:
        self.record = record
        self.spec = spec
        self.number = record.number
        self.folder = folder.attempt(record.number)
        self.log = folder.log(f"driver-{record.number}")
        self.endpoint = ""
        self.phase = "starting"
        self.in_pool: set[tuple[str, str]] = set()  # (slot, incarnation) whose data connection has stood
        self.acts: list[tuple[str, str]] = []  # (command, slot) of operators and policies
        self.ended = asyncio.Event()
        self.outcome: Outcome | None = None
        self._run_folder = folder
        self._context = context
        self._on_message = on_message
        self._process: subprocess.Popen[bytes] | None = None
        self._private = ""
        self._pump: Pump | None = None
        self._connected = False
        self._unsaid: list[down.ToDriver] = []
        self._heard_s = time.monotonic()
        self._decided: Outcome | None = None
        self._quit_by_s: float | None = None
        self._gone = False  # the process, at the last look

    # --- life --------------------------------------------------------------------------------------------

    def start(self, slots: list[str], expect: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._private = tempfile.mkdtemp(prefix="paceline-")
        pair = self._context.socket(zmq.PAIR)
        pair.sndhwm = pair.rcvhwm = 0
        pair.linger = 0
        pair.bind(f"ipc://{self._private}/pair")
        self._pump = Pump(asyncio.get_running_loop(), pair, self._on_frames)
        config = DriverConfig(
            run=self._run_folder.name,
            attempt=self.number,
            epoch=self.record.epoch,
            spec=self.spec.model_dump_json(),
            slots=slots,
            expect=expect,
            pair=f"ipc://{self._private}/pair",
            bind=self.spec.cluster.listen,
            advertise=self.spec.cluster.advertise or os.environ.get("POD_IP"),
            keys=str(self._run_folder.keys),
            folder=str(self.folder),
            dataset_base=os.getcwd(),
        )
        config.save(self.folder / "driver.json")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.driver", str(self.folder / "driver.json")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._heard_s = time.monotonic()

    @property
    def running(self) -> bool:
        return self._process is not None and not self.ended.is_set()

    @property
    def ending(self) -> bool:
        """Its end has been decided; the driver flushes or drains."""
        return self._decided is not None

    def end(self, outcome: Outcome) -> None:
        """Decide the end: the driver flushes and goes, or is killed after a few seconds."""
        if self.ended.is_set() or self._decided is not None:
            return
        self._decided = outcome
        self.phase = "stopping"
        self._quit_by_s = time.monotonic() + _QUIT_S
        self.tell(down.Quit(outcome.reason))

    def finish(self, outcome: Outcome, drain_s: float) -> None:
        """Explore: stop issuing, drain, then end with this outcome."""
        if self.ended.is_set() or self._decided is not None:
            return
        self._decided = outcome
        self.phase = "stopping"
        self._quit_by_s = time.monotonic() + drain_s + _QUIT_S
        self.tell(down.Finish(drain_s))

    def check(self, *, late: bool = False) -> None:
        """Once a second: notice a driver that died or hangs. `late`: the head itself stood still since the last look."""
        if self.ended.is_set() or self._process is None:
            return
        status = self._process.poll()
        now = time.monotonic()
        if late:
            self._heard_s = max(self._heard_s, now - _SILENT_S / 2)
        if status is not None:
            gone_before, self._gone = self._gone, True
            if not gone_before or now - self._heard_s < 0.3:
                return  # its last words may still be in the pipe: between two looks it is emptied
            self._close(Outcome(False, f"the driver {ended_in_words(status)}{self._last_words()}"))
        elif self._quit_by_s is not None and now > self._quit_by_s:
            self.kill()
        elif now - self._heard_s > (_SILENT_S if self.endpoint else _START_S):
            silent = now - self._heard_s
            self.kill()
            self._close(Outcome(False, f"the driver was silent for {silent:.0f} s and has been killed{self._last_words()}"))

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def _close(self, outcome: Outcome) -> None:
        if self.ended.is_set():
            return
        self.outcome = self._decided or outcome
        if self._pump is not None:
            self._pump.close()
            self._pump = None
        shutil.rmtree(self._private, ignore_errors=True)
        self.ended.set()

    def reap(self) -> None:
        """After the end: wait for the process, killing one that lingers. Blocks for seconds: not on the loop."""
        if self._process is None:
            return
        try:
            self._process.wait(3)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait(5)

    def _last_words(self) -> str:
        lines = tail(self.log, 3)
        return f"; its log ends: {' | '.join(lines)}" if lines else ""

    # --- the pipe ----------------------------------------------------------------------------------------

    def tell(self, message: down.ToDriver) -> None:
        """What is said before the driver has connected waits here: a PAIR without a peer takes nothing."""
        if self._connected and self._pump is not None:
            self._pump.send((encode(message),))
        else:
            self._unsaid.append(message)

    def admit(self, replica: Replica) -> None:
        self.tell(down.Admit(replica.slot, replica.index, replica.incarnation, replica.nth, replica.role))

    def _on_frames(self, frames: list[bytes]) -> None:
        self._heard_s = time.monotonic()
        if not self._connected:
            self._connected = True
            for unsaid in self._unsaid:
                self.tell(unsaid)
            self._unsaid.clear()
        try:
            message = down.TO_SUPERVISOR.decode(frames[0])
        except WireError as error:
            self._decided = self._decided or Outcome(False, f"the driver's message cannot be read: {error.reason}")
            self.kill()
            return
        if isinstance(message, down.DriverUp):
            self.endpoint = message.endpoint
        elif isinstance(message, down.DriverPhase) and not self.ending:
            self.phase = message.phase
        self._on_message(message)
        if isinstance(message, down.DriverEnd):
            self._close(Outcome(message.ok, message.reason))


def tail(path: Path, lines: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-lines:]
