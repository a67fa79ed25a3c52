"""What the console costs: CPU and bytes per tick of its screens, the way of a key to the screen, an hour of memory.

How a tick is measured is said in console_rig.py. Limits in ms are for a core like those it was measured on; the ratio to
the calibration loop is what other machines can compare, and what tests/console/test_console_cost.py guards.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from console.feeds.scripted import ScriptedFleet
from console.store.fleet import FleetStore
from harness.wire.control import TO_CONSOLE
from harness.wire.frames import encode
from tests.bench import console_rig as rig

GOAL_512_MS = 32.0
GOAL_4096_MS = 55.0
GOAL_KB = 15.0
GOAL_KEY_RATIO = 3.0
HOUR_TICKS = 3600 * rig.FPS
FLAT_MB = 4.0


def run() -> list[dict[str, Any]]:
    live = asyncio.run(rig.measure(ScriptedFleet()))
    still = asyncio.run(rig.measure(ScriptedFleet(), still=True))
    large = asyncio.run(rig.measure(ScriptedFleet(512, 8)))
    fleet = asyncio.run(rig.measure(ScriptedFleet(), ("2",)))
    fleet_large = asyncio.run(rig.measure(ScriptedFleet(512, 8), ("2",)))
    idle_key = float(np.percentile(asyncio.run(rig.key_to_repaint_ms(ScriptedFleet(), 120, busy=False)), 95))
    busy_key = float(np.percentile(asyncio.run(rig.key_to_repaint_ms(ScriptedFleet(), 120, busy=True)), 95))
    grown_mb = asyncio.run(_hour_of_ticks())
    decode_ms = _decode_ms()
    return [
        _row("console Live: tick in calibration loops, 512 replicas", live.ratio, "ratio", None, None),
        _row("console Live: tick against the idle app", live.cpu_ms / still.cpu_ms, "ratio", None, None),
        _below("console key to repaint p95, busy against idle", busy_key / idle_key, "ratio", GOAL_KEY_RATIO),
        _below("console Live: CPU per tick, 512 replicas, 120x36, 4 Hz", live.cpu_ms, "ms", GOAL_512_MS),
        _below("console Live: CPU per tick, 4,096 replicas", large.cpu_ms, "ms", GOAL_4096_MS),
        _below("console Fleet: CPU per tick, 512 replicas", fleet.cpu_ms, "ms", GOAL_512_MS),
        _below("console Fleet: CPU per tick, 4,096 replicas", fleet_large.cpu_ms, "ms", GOAL_4096_MS),
        _row("console Live: CPU per tick, nothing new", still.cpu_ms, "ms", None, None),
        _below("console Live: bytes to the terminal per tick", live.kb, "kB", GOAL_KB),
        _below("console Fleet: bytes to the terminal per tick", fleet.kb, "kB", GOAL_KB),
        _row("console Live: lines repainted per tick", live.lines, "lines", None, None),
        _row("console key to repaint p95, idle", idle_key, "ms", None, None),
        _below("console memory grown over an hour of ticks", grown_mb, "MB", FLAT_MB),
        _below("console decode and apply of one snapshot, 512 replicas", decode_ms, "ms", 1.0),
    ]


def _below(name: str, value: float, unit: str, goal: float) -> dict[str, Any]:
    return _row(name, value, unit, goal, value <= goal)


def _row(name: str, value: float, unit: str, goal: float | None, ok: bool | None) -> dict[str, Any]:
    return {"name": name, "value": round(value, 3), "unit": unit, "goal": goal, "ok": ok}


async def _hour_of_ticks() -> float:
    """Resident MB after an hour's ticks beyond those of its first tenth: by then every bounded buffer is in use."""
    fleet = ScriptedFleet()
    app, frames = rig.app_on(fleet), rig.frames_of(fleet)
    async with app.run_test(size=rig.SIZE) as pilot:
        await pilot.pause()
        app.stop_clock()
        await rig.ticks(app, [next(frames) for _ in range(HOUR_TICKS // 10)])
        before = _resident_mb()
        for _ in range(9):
            for _ in range(HOUR_TICKS // 10 // rig.CHUNK):
                await rig.ticks(app, [next(frames) for _ in range(rig.CHUNK)])
        return _resident_mb() - before


def _resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _decode_ms() -> float:
    fleet, store = ScriptedFleet(), FleetStore()
    store.apply(fleet.run_state())
    frames = []
    for _ in range(80):
        fleet.t_s += 0.25
        frames.append(encode(fleet.snapshot()))
    began = time.process_time()
    for frame in frames:
        store.apply(TO_CONSOLE.decode(frame))
    return (time.process_time() - began) / len(frames) * 1000


if __name__ == "__main__":
    for row in run():
        print(row)
