"""All that can be asked of an attempt after it: one object, each answer in less than a second at 2.4 million samples.

A Drill reads the record when a view first needs it, and keeps what it has read: make a new one to see what a run that still goes
on has written since. It may be used from several threads, one at a time. A record without samples (imported logs, a run that
never began) has empty views and figures as run.json has them; nothing here raises for what a record says, only for what was
asked (`harness.analysis.errors`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from harness.analysis.errors import NoSuchAttempt, NoSuchColumn
from harness.analysis.views import (
    METRICS,
    Difference,
    Distribution,
    Effect,
    FleetRow,
    Life,
    LogLine,
    Metric,
    Overview,
    SampleRow,
    Tail,
    Timeline,
    Where,
)
from harness.metrics.kernels import InUse
from harness.records.errors import RecordError
from harness.records.runfile import AttemptRecord, RunFile

if TYPE_CHECKING:
    from harness.analysis.moment import Story
    from harness.analysis.table import AttemptTable
    from harness.records.reader import Record

ALL = Where()


class Drill:
    def __init__(self, record: Record, attempt: int | None = None) -> None:
        """None: the last attempt that has samples, else the last. Raises NoSuchAttempt."""
        self.record = record
        self.unreadable = ""
        try:
            self.run = record.run
        except RecordError as error:
            self.unreadable = str(error)
            self.run = RunFile(run=record.folder.name, spec={}, phase="", synthetic=False)
        self.attempt = self._attempt(attempt)

    def _attempt(self, number: int | None) -> AttemptRecord | None:
        attempts = self.run.attempts
        if number is not None:
            found = next((attempt for attempt in attempts if attempt.number == number), None)
            if found is None:
                there = ", ".join(str(attempt.number) for attempt in attempts) or "none"
                raise NoSuchAttempt(f"{self.run.run} has no attempt {number}; it has {there}")
            return found
        if len(attempts) == 1:
            return attempts[0]
        from harness.analysis.moment import attempts_with_samples

        written = attempts_with_samples(self.record)
        if not attempts:  # run.json is damaged, or was never written again: its samples may be there all the same
            return AttemptRecord(max(written), "", "", 0.0, 0) if written else None
        return next((attempt for attempt in reversed(attempts) if attempt.number in written), attempts[-1])

    # --- what the views share ----------------------------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        """What of the record could not be read, so far."""
        return [*([self.unreadable] if self.unreadable else []), *(p for p in self.record.problems if p != self.unreadable)]

    @property
    def number(self) -> int:
        return self.attempt.number if self.attempt is not None else 0

    @cached_property
    def table(self) -> AttemptTable:
        from harness.analysis.table import AttemptTable

        return AttemptTable(self.record, self.number)

    @cached_property
    def story(self) -> Story:
        from harness.analysis.moment import Story

        return Story(self.record, self.attempt)

    def limit_ms(self, metric: Metric) -> float | None:
        """Of p99. Limits are those of the Server scenario, and of measuring: an accuracy attempt has none."""
        attempt = self.attempt
        if metric == "latency" or attempt is None or attempt.scenario != "Server" or attempt.kind == "accuracy":
            return None
        limits: Any = self.run.spec.get("limits")
        limit = limits.get(f"{metric}_p99_ms") if isinstance(limits, dict) else None
        return float(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 0 else None

    # --- views -------------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        from harness.analysis.findings import overview

        return overview(self)

    def timeline(self, ticks: int = 120) -> Timeline:
        """About so many stretches of equal, round length."""
        from harness.analysis.timeline import timeline

        return timeline(self.table, self.story, ticks)

    def distributions(self) -> list[Distribution]:
        """Of TTFT, TPOT and latency; none of an attempt without samples."""
        from harness.analysis.distributions import distribution

        return [distribution(self.table, metric, self.limit_ms(metric)) for metric in METRICS] if self.table.n else []

    def tail(self, metric: Metric = "ttft", *, over_limit: bool = False, where: Where = ALL) -> Tail:
        """The slowest 1 % of the samples that `where` says, or those over the limit."""
        from harness.analysis.attribution import tail_of, tail_view
        from harness.analysis.table import checked_metric

        if where == ALL:
            self.table.order(checked_metric(metric))  # its sorted values come with it
        found = tail_of(self.table, checked_metric(metric), self.limit_ms(metric), over_limit=over_limit, where=where)
        return tail_view(self.table, found, where)

    def fleet(self, by: Literal["replica", "node"] = "replica") -> list[FleetRow]:
        from harness.analysis.fleet import fleet

        if by not in ("replica", "node"):
            raise NoSuchColumn(f"{by!r} is no part of a fleet; choose replica or node")
        return fleet(self.table, self.story, by, {metric: self.limit_ms(metric) for metric in METRICS})

    def slowest(self, by: Metric = "latency", n: int = 50, where: Where = ALL) -> list[SampleRow]:
        from harness.analysis.slowest import slowest
        from harness.analysis.table import checked_metric

        return slowest(self.table, checked_metric(by), n, where)

    def sample(self, seq: int) -> Life:
        """Raises NoSuchSample."""
        from harness.analysis.life import life

        return life(self.table, self.story, seq)

    def effects(self, window_s: float | None = None) -> list[Effect]:
        """Of each act of an operator or a policy; `window_s`: None is as long as there is room, up to a minute."""
        from harness.analysis.effects import effects

        return effects(self.table, self.story, window_s)

    def config(self) -> list[Difference]:
        from harness.analysis.config import differences

        return differences(self.record, self.attempt)

    def kernels(self) -> list[InUse]:
        """Kernels of MoE layers and their tables, as replicas told; empty where none has such a layer."""
        from harness.analysis.config import kernels

        return kernels(self.record, self.attempt)

    def logs(self, unix: float, *, span_s: float = 5.0, process: str | None = None, most: int = 500) -> list[LogLine]:
        """Lines of that time, `span_s` before and after; of one process (head, driver-1, node003, node003/gpu1) or of all."""
        from harness.analysis.moment import logs

        return logs(self.record.folder, unix, span_s, process, most)
