"""What the console costs: CPU per tick of the whole Live screen at 512 replicas, headless at 120x36.

CPU time, not wall time, so that a busy machine does not change the result much. Each tick: a new snapshot is applied,
the render clock paints what is due at 4 Hz (heat at 2 Hz, charts and sorting at 1 Hz), Textual composes, and the update
is encoded as truecolor escapes (which a headless app leaves out by itself) and counted, not written. The fleet is
sample data in which every number changes every time: a real fleet is calmer. Beside it the same app with nothing
changing, which shows the floor.
"""

from __future__ import annotations

import asyncio
import io
import time
from typing import Any

from rich.console import Console, RenderableType
from textual._compositor import CompositorUpdate
from textual.screen import Screen

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.themes import shipped_folder
from console.widgets.clock import EVERYTHING
from harness.wire.control import TO_CONSOLE, FleetSnapshot
from harness.wire.frames import encode

TICKS = 80
GOAL_MS = 32.0
GOAL_KB = 15.0


class MeasuredApp(PacelineApp):
    """Encodes what a terminal would be sent."""

    sent_bytes = 0

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if isinstance(renderable, CompositorUpdate):
            self.sent_bytes += len(renderable.render_segments(self.console).encode())
        super()._display(screen, renderable)


def run() -> list[dict[str, Any]]:
    busy, idle, lines, sent_kb, decode = asyncio.run(_measure())
    return [
        _row("console CPU per tick, 512 replicas, 120x36, 4 Hz", busy, "ms", GOAL_MS, busy <= GOAL_MS),
        _row("console CPU per tick, same screen, nothing new", idle, "ms", None, None),
        _row("console bytes to the terminal per tick", sent_kb, "kB", GOAL_KB, sent_kb <= GOAL_KB),
        _row("console lines repainted per tick", lines, "lines", None, None),
        _row("console decode and apply of one snapshot, 512 replicas", decode, "ms", 1.0, decode <= 1.0),
    ]


def _row(name: str, value: float, unit: str, goal: float | None, ok: bool | None) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit, "goal": goal, "ok": ok}


async def _measure() -> tuple[float, float, float, float, float]:
    fleet = ScriptedFleet()
    feed = ScriptedFeed(fleet, hz=0)
    # fps = 4 decides the cadence; the ticks themselves are given here, the app's own timer is stopped.
    app = MeasuredApp(feed=feed, fps=4, theme_folders=[shipped_folder()])
    app.console = Console(color_system="truecolor", force_terminal=True, file=io.StringIO(), legacy_windows=False)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.stop_clock()
        frames = []
        for _ in range(TICKS):
            fleet.t_s += 0.25
            frames.append(encode(fleet.snapshot()))
        app.screen.paint(EVERYTHING)  # type: ignore[attr-defined]
        await pilot.pause()
        idle = await _ticks(app, [])
        app.sent_bytes = 0
        busy = await _ticks(app, frames)
        sent_kb = app.sent_bytes / TICKS / 1000
        started = time.process_time()
        for frame in frames:
            app.store.apply(TO_CONSOLE.decode(frame))
        decode = (time.process_time() - started) / len(frames) * 1000
    return busy[0], idle[0], busy[1], sent_kb, decode


async def _ticks(app: PacelineApp, frames: list[bytes]) -> tuple[float, float]:
    """(CPU ms, lines repainted) per tick."""
    lines = 0
    started = time.process_time()
    for tick in range(TICKS):
        if frames:
            message = TO_CONSOLE.decode(frames[tick])
            assert isinstance(message, FleetSnapshot)
            app.store.apply(message)
        lines += app.tick()
        painted = asyncio.Event()
        app.call_after_refresh(painted.set)
        await painted.wait()
    return (time.process_time() - started) / TICKS * 1000, lines / TICKS


if __name__ == "__main__":
    for row in run():
        print(row)
