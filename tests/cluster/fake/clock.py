"""The time of a fake cluster: the real one, or one that tests push forward so that nobody waits for a back-off."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic."""

    def unix_s(self) -> float:
        """What objects are stamped with."""

    async def sleep(self, delay_s: float) -> None: ...


class RealClock:
    def now_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class ManualClock:
    """Stands still until `advance`. Who sleeps wakes in the order of the deadlines, each at exactly its own time."""

    def __init__(self, now_s: float = 1000.0, unix_s: float = 1_780_000_000.0) -> None:
        self._now_s = now_s
        self._offset_s = unix_s - now_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now_s(self) -> float:
        return self._now_s

    def unix_s(self) -> float:
        return self._now_s + self._offset_s

    async def sleep(self, delay_s: float) -> None:
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + delay_s, next(self._order), woken))
        await woken

    async def advance(self, by_s: float) -> None:
        """Also runs whatever the woken sleepers start, as far as it goes without real waiting."""
        until_s = self._now_s + by_s
        await settle()
        while self._sleepers and self._sleepers[0][0] <= until_s:
            due_s, _, woken = heapq.heappop(self._sleepers)
            self._now_s = max(self._now_s, due_s)
            if not woken.done():  # a cancelled sleeper is done
                woken.set_result(None)
                await settle()
        self._now_s = until_s
        await settle()


async def settle(turns: int = 50) -> None:
    """Let tasks that are ready, and those they wake, have their turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)


def stamp(unix_s: float) -> str:
    """As metadata.creationTimestamp is written: UTC, whole seconds."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(unix_s: float) -> str:
    """As a MicroTime is written, for Leases and for logs with timestamps."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
