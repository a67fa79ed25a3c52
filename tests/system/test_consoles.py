"""Consoles on a real head: several at once, one that hangs, a head that dies under them and comes back."""

from __future__ import annotations

import asyncio
import itertools
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_kit import RunHandle
from textual.pilot import Pilot
from textual.widgets import Input

from console.app import PacelineApp
from console.screens.fleet import FleetScreen
from console.widgets.clock import EVERYTHING
from harness.cluster.local import launch_head
from harness.wire.client import Telemetry
from harness.wire.control import FleetSnapshot

Start = Callable[..., RunHandle]
CONSOLE = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from console.feeds.head import HeadFeed
from console.store.fleet import FleetStore
import asyncio

async def watch():
    store = FleetStore()
    asyncio.create_task(HeadFeed(Path(sys.argv[1]), "viewer").follow(store))
    while store.snapshot is None:
        await asyncio.sleep(0.05)
    print("sees", len(store.slots), flush=True)
    await asyncio.sleep(600)

asyncio.run(watch())
"""


async def until(pilot: Pilot[Any], what: str, true: Callable[[], object], within_s: float = 45.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await pilot.pause(0.05)


async def test_a_lost_head_greys_the_console_and_its_successor_is_found_with_everything_kept(start_run: Start) -> None:
    run = start_run(load__kind="explore", load__target_qps=40, load__duration_s=0)
    app = PacelineApp(run.folder.path)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, "four replicas that measure", lambda: app.store.count_states().get("READY") == 4)
        await pilot.press("2")
        await until(pilot, "Fleet", lambda: isinstance(app.screen, FleetScreen))
        await pilot.press("slash")
        await until(pilot, "the filter", lambda: isinstance(app.focused, Input))
        await pilot.press(*"node001", "enter")
        await until(pilot, "the filter's end", lambda: not isinstance(app.focused, Input))
        await pilot.press("down", "space")
        await until(pilot, "a marked row", lambda: len(app.screen.targets()) == 1)  # type: ignore[attr-defined]
        chosen, before = app.screen.targets(), app.session.fleet_view  # type: ignore[attr-defined]
        run.kill_head()
        await until(pilot, "silence noticed", lambda: not app.store.link().trusted)
        await until(pilot, "what to do about it", lambda: "restart-head" in app.store.link_note)
        app.screen.paint(EVERYTHING)  # type: ignore[attr-defined]
        assert app.screen.has_class("-stale")
        run.head_pid = launch_head(run.folder)
        await until(pilot, "the next head", lambda: app.store.link().kind == "live" and app.store.head_epoch == 2)
        await until(pilot, "replicas again", lambda: app.store.count_states().get("READY") == 4)

        def in_colour() -> bool:
            app.screen.paint(EVERYTHING)  # type: ignore[attr-defined]
            return not app.screen.has_class("-stale")

        await until(pilot, "figures of now", in_colour)  # a head that has just begun can be late with them
        assert app.session.fleet_view is before
        assert app.screen.targets() == chosen  # type: ignore[attr-defined]
        assert before.text == "node001"


@pytest.mark.alone
def test_consoles_that_hang_slow_neither_the_head_nor_the_others(start_run: Start) -> None:
    run = start_run(load__kind="explore", load__target_qps=40, load__duration_s=0)
    run.wait_issuing()
    root = str(Path(__file__).parents[2])
    consoles = [
        subprocess.Popen([sys.executable, "-c", CONSOLE, str(run.folder.path), root], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        for console in consoles:
            assert console.stdout is not None
            assert console.stdout.readline().strip() == "sees 4"
        for console in consoles[:2]:
            console.send_signal(signal.SIGSTOP)
        for _ in range(3):  # a machine may stop for a second once; a head that waits for a console does so all the time
            gaps = asyncio.run(asyncio.to_thread(_gaps_between_snapshots, run, 8.0))
            if len(gaps) > 20 and max(gaps) < 2.0:
                break
        assert len(gaps) > 20
        assert statistics.median(gaps) < 0.5
        assert max(gaps) < 2.0  # what a console would call silent
        assert run.command("set_rate", qps=50.0).ok
        assert consoles[2].poll() is None
    finally:
        for console in consoles:
            console.kill()
            console.wait(5)


def _gaps_between_snapshots(run: RunHandle, seconds: float) -> list[float]:
    telemetry = Telemetry.of_run(run.folder.path, timeout_s=0.5)
    seen: list[float] = []
    ends = time.monotonic() + seconds
    try:
        for message in telemetry:
            if isinstance(message, FleetSnapshot):
                seen.append(time.monotonic())
            if time.monotonic() > ends:
                break
    finally:
        telemetry.close()
    return [later - earlier for earlier, later in itertools.pairwise(seen)]
