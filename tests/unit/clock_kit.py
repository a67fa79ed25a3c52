"""A clock that a test moves on: what has a deadline meets it at once, and a machine that stalls for seconds changes nothing."""

from __future__ import annotations

import time

import pytest


class Clock:
    """`time.monotonic`, and with it the time of every event loop of this process, with what `passes` has added."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._later_s, self._real = 0.0, time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: self._real() + self._later_s)

    def passes(self, seconds: float) -> None:
        """Timers that this makes due run when the event loop has its next turn."""
        self._later_s += seconds
