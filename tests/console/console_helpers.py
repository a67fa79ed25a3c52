"""Pieces of the console tests that are imported by name (conftest modules must not be)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.css.query import NoMatches
from textual.pilot import Pilot
from textual.widget import Widget

from console.app import PacelineApp
from console.widgets.clock import EVERYTHING

AppMaker = Callable[..., PacelineApp]


class HandClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


LOOK_S = 0.02
LOOKS = 5  # at least, at an app that has work of its own all the time
IDLE_S = 0.001  # of a processor, in a look


async def quiet(min_sleep: float = LOOK_S, max_sleep: float = 1.0) -> None:
    """Until the app has done what it was told to, in place of Textual's `wait_for_idle`, whose arguments it takes.

    That one compares the clock with the processor time that was used, and waits for a second at most. A process that got no
    processor looks idle to it, and one that was stopped for a second has waited long enough, with the key still unread.
    """
    began_s, looks = time.monotonic(), 0
    while looks < LOOKS or time.monotonic() - began_s < max_sleep:
        used_s = time.process_time()
        await asyncio.sleep(LOOK_S)
        await _all_done()
        looks += 1
        if time.process_time() - used_s < IDLE_S and looks * LOOK_S > min_sleep:
            return


async def _all_done() -> None:
    """What the loop can do without waiting for anything is done, and what follows from that."""
    loop: Any = asyncio.get_running_loop()
    turns_without = 0
    for _ in range(10_000):
        await asyncio.sleep(0)
        turns_without = 0 if loop._ready else turns_without + 1
        if turns_without == 3:  # timers that are due and what other threads sent get into the list in the turn after
            return


async def settle(pilot: Pilot[Any], app: PacelineApp) -> None:
    """Let the feed deliver, then paint everything as the render clock would."""
    await pilot.pause()
    paint = getattr(app.screen, "paint", None)
    if paint is not None:
        paint(EVERYTHING)
        await pilot.pause()
        paint(EVERYTHING)
        await pilot.pause()


def text_of(widget: Widget) -> str:
    """What a drawing widget shows, line by line."""
    return "\n".join(widget.render_line(y).text.rstrip() for y in range(widget.content_size.height))


def rewritten(path: Path, text: str) -> None:
    """A second after it was written: clocks of file systems may tick in steps of several milliseconds."""
    before_ns = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before_ns + 1_000_000_000, before_ns + 1_000_000_000))


async def wait_for(true: Callable[[], object], within_s: float = 60.0) -> None:
    """Until it holds; the app goes on meanwhile. A widget that is not there yet is one more thing to wait for."""

    def holds() -> object:
        with contextlib.suppress(NoMatches):
            return true()
        return False

    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, f"not within {within_s:g} s"
        await asyncio.sleep(0.02)
