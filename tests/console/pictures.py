"""`make pictures`: every screen at three sizes as SVG in docs/pictures, from SAMPLE DATA, the same bytes every time.

The pictures of the README and the snapshots of the tests are the same files: tests/console/test_console_pictures.py
draws a part of them again and compares. What would differ from machine to machine (clock, time zone, folders, versions)
is fixed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from console_helpers import HandClock, settle
from recorded_kit import T0, ended_run
from textual.widgets import Input

from console.actions import ACTIONS
from console.app import PacelineApp
from console.commands import NAMES
from console.feeds.scripted import SAMPLE_UNIX, ScriptedFeed, ScriptedFleet
from console.store import preflight
from console.themes import shipped_folder
from harness.doctor import Check
from harness.records.runfile import read_run, write_run

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from made_run import Made, make_run

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
KEYS = FOLDER.parent / "keys.md"
PLACE = Path("/tmp/paceline-pictures")  # the same on every machine: its name stands in pictures
SIZES = ((160, 48), (120, 36), (80, 24))


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture: the keys that lead there (`?TEXT` waits for a text), on which sample, in which theme."""

    name: str
    keys: Sequence[str] = ()
    theme: str = "paceline-dark"
    fleet: Callable[[], ScriptedFleet] | None = ScriptedFleet  # None: no run is open; those of `sample_runs` are there
    until: str = ""  # text that the screen shows once it has read what it shows
    sizes: Sequence[tuple[int, int]] = SIZES

    def files(self) -> list[tuple[tuple[int, int], str]]:
        return [(size, f"{self.name}-{size[0]}x{size[1]}.svg") for size in self.sizes]


def at_the_barrier() -> ScriptedFleet:
    return ScriptedFleet(phase="WARMING", at_s=0.0)


def split() -> ScriptedFleet:
    return ScriptedFleet(nodes=8, gpus=9, roles="5P4D")


def on_a_cluster() -> ScriptedFleet:
    return ScriptedFleet(on_cluster=True)


def pods_pending() -> ScriptedFleet:
    return ScriptedFleet(phase="WARMING", at_s=0.0, on_cluster=True)


def with_gpus() -> ScriptedFleet:
    return ScriptedFleet(with_gpus=True)


def exploring() -> ScriptedFleet:
    return ScriptedFleet(kind="explore")


