"""Waiting for the end of a run without a console, and what Ctrl-C means meanwhile.

The first Ctrl-C asks the head to stop (it records ABORTED with all that was measured and ends its fleet) and goes on
following; the second ends the run's processes at once. Neither touches a process that is not of this run.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from console.cli.progress import ProgressLines
from console.starting import wait_for_head_to_end
from harness.cluster.interrupts import deaf
from harness.cluster.local import head_alive, kill_run, log_of_start, placed_on
from harness.records.errors import RecordError
from harness.records.journal import read_journal
from harness.records.layout import RunFolder
from harness.records.runfile import close_run, read_run
from harness.wire.client import HeadAddress, HeadClient, HeadUnreachable, Telemetry
from harness.wire.control import FleetSnapshot, JournalNews
from harness.wire.states import ABORTED, RUN_ENDED

_SILENCE_S = 2.0
#: After the last word of the run: its fleet and its head end within this.
_LAST_STEPS_S = 60.0
#: On a cluster the rest of the record is copied here first, over whatever way there is.
_COPY_S = 3600.0


class Interrupts:
    """Counts Ctrl-C; from the second on it interrupts whatever is being waited for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def caught(self) -> Iterator[Interrupts]:
        before = signal.signal(signal.SIGINT, self)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)


def follow(folder: RunFolder, lines: ProgressLines | None = None) -> bool:
    """Until the run has ended and its head is gone. False: it was killed by a second Ctrl-C."""
    lines = lines or ProgressLines(already_s=_age_s(folder))
    with Interrupts().caught() as interrupts:
        try:
            _until_ended(folder, lines, interrupts)
            lines.finish()
            within_s = _COPY_S if placed_on(folder) == "kubernetes" else _LAST_STEPS_S
            if not wait_for_head_to_end(folder, within_s):
                lines.say(f"the head of {folder.name} has not ended {within_s:g} s after its run; see {log_of_start(folder)}")
        except KeyboardInterrupt:
            with deaf():
                kill_run(folder)
            with contextlib.suppress(RecordError):  # a record that cannot say so is still readable
                close_run(folder.path, ABORTED, "ABORTED", "ended at once by a second Ctrl-C")
            lines.say("second Ctrl-C: all processes of the run were ended at once; what was measured is in the record")
            return False
    lines.finish()
    return True


def stop_and_follow(folder: RunFolder, reason: str) -> bool:
    """Wait for the end that the console has asked for; asked here only if the head has no word of it in its journal."""
    lines = ProgressLines(already_s=_age_s(folder))
    if any(entry.what == "act.stop" for entry in read_journal(folder.journal)):
        lines.say(f"{folder.name} is stopping")
    else:
        _ask_to_stop(folder, lines, reason)
    return follow(folder, lines)


def _age_s(folder: RunFolder) -> float:
    """Progress lines carry the run's own clock, whenever they begin."""
    try:
        started_unix = read_run(folder.path).started_unix
    except RecordError:
        return 0.0
    return max(0.0, time.time() - started_unix) if started_unix else 0.0


def _until_ended(folder: RunFolder, lines: ProgressLines, interrupts: Interrupts) -> None:
    asked = False
    while head_alive(folder):
        try:
            address = HeadAddress.read(folder)
            telemetry = Telemetry.of_run(folder.path, timeout_s=0.25)
        except HeadUnreachable:
            time.sleep(0.2)
            continue
        heard_s = time.monotonic()
        try:
            for message in telemetry:
                now_s = time.monotonic()
                if interrupts.count and not asked:
                    asked = True
                    lines.say("Ctrl-C: stopping the load, then the fleet; everything measured is kept (once more: end at once)")
                    _ask_to_stop(folder, lines, "Ctrl-C", abort=True)
                if isinstance(message, FleetSnapshot):
                    lines.snapshot(message)
                    if message.phase in RUN_ENDED:
                        return
                elif isinstance(message, JournalNews):
                    lines.news(message.entries)
                if message is not None:
                    heard_s = now_s
                elif now_s - heard_s > _SILENCE_S:
                    heard_s = now_s
                    if not head_alive(folder) or _elsewhere(folder, address):
                        break
        finally:
            telemetry.close()


def _elsewhere(folder: RunFolder, address: HeadAddress) -> bool:
    """A restarted head listens somewhere else."""
    try:
        return HeadAddress.read(folder) != address
    except HeadUnreachable:
        return False


def _ask_to_stop(folder: RunFolder, lines: ProgressLines, reason: str, *, abort: bool = False) -> None:
    try:
        with HeadClient.of_run(folder.path) as head:
            reply = head.command("stop", {"abort": abort}, reason=reason, timeout_s=15.0)
    except HeadUnreachable as error:
        lines.say(f"{error}; Ctrl-C once more ends the run's processes at once")
        return
    lines.say(reply.message if reply.ok else f"stop refused: {reply.message}")
