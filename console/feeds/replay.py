"""Replay: a run again, from its record, into the same store and onto the same screens as when it was live.

A player of recorded seconds: `position_s` moves at `speed` while it plays, and whoever looks sees the second it has
reached. One step on, the store gets what the head sent in between; a jump (seek, or a step longer than a console ever
misses) gives it the whole state of that second anew, its series and sparklines included. Standing still, the same second
is told again, so that a picture that is meant to stand is not taken for one whose head is silent. Ends at the last second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from console.feeds.recorded import NothingRecorded, RecordedRun, read_recorded
from console.store.fleet import FleetStore
from console.store.gpus import REMEMBERED
from console.store.rings import HISTORY_POINTS, History
from harness.records.errors import RecordError
from harness.wire.control import CommandReply
from harness.wire.inquiry import Answer, GetSla, Question

SPEEDS: Final = (1.0, 4.0, 16.0, 60.0)
FRAME_S: Final = 0.25
TELL_AGAIN_S: Final = 1.0  # well below the silence after which a picture counts as stale
BEFORE_LOAD_S: Final = 3.0  # where it begins: the load is what people come for, and the barrier may have taken minutes
MARK_SLACK_S: Final = 3.0
#: More seconds at once than this are a jump: the store then gets its series whole instead of point by point.
MOST_STEPS: Final = 1
PAST_ROUNDS: Final = 60  # of the source of GPU metrics, in its charts after a jump


class ReplayFeed:
    def __init__(self, path: Path, *, begin_unix: float | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        """`begin_unix`: the moment from which on it plays; None: a little before the load."""
        self.operator = ""
        self.path = path
        self.position_s = 0.0
        self.speed = 1.0
        self.playing = True
        self.problem = ""  # why there is nothing to play, in words
        self._now_s = now_s
        self._begin_unix = begin_unix
        self._run: RecordedRun | None = None
        self._shown_s = -1  # the second that the store has; -1: none
        self._seq = 0
        self._moved = asyncio.Event()

    # --- the player ------------------------------------------------------------------------------------------

    @property
    def opened(self) -> bool:
        return self._run is not None

    @property
    def length_s(self) -> float:
        """0 until the record has been read."""
        return self._run.length_s if self._run is not None else 0.0

    @property
    def at_end(self) -> bool:
        return self._run is not None and self.position_s >= self._run.length_s

    @property
    def problems(self) -> list[str]:
        """Parts of the record that cannot be read, in words."""
        return self._run.problems if self._run is not None else []

    def play_pause(self) -> None:
        """At the end it begins again."""
        if self.at_end:
            self.seek_to(0.0)
            self.playing = True
        else:
            self.playing = not self.playing
        self._moved.set()

    def seek_by(self, seconds: float) -> None:
        self.seek_to(self.position_s + seconds)

    def seek_to(self, seconds: float) -> None:
        """Kept within the record; shown at once, whether it plays or not."""
        self.position_s = min(max(0.0, seconds), self.length_s)
        self._shown_s = -1
        self._moved.set()

    def seek_mark(self, way: int) -> bool:
        """To the next act, alert or end of an attempt (-1: the one before); False: there is none that way."""
        marks = self._run.marks_s() if self._run is not None else []
        here = int(self.position_s)
        if way > 0:
            found = [second for second in marks if here < second <= self.length_s][:1]
        else:  # while it plays, the last one is still close: a second press must come past it
            found = [second for second in marks if second < here - (MARK_SLACK_S if self.playing else 0.0)][-1:]
        if found:
            self.seek_to(float(found[0]))
        return bool(found)

    def pause(self) -> None:
        self.playing = False
        self._moved.set()

    def set_speed(self, speed: float) -> None:
        """One of SPEEDS. Raises ValueError, in words."""
        if speed not in SPEEDS:
            raise ValueError(f"{speed:g} is no replay speed: choose {', '.join(f'{one:g}' for one in SPEEDS)}")
        self.speed = speed
        self._moved.set()

    def next_speed(self) -> float:
        """The next one up, after the last the first."""
        self.set_speed(SPEEDS[(SPEEDS.index(self.speed) + 1) % len(SPEEDS)])
        return self.speed

    def label(self) -> str:
        """`REPLAY x4 07:42/20:00`, for the header."""
        if self._run is None:
            return "REPLAY cannot be read" if self.problem else "REPLAY reading …"
        how = "■ end" if self.at_end else f"x{self.speed:g}" if self.playing else f"❚❚ x{self.speed:g}"
        return f"REPLAY {how} {_clock(self.position_s)}/{_clock(self.length_s)}"

    # --- the feed --------------------------------------------------------------------------------------------

    async def follow(self, store: FleetStore) -> None:
        loop = asyncio.get_running_loop()

        def tell(text: str) -> None:
            loop.call_soon_threadsafe(partial(store.disconnected, f"replay: {text} …"))

        if self._run is None:
            try:
                run = await asyncio.to_thread(read_recorded, self.path, tell)
            except (NothingRecorded, RecordError) as problem:
                self.problem = str(problem)
                store.disconnected(f"no replay: {problem}")
                return
            self._run = run
            first_s = run.load_s if self._begin_unix is None else self._begin_unix - run.start_unix
            self.position_s = min(max(0.0, first_s - BEFORE_LOAD_S), run.length_s)
        await self._play(store, self._run)

    async def _play(self, store: FleetStore, run: RecordedRun) -> None:
        before_s = told_s = self._now_s()
        while True:
            now_s = self._now_s()
            if self.playing:
                self.position_s = min(run.length_s, self.position_s + (now_s - before_s) * self.speed)
                self.playing = not self.at_end
            before_s = now_s
            wanted_s = int(self.position_s)
            if wanted_s != self._shown_s or now_s - told_s >= TELL_AGAIN_S:
                self._show(store, run, wanted_s)
                told_s = now_s
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), FRAME_S)
            except TimeoutError:
                continue

    def _show(self, store: FleetStore, run: RecordedRun, at_s: int) -> None:
        steps = at_s - self._shown_s
        if self._shown_s < 0 or steps < 0:
            self._jump(store, run, at_s)
        else:
            for message in run.news(self._shown_s, at_s):
                store.apply(message)
            if steps > MOST_STEPS:
                store.series.seed(run.series(at_s))
            for second in range(max(self._shown_s + 1, at_s - HISTORY_POINTS), at_s):
                if steps <= MOST_STEPS:
                    self._snapshot(store, run, second)
                else:
                    _remember(store, run, second)
            self._snapshot(store, run, at_s)
        self._shown_s = at_s

    def _jump(self, store: FleetStore, run: RecordedRun, at_s: int) -> None:
        state = run.state(at_s)
        store.snapshot = None  # of another second: nothing of it may be shown beside the new one's past
        store.apply(state)
        store.histories = {name: History(len(state.slots)) for name in store.histories}
        store.gpus.forget()
        for view in run.gpu_past(at_s, PAST_ROUNDS, REMEMBERED):
            store.gpus.take(view)
        store.gpus.take(state.gpus)
        for second in range(max(0, at_s - HISTORY_POINTS), at_s):
            _remember(store, run, second)
        self._snapshot(store, run, at_s)

    def _snapshot(self, store: FleetStore, run: RecordedRun, at_s: int) -> None:
        self._seq += 1
        store.apply(run.snapshot(at_s, self._seq))

    async def command(self, name: str, args: dict[str, Any] | None = None, reason: str = "") -> CommandReply:
        return CommandReply("", False, "this is a replay: what happened cannot be changed")

    async def ask(self, question: Question) -> Answer | None:
        if self._run is None or not isinstance(question, GetSla):
            return None
        return await asyncio.to_thread(self._run.sla, max(0, self._shown_s), question)

    async def close(self) -> None:
        self._moved.set()


def _remember(store: FleetStore, run: RecordedRun, second: int) -> None:
    serving = run.serving(second)
    for name, history in store.histories.items():
        history.push(run.start_unix + second, run.column(name, second), serving)


def _clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"
