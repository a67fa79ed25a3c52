"""The Poisson issuer: its arrivals are Poisson, a new rate holds at once, a pause leaves no burst behind, an end drains."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from harness.driver.explore import ExploreIssuer
from harness.wire import attempt as up

#: For what has to come: a slow machine that stalls for seconds included.
DEADLINE_S = 30.0


class Recorder:
    """Stands where the dispatcher does and keeps what it is handed. Nothing completes unless a test says so."""

    def __init__(self) -> None:
        self.target_qps = 0.0
        self.failure: str | None = None
        self.failed = 0
        self.closing = False
        self.open_samples = 0
        self.issued: list[tuple[int, int, int]] = []  # index, scheduled, handed over
        self.phases: list[str] = []

    def tell(self, message: up.DriverPhase) -> None:
        self.phases.append(message.phase)

    def issue(self, queries: list[tuple[int, int, int, int]]) -> None:
        self.issued += [(index, scheduled, issued) for _, index, scheduled, issued in queries]

    def count_between(self, start_s: float, end_s: float) -> int:
        return sum(start_s <= scheduled / 1e9 < end_s for _, scheduled, _ in self.issued)


def make(rate_qps: float, duration_s: float = 0.0, n_samples: int = 10, seed: int = 1) -> tuple[ExploreIssuer, Recorder]:
    recorder: Any = Recorder()
    return ExploreIssuer(recorder, n_samples, rate_qps, duration_s, seed), recorder


@contextmanager
def running(issuer: ExploreIssuer) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=issuer.run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        issuer.finish(0.0)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def until(true: Any, within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def issued(count: int, rate_qps: float, n_samples: int = 10) -> Recorder:
    """That many or some more; not those of a time, in which a machine that stalls issues none."""
    issuer, recorder = make(rate_qps, n_samples=n_samples)
    with running(issuer):
        until(lambda: len(recorder.issued) >= count)
    return recorder


def test_arrivals_are_a_poisson_process_at_the_asked_rate() -> None:
    rate = 20_000.0
    recorder = issued(5001, rate)
    scheduled = np.array([at for _, at, _ in recorder.issued[:5001]])  # of the seed, whatever the machine was busy with
    gaps_s = np.diff(scheduled) / 1e9
    assert (gaps_s >= 0).all()
    n = len(gaps_s)
    assert abs(gaps_s.mean() * rate - 1) < 5 / np.sqrt(n)
    assert abs(gaps_s.std() * rate - 1) < 0.08
    # Kolmogorov-Smirnov against the exponential; 1.95 / sqrt(n) is passed over once in a thousand seeds.
    distance = np.abs(np.arange(1, n + 1) / n - (1 - np.exp(-np.sort(gaps_s) * rate))).max()
    assert distance < 1.95 / np.sqrt(n) + 1 / n
    independence = np.corrcoef(gaps_s[:-1], gaps_s[1:])[0, 1]
    assert abs(independence) < 5 / np.sqrt(n)


def test_a_sample_is_never_handed_over_before_its_time() -> None:
    recorder = issued(500, 3000.0)
    assert all(issued >= scheduled for _, scheduled, issued in recorder.issued)


def test_every_sample_is_used_once_before_any_is_used_again() -> None:
    recorder = issued(500, 5000.0, n_samples=25)
    indices = [index for index, _, _ in recorder.issued]
    rounds = [indices[at : at + 25] for at in range(0, len(indices) - 24, 25)]
    assert len(rounds) > 4
    assert all(sorted(order) == list(range(25)) for order in rounds)
    assert rounds[0] != rounds[1]


def test_a_new_rate_holds_at_once() -> None:
    late_s = []
    for _ in range(5):
        issuer, recorder = make(0.0001)  # the next sample would be an hour away
        with running(issuer):
            until(lambda told=recorder.phases: told == ["issuing"])
            changed = time.monotonic()
            issuer.set_rate(2000.0)
            until(lambda made=recorder.issued: len(made) > 100)
            late_s.append(recorder.issued[0][1] / 1e9 - changed)
            assert recorder.target_qps == 2000.0
    assert min(late_s) < 0.1  # the machine may stall


def test_a_lower_rate_holds_at_once_too() -> None:
    issuer, recorder = make(5000.0)
    with running(issuer):
        until(lambda: len(recorder.issued) > 200)
        issuer.set_rate(50.0)
        time.sleep(0.02)
        changed = time.monotonic()
        time.sleep(0.2)
        assert recorder.count_between(changed, changed + 0.2) < 35


def test_a_pause_stops_the_load_and_leaves_no_burst_behind() -> None:
    issuer, recorder = make(2000.0)
    with running(issuer):
        until(lambda: len(recorder.issued) > 50)
        issuer.set_rate(0.0)
        time.sleep(0.05)
        paused = time.monotonic()
        time.sleep(0.15)
        assert not [at for _, _, at in recorder.issued if at / 1e9 >= paused]
        before = len(recorder.issued)
        issuer.set_rate(2000.0)
        resumed = time.monotonic()
        until(lambda: len(recorder.issued) > before + 20)
        assert recorder.count_between(paused, resumed) == 0


def test_finishing_stops_the_load_and_waits_for_what_is_in_flight() -> None:
    issuer, recorder = make(2000.0)
    with running(issuer) as thread:
        until(lambda: len(recorder.issued) > 10)
        recorder.open_samples = 3
        issuer.finish(600.0)
        until(lambda: recorder.phases[-1] == "draining")
        issued = len(recorder.issued)
        thread.join(0.1)
        assert thread.is_alive()
        assert not recorder.closing
        recorder.open_samples = 0
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert len(recorder.issued) == issued
    assert (recorder.failed, recorder.closing) == (0, True)


def test_what_is_not_back_after_the_drain_time_counts_as_failed() -> None:
    issuer, recorder = make(100.0)
    recorder.open_samples = 4
    with running(issuer) as thread:
        issuer.finish(0.1)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert (recorder.failed, recorder.closing) == (4, True)


def test_a_drain_without_limit_can_be_cut_short() -> None:
    issuer, recorder = make(100.0, duration_s=0.01)
    recorder.open_samples = 1
    with running(issuer) as thread:
        until(lambda: recorder.phases[-1:] == ["draining"])
        thread.join(0.1)
        assert thread.is_alive()
        issuer.finish(0.05)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_the_load_ends_by_itself_after_its_duration() -> None:
    issuer, recorder = make(1000.0, duration_s=0.15)
    began = time.monotonic()
    issuer.run()
    assert 0.15 <= time.monotonic() - began < DEADLINE_S
    assert recorder.phases == ["issuing", "draining"]
    scheduled = [at for _, at, _ in recorder.issued]
    assert max(scheduled, default=0) - min(scheduled, default=0) < 0.15e9


def test_a_failed_attempt_stops_the_load() -> None:
    issuer, recorder = make(500.0)
    recorder.open_samples = 2
    with running(issuer) as thread:
        until(lambda: bool(recorder.issued))
        recorder.failure = "no READY replica"
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