SHOTS = (
    Shot("launch", ("?118-160211",), fleet=None, until="11 ok"),
    Shot("live"),
    Shot("live-light", theme="paceline-light", sizes=SIZES[1:]),
    Shot("barrier", fleet=at_the_barrier),
    Shot("fleet", ("2",)),
    Shot("fleet-light", ("2",), theme="paceline-light", sizes=SIZES[1:]),
    Shot("replica", ("enter",)),
    Shot("sla", ("3",)),
    Shot("events", ("4",)),
    Shot("runs", ("5",), fleet=None, until="Runs 4"),
    Shot("compare", ("5", "?Runs 4", "space", "space", "c"), fleet=None, until="output tokens"),
    Shot("scaling", ("5", "?Runs 4", "s"), fleet=None, until="EFFICIENCY"),
    Shot("record", ("5", "?Runs 4", "end", "enter"), fleet=None, until="Findings"),
    Shot(
        "record-timeline", ("5", "?Runs 4", "end", "enter", "?Findings", "i"), fleet=None, until="What happened", sizes=SIZES[1:]
    ),
    Shot("record-distributions", ("5", "?Runs 4", "end", "enter", "?Findings", "d"), fleet=None, until="CDF", sizes=SIZES[1:2]),
    Shot(
        "record-tail",
        ("5", "?Runs 4", "end", "enter", "?Findings", "t", "?TAIL MEAN", "n", "n"),
        fleet=None,
        until="TIME ",
        sizes=SIZES[1:],
    ),
    Shot(
        "record-sample",
        ("5", "?Runs 4", "end", "enter", "?Findings", "s", "?LATENCY", "enter"),
        fleet=None,
        until="USUAL",
        sizes=SIZES[1:2],
    ),
    Shot("replay", ("5", "?Runs 4", "end", "R", "?REPLAY x1", "1", *["full_stop"] * 4), fleet=None, until="00:42/"),
    Shot("roles", fleet=split),
    Shot("evict", ("e",)),
    Shot("pods-pending", fleet=pods_pending),
    Shot("pods-live", fleet=on_a_cluster),
    Shot("pods", ("2",), fleet=on_a_cluster),
    Shot("pod-nodes", ("2", "n"), fleet=on_a_cluster),
    Shot("pod-replica", ("enter",), fleet=on_a_cluster),
    Shot("pod-describe", ("enter", "D"), fleet=on_a_cluster),
    Shot("pod-evict", ("e",), fleet=on_a_cluster),
    Shot("pod-events", ("4",), fleet=on_a_cluster),
    Shot("scale", ("N", *"48"), fleet=on_a_cluster),
    Shot("gpu-live", (*"hhhhhhh", "down"), fleet=with_gpus),
    Shot("gpu-fleet", ("2", "down"), fleet=with_gpus),
    Shot("gpu-replica", ("down", "enter"), fleet=with_gpus),
    Shot("gpu-evict", ("e",), fleet=with_gpus, sizes=SIZES[1:]),
    Shot("metrics", ("6", "w", "slash", *"max by (hostname, gpu_id) (gpu_clock)", "enter"), fleet=with_gpus, until="took"),
    Shot("metric-names", ("6", "m", *"memory"), fleet=with_gpus, until="errors", sizes=SIZES[1:]),
    Shot("rate", ("equals_sign",), fleet=exploring),
    Shot("command", (":", *"evi"), sizes=SIZES[1:]),
    Shot("help", ("question_mark",), sizes=SIZES[1:]),
)


#: What users set for their own consoles.
OWN_WISHES = ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM", "PACELINE_THEME", "PACELINE_CONFIG")


def still() -> None:
    """The same local time and the same wishes everywhere."""
    os.environ["TZ"] = "UTC"
    for name in OWN_WISHES:
        os.environ.pop(name, None)
    time.tzset()


