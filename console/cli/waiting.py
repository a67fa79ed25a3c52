"""Saying on stderr what takes so long, and nothing when it does not."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from console.cli.output import note

SILENT_S: Final = 1.0


@contextlib.contextmanager
def told_if_slow(what: str, after_s: float | None = None) -> Iterator[None]:
    """`what`: "reading 2.4 million samples"."""
    timer = threading.Timer(SILENT_S if after_s is None else after_s, note, [f"{what} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
