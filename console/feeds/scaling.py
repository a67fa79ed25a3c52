"""Scaling a run from a console: `paceline scale` in a process of its own, whose words come back as the answer.

The workers' Job is changed with the user's rights, and a fleet that shrinks drains first, which may take minutes: a process
of its own goes on when the console is left meanwhile. What it says is appended to logs/scale.log of the run.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

from harness.records.layout import RunFolder

_LOOK_EVERY_S: Final = 0.1
_MOST_BYTES: Final = 64 << 10


def arguments(run: Path, nodes: int, reason: str, *, force: bool) -> list[str]:
    """As they are typed behind `paceline`."""
    more = [*(["--reason", reason] if reason else []), *(["--force"] if force else [])]
    return ["scale", str(run), str(nodes), *more]


async def scale(run: Path, nodes: int, reason: str, *, force: bool = False) -> tuple[bool, str]:
    """(whether it was done, what was said). Cancelled, it is no longer waited for; it goes on."""
    log = RunFolder(run).log("scale")
    try:
        process, begin = _begun(log, arguments(run, nodes, reason, force=force))
    except OSError as error:
        return False, f"`paceline scale` cannot be started: {error.strerror or error}"
    while True:
        code = process.poll()
        if code is not None:
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    said = _said(log, begin, run.name)
    if code == 0:
        return True, said or "done"
    return False, said or f"`paceline scale` ended with exit code {code} and said nothing; see {log}"


def _begun(log: Path, words: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """And where in the log its words begin."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as said:
        begin = said.tell()
        command = [sys.executable, "-m", "console.cli", *words]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True), begin


def _said(log: Path, begin: int, run: str) -> str:
    try:
        with log.open("rb") as words:
            words.seek(begin)
            lines = words.read(_MOST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    told = [line.removeprefix(f"{run}: ").removeprefix("scale refused: ") for line in lines if line.strip()]
    return "; ".join(line for line in told if " still drain " not in line)