@contextlib.contextmanager
def alone_there() -> Iterator[None]:
    """Whoever else draws on this machine waits: the place is the same for all."""
    with PLACE.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def own_state() -> Iterator[None]:
    """Queries that pictures ask are not the user's."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(PLACE)
    try:
        yield
    finally:
        os.environ.pop("XDG_STATE_HOME") if before is None else os.environ.update({"XDG_STATE_HOME": before})


@contextlib.contextmanager
def sample_runs() -> Iterator[None]:
    """A folder of runs that never were, always at the same place, and a machine on which everything is in order."""
    root = PLACE / "runs"
    shutil.rmtree(PLACE, ignore_errors=True)
    root.mkdir(parents=True)
    made = Made("gptoss-120b-20261118-140211", nodes=2, per_node=8, qps=400.0, stall_s=20, verdict="INVALID")
    made = replace(made, ttft_limit_ms=500, tpot_limit_ms=40)
    first = make_run(root, made)
    run = read_run(first)
    (attempt,) = run.attempts
    over = f"TTFT p99 {attempt.ttft_ms['p99']:.6g} ms is over the limit of 500 ms"
    run.reasons = attempt.reasons = [over, "an operator's evict touched the attempt"]
    run.acts = attempt.acts = 1
    write_run(first, run)
    for number, (verdict, ttft_ms) in enumerate([("VALID", 402.0), ("INVALID", 611.0), ("SUPERSEDED", 380.0)], 1):
        name = f"gptoss-120b-20261118-1{4 + number}0211"
        figures = {"completed_qps": 391.5, "tokens_per_s": 15_500.0 + 41 * number, "ttft_p99_ms": ttft_ms, "tpot_p99_ms": 31.0}
        ended_run(root, name, made.spec, at=T0 + 3600 * number, verdict=verdict, **figures)
    well = ("cluster", "fleet", "memory", "open files", "ports", "keys", "engine", "dataset", "runs folder", "loadgen", "clock")
    in_order = [preflight.Probe(name, lambda name=name: Check(name, True, "in order")) for name in well]  # type: ignore[misc]
    mine = {"PACELINE_RUNS": str(root), "XDG_STATE_HOME": str(PLACE)}
    before = ({name: os.environ.get(name) for name in mine}, Path.cwd(), preflight.probes)
    os.environ |= mine
    os.chdir(PLACE)
    preflight.probes = lambda spec: in_order
    try:
        yield
    finally:
        os.chdir(before[1])
        preflight.probes = before[2]
        for name, value in before[0].items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


async def draw(shot: Shot, size: tuple[int, int]) -> tuple[str, str]:
    """(SVG, the screen as plain text)"""
    with alone_there(), sample_runs() if shot.fleet is None else own_state():
        return await _draw(shot, size)


async def _draw(shot: Shot, size: tuple[int, int]) -> tuple[str, str]:
    feed = ScriptedFeed(shot.fleet(), hz=0) if shot.fleet is not None else None
    app = PacelineApp(feed=feed, fps=1, theme_folders=[shipped_folder()], now_s=HandClock(), wall_s=lambda: SAMPLE_UNIX + 462.0)
    app.theme = shot.theme
    async with app.run_test(size=size) as pilot:
        app.stop_clock()
        await settle(pilot, app)
        for key in shot.keys:
            if key.startswith("?"):
                await _shown(pilot, app, key[1:])
            else:
                await pilot.press(key)
                await _answered(pilot, app)
        await _shown(pilot, app, shot.until)
        for box in app.screen.query(Input):
            box.cursor_blink = False
        await settle(pilot, app)
        svg = app.export_screenshot(title=f"Paceline · sample data · {size[0]}x{size[1]}")
        return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S), text_on(app)  # those name a server; monospace does


async def _shown(pilot: Any, app: PacelineApp, wanted: str) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        await _answered(pilot, app)
        await settle(pilot, app)
        if wanted in text_on(app):
            return
        assert time.monotonic() < deadline_s, f"never showed {wanted!r}:\n{text_on(app)}"


def text_on(app: PacelineApp) -> str:
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())


async def _answered(pilot: Any, app: PacelineApp) -> None:
    """Let what the screen asks its feed for come back."""
    for _ in range(5):
        await asyncio.sleep(0.02)
        await pilot.pause()


def keys_page() -> str:
    """docs/keys.md: the registry of actions as a table for each group."""
    lines = ["# Keys of the console", ""]
    lines += ["Made by `make pictures` from `console/actions.py`. `paceline keys` has them as your key map does."]
    for group in dict.fromkeys(action.group for action in ACTIONS):
        lines += ["", f"## {group}", "", "| key | command | does | on |", "|---|---|---|---|"]
        for action in (one for one in ACTIONS if one.group == group):
            key = action.shown_key.replace("|", "\\|")
            command = f"`:{action.command}{f' {action.takes}' if action.takes else ''}`" if action.command in NAMES else ""
            told = f"**{action.title}** {action.help}".strip().replace("|", "\\|")
            where = "everywhere" if "app" in action.where else ", ".join(action.where)
            lines.append(f"| `` {key} `` | {command} | {told} | {where} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    still()
    KEYS.write_text(keys_page(), encoding="utf-8")
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = set()
    for shot in SHOTS:
        for size, file in shot.files():
            svg, _ = asyncio.run(draw(shot, size))
            (FOLDER / file).write_text(svg, encoding="utf-8")
            wanted.add(file)
            print(f"docs/pictures/{file}")
    for old in FOLDER.glob("*.svg"):
        if old.name not in wanted:
            old.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
