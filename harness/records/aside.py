"""A folder beside what is being made: what is whole takes its place by a rename, and what is not is gone."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def folder_aside(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder there, closed to others, that goes with the block unless it was renamed. Raises OSError.

    It has a name before it is there: `tempfile.mkdtemp` would leave it behind where a signal ends the process just then.
    """
    aside = parent / f"{prefix}{secrets.token_hex(6)}"
    try:
        aside.mkdir(mode=0o700)
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
