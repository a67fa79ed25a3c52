"""One heap of next event times and one timer for all synthetic replicas of a process.

A timer per replica would cost asyncio a heap entry and a callback for each of some 8,000 boundaries a second of a full
gpt-oss fleet. Here a wake-up serves everything that is due, and since epoll rounds to milliseconds that is at most
about a thousand wake-ups a second. Event times come from the model: a late wake-up delivers late, and the next run
still begins where the model says, so nothing drifts.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import Protocol
from weakref import WeakKeyDictionary

_SLACK_S = 0.0005  # a timer this close before a new due time is left as it is


class Paced(Protocol):
    due_s: float | None  # owned by the scheduler; None: not in the heap

    def next_event_s(self) -> float | None: ...

    def deliver(self, now_s: float) -> None: ...


class Scheduler:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Paced]] = []
        self._serial = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0

    def schedule(self, paced: Paced) -> None:
        """Call after anything that may have brought `paced`'s next event forward."""
        self._push(paced)
        self._arm()

    def forget(self, paced: Paced) -> None:
        paced.due_s = None  # its heap entries are stale from now on
        self._heap = [entry for entry in self._heap if entry[2] is not paced]
        if not self._heap and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def idle(self) -> bool:
        """Nothing is due and no timer stands."""
        return not self._heap and self._timer is None

    def _push(self, paced: Paced) -> None:
        due_s = paced.next_event_s()
        if due_s is None or (paced.due_s is not None and paced.due_s <= due_s):
            return  # an entry that is too early only wakes us to look again
        paced.due_s = due_s
        self._serial += 1
        heappush(self._heap, (due_s, self._serial, paced))

    def _arm(self) -> None:
        if not self._heap:
            return
        at_s = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at_s <= at_s + _SLACK_S:
                return
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = asyncio.get_running_loop().call_at(at_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        try:
            while self._heap and self._heap[0][0] <= now_s:
                due_s, _, paced = heappop(self._heap)
                if paced.due_s != due_s:
                    continue  # brought forward or forgotten since
                paced.due_s = None
                try:
                    paced.deliver(now_s)
                finally:
                    self._push(paced)
        finally:
            self._arm()  # an error of one replica's callback must not stop the others


_SCHEDULERS: WeakKeyDictionary[asyncio.AbstractEventLoop, Scheduler] = WeakKeyDictionary()


def scheduler_of_running_loop() -> Scheduler:
    loop = asyncio.get_running_loop()
    scheduler = _SCHEDULERS.get(loop)
    if scheduler is None:
        scheduler = _SCHEDULERS[loop] = Scheduler()
    return scheduler
