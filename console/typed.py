"""A command in a hint, written as it has to be typed here."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def typed(command: str) -> str:
    """A command as it has to be typed here: `.venv/bin/paceline attach` where `paceline` alone would not be found."""
    return f"{_called(sys.argv[0])} {command}"


def _called(argv0: str) -> str:
    given = Path(argv0)
    if given.name == "__main__.py" and given.parent == Path(__file__).with_name("cli"):
        python = sys.executable
        return f"{'python' if _on_path('python', python) else shlex.quote(python)} -m console.cli"
    if given.name != "paceline" or _on_path("paceline", argv0):
        return "paceline"
    return shlex.quote(argv0)


def _on_path(name: str, file: str) -> bool:
    """Whether typing the name alone would start this very file."""
    found = shutil.which(name)
    return found is not None and Path(found).absolute() == Path(file).absolute()
