"""Signals while a run is being started: a terminal that is closed, or a `kill`, must leave no more behind than Ctrl-C.

Only the main thread has signals; in any other these change nothing.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any] | int | None


@contextlib.contextmanager
def like_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP do what Ctrl-C does, unless somebody (nohup) has turned them off."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    with _handled(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """For what takes one short request and must not be left half done: an impatient second Ctrl-C waits for it."""
    with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def _handled(handler: _Handler, *numbers: signal.Signals) -> Iterator[None]:
    before: dict[signal.Signals, _Handler] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
