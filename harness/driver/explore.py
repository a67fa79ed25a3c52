"""Our own Poisson issuer: the same clocks and the same dispatcher as a LoadGen attempt, but its rate can change.

The exponential distribution has no memory, so a new rate takes effect by drawing the next interval afresh; nothing
of the old schedule has to be undone. Latency counts from the scheduled time, as LoadGen counts it: an issuer that
falls behind shows it as latency, never as a lower rate.
"""

from __future__ import annotations

import random
import threading
import time

from harness.driver.dispatcher import Dispatcher, Issued
from harness.wire import attempt as up

_BURST = 512  # most samples handed over at once when behind schedule


class ExploreIssuer:
    def __init__(self, dispatcher: Dispatcher, n_samples: int, rate_qps: float, duration_s: float, seed: int = 1) -> None:
        """duration_s = 0: until told to finish."""
        self._dispatcher = dispatcher
        self._n_samples = n_samples
        self._duration_s = duration_s
        self._random = random.Random(seed)
        self._order: list[int] = []
        self._changed = threading.Condition()
        self._rate_qps = rate_qps
        self._finish = False
        self._drain_s = float("inf")

    def set_rate(self, qps: float) -> None:
        """0 pauses. Called by the dispatcher's thread."""
        with self._changed:
            self._rate_qps = qps
            self._dispatcher.target_qps = qps
            self._changed.notify()

    def finish(self, drain_s: float) -> None:
        """Stop issuing; wait up to drain_s for what is in flight."""
        with self._changed:
            self._finish = True
            self._drain_s = drain_s
            self._changed.notify()

    def run(self) -> None:
        self._dispatcher.target_qps = self._rate_qps
        self._dispatcher.tell(up.DriverPhase("issuing"))
        self._issue_until_done()
        self._dispatcher.tell(up.DriverPhase("draining"))
        deadline = time.monotonic() + self._drain_s
        while self._dispatcher.open_samples and self._dispatcher.failure is None and time.monotonic() < deadline:
            time.sleep(0.02)
            deadline = min(deadline, time.monotonic() + self._drain_s)
        self._dispatcher.closing = True  # first: what completes from now on must not count twice
        self._dispatcher.failed += self._dispatcher.open_samples

    def _issue_until_done(self) -> None:
        start = time.monotonic_ns()
        end = start + int(self._duration_s * 1e9) if self._duration_s else None
        rate = self._rate_qps
        due = self._next(start, rate)
        while not self._finish and self._dispatcher.failure is None:
            now = time.monotonic_ns()
            until = min(now, end) if end is not None else now
            if self._rate_qps != rate:
                rate = self._rate_qps
                due = self._next(now, rate)
            if due is not None and due <= until:  # before the end is looked at: who stood still across it is late, not done
                due = self._issue_due(due, until, rate)
                continue
            if until == end:
                return
            wake = min(x for x in (due, end, now + 100_000_000) if x is not None)
            with self._changed:
                if self._rate_qps == rate and not self._finish:
                    self._changed.wait((wake - now) / 1e9)

    def _issue_due(self, due: int, until: int, rate: float) -> int | None:
        burst: list[Issued] = []
        following: int | None = due
        now = time.monotonic_ns()
        while following is not None and following <= until and len(burst) < _BURST:
            burst.append((0, self._index(), following, now))
            following = self._next(following, rate)
        self._dispatcher.issue(burst)
        return following

    def _next(self, after_ns: int, rate_qps: float) -> int | None:
        return after_ns + int(self._random.expovariate(rate_qps) * 1e9) if rate_qps > 0 else None

    def _index(self) -> int:
        """Every sample once, in random order, again and again."""
        if not self._order:
            self._order = list(range(self._n_samples))
            self._random.shuffle(self._order)
        return self._order.pop()
