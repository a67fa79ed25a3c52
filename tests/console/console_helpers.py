"""Pieces of the console tests that are imported by name (conftest modules must not be)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

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


async def wait_for(true: Callable[[], object], within_s: float = 30.0) -> None:
    """Until it holds; the app goes on meanwhile."""
    until_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until_s, f"not within {within_s:g} s"
        await asyncio.sleep(0.02)
