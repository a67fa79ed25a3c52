"""Programs of others, run beside us: a scorer of code, an official script. Never in this process, never in a shell.

Each is the leader of its own process group, which is killed at the end whatever happened: a scorer that executes generated
code may leave children behind. What it prints goes into a file that stays.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.mlperf.accuracy.errors import ScoringError

_TOLD_LINES = 5
_READ_BYTES = 4 << 20


def words_of(command: str, places: Mapping[str, str]) -> list[str]:
    """The command as words, with {answers} and the like put in. Raises ScoringError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ScoringError(f"the command {command!r} cannot be split into words: {error}") from error
    if not words:
        raise ScoringError("the command is empty; it names a program and its arguments, as in 'python3 score.py {answers} {out}'")
    for name, value in places.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def run(words: Sequence[str], folder: Path, output: Path, deadline_s: float, *, must_succeed: bool = True) -> str:
    """What it printed, whose end is returned and all of which stands in `output`. Raises ScoringError."""
    shown = shlex.join(words)
    shown = shown if len(shown) <= 200 else shown[:197] + "…"
    with output.open("wb") as file:
        try:
            process = subprocess.Popen(
                words, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise ScoringError(f"{words[0]} cannot be started: {error.strerror or error}") from error
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise ScoringError(f"{shown} did not end within {deadline_s:g} s and has been stopped; it printed {output}") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = _end_of(output)
    if status and must_succeed:
        last = " | ".join([line.strip() for line in text.splitlines() if line.strip()][-_TOLD_LINES:]) or "nothing"
        raise ScoringError(f"{shown} failed with status {status}; its last words ({output}): {last}")
    return text


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _READ_BYTES))
        return file.read().decode(errors="replace")
