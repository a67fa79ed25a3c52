"""One LoadGen test over the dispatcher: performance, accuracy or compliance, Server or Offline.

LoadGen runs on the main thread and blocks in StartTest with the GIL released. Nothing may be raised inside its
callbacks (it would be thrown through C++ and crash at the next log flush), so they catch everything and end the
attempt through the dispatcher instead. Offline uses the "fast" SUT, which hands over plain lists: 2.5 times cheaper
where one callback brings millions of samples.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.datasets import Dataset
from harness.driver.dispatcher import Dispatcher, Issued
from harness.driver.sinks import LoadGenSink
from harness.mlperf.schedule import ServerSchedule
from harness.mlperf.settings import Settings, build
from harness.spec import RunSpec
from harness.wire import attempt as up


def run_loadgen(spec: RunSpec, dataset: Dataset, dispatcher: Dispatcher, folder: Path) -> None:
    """Returns when LoadGen has written its logs; the dispatcher's `failure` says if the attempt went wrong."""
    import mlperf_loadgen as lg

    server = spec.load.scenario == "Server"
    settings = build(spec, len(dataset), folder)
    (folder / "asked.json").write_text(json.dumps(settings.asked, indent=1, default=str))
    dispatcher.sink = LoadGenSink(report_first=server)
    dispatcher.target_qps = spec.load.target_qps
    schedule = ServerSchedule(settings.schedule_seed, spec.load.target_qps) if server else None
    if schedule is not None:
        dispatcher.due_ns = _by_number(schedule)
        dispatcher.due_by = schedule.due_by
    dispatcher.planned = _planned(spec, settings, len(dataset), schedule)
    callbacks = _Callbacks(dispatcher)
    qsl = lg.ConstructQSL(len(dataset), settings.performance_count, callbacks.ignore, callbacks.ignore)
    if server:
        sut = lg.ConstructSUT(callbacks.issue, callbacks.flush)
    else:
        sut = lg.ConstructFastSUT(callbacks.issue_fast, callbacks.flush)
    dispatcher.tell(up.DriverPhase("generating schedule"))
    lg.StartTestWithLogSettings(sut, qsl, settings.test_settings, settings.log_settings, settings.audit_path)
    dispatcher.closing = True
    if dispatcher.issued == 0 and dispatcher.failure is None:
        dispatcher.fail("LoadGen ended without issuing a query; see its log in the attempt's folder")


def _planned(spec: RunSpec, settings: Settings, n_samples: int, schedule: ServerSchedule | None) -> int:
    """Queries that LoadGen will generate: its own minimum (of the model's configuration) may exceed rate x duration."""
    if spec.load.kind == "accuracy":
        return n_samples
    test = settings.test_settings
    if test.performance_issue_unique:
        return settings.performance_count
    minimum, duration_ms = int(test.min_query_count), int(test.min_duration_ms)
    multiple = settings.performance_count if test.sample_concatenate_permutation else 1
    if schedule is None:
        samples = max(minimum, math.ceil(spec.load.target_qps * duration_ms / 1000 * 1.1))
        return math.ceil(samples / multiple) * multiple
    planned = schedule.generated(duration_ms, minimum, multiple)
    return min(planned, spec.load.max_queries or planned)


def _by_number(schedule: ServerSchedule, chunk: int = 16384) -> Callable[[int], int]:
    """seq → due ns; computed a chunk at a time, so that no list of millions is ever made at once."""
    known: list[int] = []

    def due(seq: int) -> int:
        while seq >= len(known):
            known.extend(schedule.due_ns(len(known), len(known) + chunk).tolist())
        return known[seq]

    return due


class _Callbacks:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._issuing = False
        # Planted by tests: the n-th issue callback raises.
        self._raise_at = int(os.environ.get("PACELINE_FAULT_ISSUE_RAISES", "0"))
        self._calls = 0

    def issue(self, queries: list[Any]) -> None:
        now = time.monotonic_ns()
        try:
            self._hand_over([(query.id, query.index, -1, now) for query in queries])
        except BaseException as error:
            self._dispatcher.fail(f"LoadGen's issue callback raised {type(error).__name__}: {error}")

    def issue_fast(self, handles: list[int], indices: list[int]) -> None:
        now = time.monotonic_ns()
        try:
            self._hand_over([(handle, index, -1, now) for handle, index in zip(handles, indices, strict=True)])
        except BaseException as error:
            self._dispatcher.fail(f"LoadGen's issue callback raised {type(error).__name__}: {error}")

    def _hand_over(self, issued: list[Issued]) -> None:
        self._calls += 1
        if self._calls == self._raise_at:
            raise RuntimeError(f"planted fault in issue callback {self._calls}")
        self._dispatcher.issue(issued)
        if not self._issuing:
            self._issuing = True
            self._dispatcher.tell(up.DriverPhase("issuing"))

    def flush(self) -> None:
        self._dispatcher.tell(up.DriverPhase("draining"))

    def ignore(self, indices: list[int]) -> None:
        """Prompts are in memory from the start: nothing to load or unload."""
