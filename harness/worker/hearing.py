"""Whether the head can be heard, and how often to speak to it meanwhile.

While a head is away its peers' messages queue up in their sockets. Beats of 512 replicas over fifteen minutes would greet
a restarted head with hundreds of thousands of stale messages; so after a few unanswered ones the pace drops.
"""

from __future__ import annotations

from collections.abc import Callable

UNANSWERED_LIMIT = 5
SLOW_PACE_S = 8.0


class Hearing:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard_s = clock()
        self._unanswered = 0

    def asked(self) -> None:
        self._unanswered += 1

    def heard(self) -> None:
        self._heard_s = self._clock()
        self._unanswered = 0

    def silent_s(self) -> float:
        return self._clock() - self._heard_s

    def pace_s(self, interval_s: float) -> float:
        return interval_s if self._unanswered < UNANSWERED_LIMIT else max(interval_s, SLOW_PACE_S)
