"""SLA, Events and Replica on a real run: what the head answers is on screen, and says how old it is once the head is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from run_kit import RunHandle
from textual.pilot import Pilot
from textual.widget import Widget

from console.app import PacelineApp
from console.feeds.head import HeadFeed
from console.screens.base import PaintedScreen
from console.screens.detail import ReplicaScreen
from console.screens.events import EventsScreen
from console.screens.live import LiveScreen
from console.screens.sla import SlaScreen
from console.store.tail import clean
from console.widgets.clock import EVERYTHING
from harness.wire.inquiry import GetLogs, LogLines

Start = Callable[..., RunHandle]
SLOT = "node001/gpu0"


def text_of(widget: Widget) -> str:
    return "\n".join(widget.render_line(y).text.rstrip() for y in range(widget.content_size.height))


async def until(pilot: Pilot[Any], what: str, true: Callable[[], bool], within_s: float = 45.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.1)
        screen = pilot.app.screen
        if isinstance(screen, PaintedScreen):
            screen.paint(EVERYTHING)


async def test_a_real_heads_answers_are_on_screen_and_grow_old_without_it(start_run: Start) -> None:
    run = start_run(load__kind="explore", load__duration_s=0, load__target_qps=120, fleet__orphan_s=5)
    run.wait_measuring()
    app = PacelineApp(feed=HeadFeed(run.folder.path), fps=4)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        await pilot.press("3")
        await until(pilot, "SLA", lambda: isinstance(app.screen, SlaScreen) and app.screen.is_mounted)
        sla = app.screen
        assert isinstance(sla, SlaScreen)
        await until(pilot, "samples in the histogram", lambda: "beyond 30.0 s" in text_of(sla.query_one("#ttft-histogram")))
        await until(pilot, "a p50", lambda: " ms" in "".join(text_of(sla.query_one("#percentiles")).splitlines()[1:2]))
        await until(pilot, "the parts", lambda: "together" in text_of(sla.query_one("#ttft-parts")))
        assert "● none" in text_of(sla.query_one("#tail"))  # nothing is near 30 s
        assert sla.tables()["histogram"]

        await pilot.press("4")
        await until(pilot, "Events", lambda: isinstance(app.screen, EventsScreen) and app.screen.is_mounted)
        events = app.screen
        assert isinstance(events, EventsScreen)
        await until(pilot, "lines of logs", lambda: any(row.kind == "log" for row in events.timeline.rows))
        kinds = {row.kind for row in events.timeline.rows}
        assert {"attempt", "run", "replica"} <= kinds
        await asyncio.sleep(4.5)  # two more questions, each of which overlaps the one before
        answer = await app.inquire(GetLogs("all", 0.0, 2000))
        assert isinstance(answer, LogLines)
        settled = events.timeline.newest_log_unix - 1
        told = Counter((line.unix, line.source, clean(line.text)) for line in answer.lines if line.unix < settled)
        here = Counter(
            (row.unix, row.source, row.text) for row in events.timeline.rows if row.kind == "log" and row.unix < settled
        )
        assert here == told

        await pilot.press("1")
        await until(pilot, "Live", lambda: isinstance(app.screen, LiveScreen))
        app.open_replica(SLOT, "Live")
        await until(pilot, "the replica", lambda: isinstance(app.screen, ReplicaScreen) and app.screen.is_mounted)
        replica = app.screen
        assert isinstance(replica, ReplicaScreen)
        await until(pilot, "the replica's answer", lambda: replica.detail is not None)
        await until(pilot, "its band", lambda: any("⠀" < sign <= "⣿" for sign in text_of(replica.query_one("#tokens-chart"))))
        await until(pilot, "no difference", lambda: "same as the fleet" in text_of(replica.query_one("#differences")))
        assert replica.detail is not None
        assert replica.detail.log.endswith(".log")
        os.kill(run.head_pid, signal.SIGKILL)
        await until(pilot, "grey", lambda: replica.has_class("-stale"))
        await until(pilot, "an age", lambda: "ago" in str(replica.query_one("#in-flight").border_title))
