"""A process named so that it cannot be confused with a later one of the same pid: pid and start time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot; None when there is no such process (or only its zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(pid: int, ticks: int | None) -> bool:
    now = start_ticks(pid)
    return now is not None and (ticks is None or now == ticks)


def end_group(pid: int, ticks: int | None, *, grace_s: float) -> None:
    """SIGTERM to the process, then SIGKILL to its whole group, whether or not the leader is still there."""
    if is_alive(pid, ticks):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and is_alive(pid, ticks):
            time.sleep(0.02)
    kill_group(pid, ticks)


def kill_group(pid: int, ticks: int | None) -> None:
    """`ticks` None: only for a process that the caller started itself and has not reaped."""
    if pid <= 1 or pid == os.getpid():
        return  # 0 means the caller's own group, 1 everybody's ancestor
    if ticks is not None and (now := start_ticks(pid)) is not None and now != ticks:
        return  # somebody else's process has this number now
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def ended_in_words(status: int) -> str:
    """How a process ended, from its return code; completes "the process …"."""
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    if status - 128 in (signal.SIGTERM, signal.SIGINT):
        return f"ended after {signal.Signals(status - 128).name}"
    return "ended by itself (exit code 0)" if status == 0 else f"ended with exit code {status}"
