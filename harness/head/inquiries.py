"""Answers to what a console asks while somebody looks: the SLA in full, one replica, the logs. Changes nothing.

The SLA is answered at once from what Live has counted. A replica's samples are the driver's: it is asked to watch the
slot, and what it told last stands here with its age. Files are read in one thread of their own, so that the loop never waits
for a disk. What a client repeats while its answer is being made is not made twice, and only so many are made at a time.

Measured (one slow shared core, 512 replicas, 240,000 samples in the window): an answer about the SLA 16 to 33 ms, of which
the parts of TTFT are nearly all; within a second they are not computed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from harness.head.attempt import Attempt
from harness.head.gpuwatch import GpuWatch
from harness.head.live import Live
from harness.head.placement import Placement
from harness.head.recordserver import files_of, part_of
from harness.head.roster import Replica, Roster
from harness.metrics.detail import latency_detail
from harness.records.layout import RunFolder
from harness.records.logs import Tail, merge_logs, tail_of
from harness.wire import attempt as down
from harness.wire import inquiry

log = logging.getLogger("paceline.head")

_MOST_AT_ONCE = 16
_MOST_LINES = 2000
_MOST_MERGED = 5000
_REMEMBERED = 16  # slots whose samples the driver told
_FRESH_S = 2.0
_WAIT_S = 0.5

Send = Callable[[bytes, msgspec.Struct], object]
Slow = (
    inquiry.GetReplica
    | inquiry.GetLogs
    | inquiry.GetDescription
    | inquiry.GetFiles
    | inquiry.GetPart
    | inquiry.RecordTaken
    | inquiry.QueryMetrics
    | inquiry.GetMetricNames
)
T = TypeVar("T")


class Head(Protocol):
    """What answers read of the supervisor."""

    folder: RunFolder
    live: Live
    roster: Roster
    attempt: Attempt | None
    placement: Placement
    gpus: GpuWatch


class Inquiries:
    def __init__(self, head: Head, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._head = head
        self._send = send
        self._clock = clock
        self._held: dict[str, tuple[down.Held, float]] = {}
        self._told = asyncio.Event()  # the driver has told something since this was cleared
        self._open: dict[str, asyncio.Task[None]] = {}
        self._reader = ThreadPoolExecutor(1, "reading")
        self._complete = False  # nothing is written to the record any more
        self._taken = asyncio.Event()

    def ask(self, peer: bytes, question: inquiry.Question) -> None:
        if isinstance(question, inquiry.GetSla):
            self._send(peer, self._sla(question))
        elif question.request_id not in self._open:
            if len(self._open) >= _MOST_AT_ONCE:
                busy = f"the head is answering {len(self._open)} other questions; ask again"
                self._send(peer, _nothing(question, busy))
                return
            task = asyncio.get_running_loop().create_task(self._answer(peer, question))
            self._open[question.request_id] = task
            task.add_done_callback(lambda _: self._open.pop(question.request_id, None))

    def note_held(self, held: down.Held) -> None:
        self._held.pop(held.slot, None)
        self._held[held.slot] = (held, self._clock())
        if len(self._held) > _REMEMBERED:
            del self._held[next(iter(self._held))]
        self._told.set()

    def attempt_over(self) -> None:
        """Nothing is in flight anywhere."""
        self._held.clear()

    def close(self) -> None:
        for task in self._open.values():
            task.cancel()
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, peer: bytes, question: Slow) -> None:
        try:
            match question:
                case inquiry.GetReplica():
                    self._send(peer, await self._replica(question))
                case inquiry.GetLogs():
                    self._send(peer, await self._logs(question))
                case inquiry.GetDescription():
                    self._send(peer, self._description(question))
                case inquiry.QueryMetrics():
                    self._send(peer, await self._head.gpus.curves(question))
                case inquiry.GetMetricNames():
                    self._send(peer, await self._head.gpus.names(question))
                case inquiry.GetPart():
                    self._send(peer, await self._read(partial(part_of, self._head.folder, question)))
                case inquiry.GetFiles() | inquiry.RecordTaken():
                    ended = self._complete  # before they are listed: a list of before the last word must not pass for the last
                    files = await self._read(partial(files_of, self._head.folder))
                    self._send(peer, inquiry.Files(question.request_id, files, ended=ended))
                    if isinstance(question, inquiry.RecordTaken) and ended:
                        self._taken.set()
        except Exception as error:
            log.exception("a question could not be answered")
            self._send(peer, _nothing(question, f"the head could not answer: {type(error).__name__}: {error}"))

    # --- the SLA -----------------------------------------------------------------------------------------

    def _sla(self, question: inquiry.GetSla) -> inquiry.SlaDetail:
        live, by_slot = self._head.live, self._head.roster.by_slot
        now_s = live.latency_now_s(self._clock())
        without = sorted({by_slot[slot].index for slot in question.without if slot in by_slot})
        strange = [slot[:80] for slot in question.without if slot not in by_slot]
        parts, n, tail_n = live.parts.figures(now_s)
        return inquiry.SlaDetail(
            request_id=question.request_id,
            attempt=live.attempt,
            window_s=live.window_s,
            ttft=latency_detail(live.ttft, now_s, without),
            tpot=latency_detail(live.tpot, now_s, without),
            parts=parts,
            parts_n=n,
            parts_tail_n=tail_n,
            problem=f"not of this run: {', '.join(strange[:5])}" if strange else "",
        )

    # --- one replica -------------------------------------------------------------------------------------

    async def _replica(self, question: inquiry.GetReplica) -> inquiry.ReplicaDetail:
        replica = self._head.roster.by_slot.get(question.slot)
        if replica is None:
            return inquiry.ReplicaDetail(question.request_id, question.slot, "", problem=self._no_slot(question.slot))
        log = self._head.folder.log_of_slot(replica.slot)
        lines = min(max(question.log_lines, 0), _MOST_LINES)
        reading = asyncio.create_task(self._read(partial(_tail_or_why, log, lines)))
        held, age_s, why_none = await self._in_flight(replica, question.in_flight)
        tail, why_no_log = await reading
        return inquiry.ReplicaDetail(
            request_id=question.request_id,
            slot=replica.slot,
            incarnation=replica.incarnation,
            in_flight=held.samples if held is not None else [],
            in_flight_total=held.total if held is not None else 0,
            in_flight_age_s=age_s,
            log=str(log),
            log_lines=tail.lines,
            log_size=tail.size,
            log_left_out=tail.left_out,
            log_written_s=max(0.0, time.time() - tail.written_unix) if not why_no_log else math.nan,
            problem="; ".join(filter(None, (why_none, why_no_log))),
        )

    async def _in_flight(self, replica: Replica, limit: int) -> tuple[down.Held | None, float, str]:
        """What the driver told of the slot, how long ago, and why there is nothing."""
        attempt = self._head.attempt
        if attempt is None or not attempt.running:
            return None, math.nan, "no attempt is running: nothing is in flight"
        if not attempt.endpoint:
            return None, math.nan, "the attempt's driver is starting: nothing is in flight"
        attempt.tell(down.Watch(replica.slot, max(0, limit)))
        deadline_s = self._clock() + _WAIT_S
        while (left_s := deadline_s - self._clock()) > 0 and self._age_s(replica.slot) > _FRESH_S:
            self._told.clear()
            try:
                await asyncio.wait_for(self._told.wait(), left_s)
            except TimeoutError:
                break
        held, _ = self._held.get(replica.slot, (None, 0.0))
        if held is None:
            return None, math.nan, "the driver has not told yet what is in flight"
        return held, self._age_s(replica.slot), ""

    def _no_slot(self, slot: str) -> str:
        near = get_close_matches(slot, self._head.roster.by_slot, 1)
        return f"no slot {slot[:80]!r} in this run" + (f"; did you mean {near[0]}?" if near else "")

    def _age_s(self, slot: str) -> float:
        return self._clock() - self._held[slot][1] if slot in self._held else math.inf

    # --- the cluster and the record ----------------------------------------------------------------------

    def _description(self, question: inquiry.GetDescription) -> inquiry.Description:
        replica = self._head.roster.by_slot.get(question.slot)
        if replica is None:
            return inquiry.Description(question.request_id, question.slot, problem=self._no_slot(question.slot))
        lines = self._head.placement.describe(replica.node)
        problem = "" if lines else "nothing to describe: its worker is a process of the head's machine"
        return inquiry.Description(question.request_id, question.slot, lines, problem)

    async def until_record_taken(self, within_s: float, poke: Callable[[], None]) -> None:
        """The run has ended: wait until somebody has a copy of its record, or nobody came for one in time."""
        self._complete = True
        until_s = self._clock() + within_s
        while not self._taken.is_set() and self._clock() < until_s:
            poke()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._taken.wait(), 0.25)
        await asyncio.sleep(0.2)  # the answer to whoever took it

    def leave_record(self) -> None:
        """Wait for nobody any longer."""
        self._taken.set()

    async def _read(self, read: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, read)

    # --- logs --------------------------------------------------------------------------------------------

    async def _logs(self, question: inquiry.GetLogs) -> inquiry.LogLines:
        limit = min(max(question.limit, 0), _MOST_MERGED)
        read = partial(merge_logs, self._head.folder.logs, question.since_unix, limit)
        merged = await self._read(read)
        return inquiry.LogLines(question.request_id, merged.lines, merged.left_out, merged.problem)


def _tail_or_why(log: Path, lines: int) -> tuple[Tail, str]:
    try:
        return tail_of(log, lines), ""
    except FileNotFoundError:
        return Tail([], 0, 0, math.nan), "it has written no log yet (a log of another machine is not here)"
    except OSError as error:
        return Tail([], 0, 0, math.nan), f"its log cannot be read: {error.strerror or error}"


def _nothing(question: Slow, problem: str) -> inquiry.Answer:
    match question:
        case inquiry.GetReplica():
            return inquiry.ReplicaDetail(question.request_id, question.slot, "", problem=problem)
        case inquiry.GetDescription():
            return inquiry.Description(question.request_id, question.slot, problem=problem)
        case inquiry.GetPart():
            return inquiry.Part(question.request_id, question.path, question.offset, problem=problem)
        case inquiry.GetLogs():
            return inquiry.LogLines(question.request_id, [], problem=problem)
        case inquiry.QueryMetrics():
            return inquiry.MetricCurves(question.request_id, problem=problem)
        case inquiry.GetMetricNames():
            return inquiry.MetricNames(question.request_id, problem=problem)
        case _:
            return inquiry.Files(question.request_id, [], problem=problem)
