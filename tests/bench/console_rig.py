"""What a tick of the console costs, measured the same way by the bench and by the test that guards it.

CPU time, not wall time, so that a busy machine does not change the result much; and beside it, in the same moments, a
calibration loop of the same kind of work (strings, small objects, dictionaries), so that a slower machine or interpreter
slows both. Each tick: a new snapshot is applied, the render clock paints what is due at 4 Hz (heat at 2 Hz, charts and
tables at 1 Hz), Textual composes, and the update is encoded as truecolor escapes (which a headless app leaves out by
itself) and counted, not written. The fleet is sample data in which every number changes every time: a real one is calmer.
"""

from __future__ import annotations

import asyncio
import io
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual._compositor import CompositorUpdate
from textual.screen import Screen
from textual.strip import Strip

from console.app import PacelineApp
from console.feeds.scripted import ScriptedFeed, ScriptedFleet
from console.themes import shipped_folder
from harness.wire.control import TO_CONSOLE, FleetSnapshot
from harness.wire.frames import encode

SIZE = (120, 36)
FPS = 4
CHUNK = 20  # ticks between two calibrations


class MeasuredApp(PacelineApp):
    """Encodes what a terminal would be sent, and says when something was."""

    sent_bytes = 0

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.shown = asyncio.Event()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if isinstance(renderable, CompositorUpdate):
            self.sent_bytes += len(renderable.render_segments(self.console).encode())
            self.shown.set()
        super()._display(screen, renderable)


@dataclass(frozen=True, slots=True)
class Cost:
    """Per tick. `ratio`: CPU in calibration loops, the median over chunks."""

    cpu_ms: float
    ratio: float
    lines: float
    kb: float


def app_on(fleet: ScriptedFleet) -> MeasuredApp:
    app = MeasuredApp(feed=ScriptedFeed(fleet, hz=0), fps=FPS, theme_folders=[shipped_folder()])
    app.console = Console(color_system="truecolor", force_terminal=True, file=io.StringIO(), legacy_windows=False)
    return app


def calibration_ms() -> float:
    """CPU ms of a fixed amount of work like a tick's: segments joined into strips, styles added, numbers formatted."""
    styles = [Style(color=f"#{shade:02x}8080") for shade in range(0, 256, 16)]
    began = time.process_time()
    seen: dict[str, int] = {}
    for row in range(150):
        segments = []
        for column in range(24):
            text = f"{row * column / 7:8.2f}".rjust(9)
            seen[text] = seen.get(text, 0) + 1
            segments.append(Segment(text, styles[(row + column) % 16]))
        Strip(segments).apply_style(styles[row % 16]).crop(3, 90)
    return (time.process_time() - began) * 1000


def frames_of(fleet: ScriptedFleet) -> Iterator[bytes]:
    while True:
        fleet.t_s += 1 / FPS
        yield encode(fleet.snapshot())


async def ticks(app: MeasuredApp, frames: list[bytes]) -> int:
    """Play these snapshots, a paint each; how many lines changed. An empty frame: nothing new."""
    lines = 0
    for frame in frames:
        if frame:
            message = TO_CONSOLE.decode(frame)
            assert isinstance(message, FleetSnapshot)
            app.store.apply(message)
        lines += app.tick()
        painted = asyncio.Event()
        app.call_after_refresh(painted.set)
        await painted.wait()
    return lines


async def measure(fleet: ScriptedFleet, keys: tuple[str, ...] = (), *, chunks: int = 4, still: bool = False) -> Cost:
    """Cost of the screen that these keys lead to."""
    app, frames = app_on(fleet), frames_of(fleet)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        app.stop_clock()
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        await ticks(app, [next(frames) for _ in range(FPS)])
        cpu, ratios, lines, app.sent_bytes = [], [], 0, 0
        for _ in range(chunks):
            ready = [b"" if still else next(frames) for _ in range(CHUNK)]
            loop_ms = calibration_ms()
            began = time.process_time()
            lines += await ticks(app, ready)
            cpu.append((time.process_time() - began) / CHUNK * 1000)
            ratios.append(cpu[-1] / ((loop_ms + calibration_ms()) / 2))
        count = chunks * CHUNK
        return Cost(statistics.median(cpu), statistics.median(ratios), lines / count, app.sent_bytes / count / 1000)


async def key_to_repaint_ms(fleet: ScriptedFleet, presses: int, *, busy: bool) -> list[float]:
    """From a cursor key to the terminal's update, with snapshots and paints going on at 4 Hz if `busy`."""
    app, frames = app_on(fleet), frames_of(fleet)
    taken: list[float] = []
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        if not busy:
            app.stop_clock()
        await ticks(app, [next(frames) for _ in range(FPS)])
        ready = [next(frames) for _ in range(presses)]
        for number in range(presses):
            if busy and number % 3 == 0:
                app.store.apply(TO_CONSOLE.decode(ready[number]))
            await asyncio.sleep(0.05 + 0.013 * (number % 7))  # at every phase of the clock
            before, key = app.view.cursor, "down" if number // 8 % 2 == 0 else "up"
            began = time.perf_counter()
            app.post_message(events.Key(key, None))
            while True:  # a tick's paint may come in between: it does not count before the key has done its work
                app.shown.clear()
                await asyncio.wait_for(app.shown.wait(), 10)
                if app.view.cursor != before:
                    break
            taken.append((time.perf_counter() - began) * 1000)
    return taken
