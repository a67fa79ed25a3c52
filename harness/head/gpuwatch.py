"""GPU metrics beside the run: round after round read, put to replicas, judged by the alert rules, told and recorded.

A task of its own, so that a slow or dead source delays nothing; one request is in flight at a time, and a round that comes
late is left out, not queued. Alerts mark and explain. None of them ever evicts: for uncorrectable errors they propose it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness.head.attempt import Attempt
from harness.head.gpucolumns import GpuColumns, Times, recorded
from harness.head.gpuplaces import hosts_of, identity_of, places_of
from harness.head.journal import Journal
from harness.head.roster import Replica, Roster
from harness.metrics.gpu.alerts import AlertBook, Change, find
from harness.metrics.gpu.base import MetricsSource, QueryAnswer, Reading, SourceError
from harness.metrics.gpu.choose import Supply
from harness.metrics.gpu.join import GpuPlace, Joined, Joiner
from harness.metrics.gpu.roles import ROLES
from harness.metrics.gpu.rules import load_rules
from harness.metrics.gpu.window import RoleHistory
from harness.records.writer import RecordWriter
from harness.spec import RunSpec
from harness.wire import inquiry, states
from harness.wire.control import FleetSnapshot
from harness.wire.gpus import AlertRow, GpuView

_LEVELS = {"info": "info", "warn": "warn", "crit": "error"}
_EXAMPLES = 6
_OF_ENGINES = {"vllm", "sglang", "paceline"}  # profiles without a GPU
_CLOSING_S = 8.0
_FLICKER_S = 300.0  # an exporter that comes and goes is one line in the journal, not one each round
_MOST_SERIES = 1000

log = logging.getLogger("paceline.head")


class Head(Protocol):
    spec: RunSpec
    journal: Journal
    roster: Roster
    writer: RecordWriter
    attempt: Attempt | None
    snapshot: FleetSnapshot | None


@dataclass(slots=True)
class _Fleet:
    """The machines and GPUs of the fleet, as its replicas have registered."""

    version: int  # of the roster
    places: list[GpuPlace]
    hosts: list[str]
    joiner: Joiner


class GpuWatch:
    def __init__(
        self, head: Head, supply: Supply, publish: Callable[[GpuView], None], unix: Callable[[], float] = time.time
    ) -> None:
        """Raises RulesError, before anything has begun."""
        self._head, self._supply, self._publish, self._unix = head, supply, publish, unix
        self._spec = head.spec.metrics.gpu
        self.devices = max(1, head.spec.fleet.layout.devices)
        self._rules = load_rules(head.spec.metrics.rules)
        self._book = AlertBook(self._rules, unix)
        stale_after_s = self._spec.stale_after_s
        slow = {role.name: stale_after_s + self._spec.slow_interval_s for role in ROLES.values() if role.slow}
        self._columns = GpuColumns(len(head.roster.replicas) * self.devices, stale_after_s, slow)
        self._history = RoleHistory()
        self._recorded: dict[str, Times] = {}
        self._fleet: _Fleet | None = None
        self._gpus_of: dict[str, tuple[str, ...]] = {}  # slot → what tells its GPUs from others
        self._not_collected: dict[str, str] = {}
        self._tainted: set[tuple[int, str, str]] = set()  # attempt, rule and subject that a note tells of
        self._slow_due_unix = 0.0
        self._resolution_s = math.nan
        self._said, self._said_unix = "", 0.0
        self._task: asyncio.Task[None] | None = None
        self.view = GpuView(unix(), "starting")

    def start(self, fired: Sequence[AlertRow] = ()) -> None:
        """`fired`: alerts that the head before this one left firing."""
        self._book.restore(fired)
        self._task = asyncio.get_running_loop().create_task(self._rounds())

    async def close(self) -> None:
        """Ends the rounds; what still fires is written down as ended with the run."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for change in self._book.end_all():
            self._note(change, "the run ends; ")
        try:
            async with asyncio.timeout(_CLOSING_S):
                await self._supply.close()
        except Exception:
            log.exception("the source of GPU metrics could not be closed")

    def cause_of(self, slot: str) -> str:
        """What an alert says of that replica, its node or nobody: a few words, the gravest first."""
        node = slot.partition("/")[0]
        rows = [row for row in self.view.alerts if row.cause and row.subject in (slot, node)]
        rows.sort(key=lambda row: (-("info", "warn", "crit").index(row.severity), row.subject != slot, row.since_unix))
        return ", ".join(dict.fromkeys(row.cause for row in rows))

    @property
    def _patience_s(self) -> float:
        return 3 * self._spec.interval_s

    # --- rounds ------------------------------------------------------------------------------------------

    async def _rounds(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await self._round()
            except SourceError as error:
                self._failed(error)
            except Exception as error:
                log.exception("a round of GPU metrics failed")
                self._failed(SourceError("bad_answer", f"{type(error).__name__}: {error}"))
            late_s = time.monotonic() - began_s
            await asyncio.sleep(max(0.2, self._spec.interval_s - late_s))

    async def _round(self) -> None:
        fleet = self._fleet_now()
        if fleet is None:
            return  # nobody has registered: there is nothing to put series to
        if died := self._supply.problem:  # told before `open` starts another in its place
            self._failed(SourceError("unreachable", died))
        source = await self._supply.open(fleet.hosts)
        if source is None:
            self._show(GpuView(self._unix(), "none", problem=self._supply.why))
            return
        now = self._unix()
        slow = now >= self._slow_due_unix
        asked = [role.name for role in ROLES.values() if slow or not role.slow]
        reading = await source.read(asked)
        self._not_collected = {role: why for role, why in self._not_collected.items() if role not in asked}
        self._not_collected |= reading.not_collected
        if slow and reading.roles:  # a Prometheus that has just been started knows nothing yet
            self._slow_due_unix = now + self._spec.slow_interval_s
        if not math.isnan(reading.resolution_s):
            self._resolution_s = reading.resolution_s
        joined = fleet.joiner.place(reading)
        self._take(reading, joined)
        problems = await self._judge(source, reading, joined)
        self._record(reading.unix)
        self._tell(source, reading, joined, [*reading.problems, *problems])

    def _fleet_now(self) -> _Fleet | None:
        """Again whenever the roster has changed; None while no replica has said where it is."""
        roster = self._head.roster
        if self._fleet is None or self._fleet.version != roster.version:
            known = [replica for replica in roster.replicas if replica.registered is not None]
            if not known:
                return None
            places = [place for replica in roster.replicas for place in places_of(replica, self.devices)]
            if self._fleet is not None and self._fleet.places == places:  # most changes move no GPU, and a joiner has learnt
                self._fleet.version = roster.version
            else:
                hosts = list(dict.fromkeys(hosts_of(replica)[0] for replica in known))
                self._fleet = _Fleet(roster.version, places, hosts, Joiner(places, self._spec.hosts))
                self._forget_moved(known)
        return self._fleet

    def _forget_moved(self, known: Sequence[Replica]) -> None:
        """A slot that came back on other GPUs: their counts have nothing to do with those of its old ones."""
        moved: list[int] = []
        for replica in known:
            now = identity_of(replica)
            if self._gpus_of.setdefault(replica.slot, now) != now:
                self._gpus_of[replica.slot] = now
                moved += range(replica.index * self.devices, (replica.index + 1) * self.devices)
        if moved:
            self._columns.forget(moved)
            self._history.forget(moved)

    def _take(self, reading: Reading, joined: Joined) -> None:
        for role, values in joined.columns.items():
            self._columns.take(role, values, joined.unix[role], reading.roles[role].metric)
        self._history.push(reading.unix, joined.columns)

    def _record(self, unix: float) -> None:
        news, self._recorded = recorded(self._recorded, self._columns.fresh(unix))
        attempt = self._head.attempt
        slots = [replica.slot for replica in self._head.roster.replicas]
        self._head.writer.gpus(attempt.number if attempt is not None else 0, unix, news, slots, self.devices)

    # --- alerts ------------------------------------------------------------------------------------------

    async def _judge(self, source: MetricsSource, reading: Reading, joined: Joined) -> list[str]:
        """What of the rules could not be evaluated, in words."""
        replicas = self._head.roster.replicas
        findings = await find(
            source,
            self._rules,
            self._history,
            joined,
            self._gpus_expected(reading),
            profiles=reading.profiles,
            serving=np.repeat([replica.state == states.READY for replica in replicas], self.devices),
            spec=self._spec,
            # A minute must hold a few samples of the source, or nothing in it can ever have changed.
            window_s=max(60.0, 4 * self._resolution_s) if self._resolution_s == self._resolution_s else 60.0,
        )
        for change in self._book.update(findings, reading.unix):
            self._note(change)
        self._taint()
        return findings.problems

    def _taint(self) -> None:
        """An attempt gets a note of each GPU whose tokens may be wrong, which no latency shows, whenever that began."""
        attempt = self._head.attempt
        if attempt is None:
            return
        for row in self._book.rows():
            replica = self._head.roster.by_slot.get(row.subject)
            serves = replica is None or replica.state == states.READY
            known = attempt.number, row.rule, row.subject
            if row.act == "evict" and serves and known not in self._tainted:
                self._tainted.add(known)
                attempt.record.notes.append(f"{row.subject}: {row.text}")

    def _gpus_expected(self, reading: Reading) -> int:
        """None on CPUs, and none of a source that has engines' pages only: it cannot miss what it was never to have."""
        engines_only = reading.profiles and set(reading.profiles) <= _OF_ENGINES
        return 0 if engines_only else len(self._head.roster.replicas) * self._head.spec.fleet.layout.devices

    def _note(self, change: Change, because: str = "") -> None:
        row = change.row
        if not change.started:
            why = f"{because}it was: {row.text}"
            self._head.journal.note("alert.end", subject=row.subject, why=why, rule=row.rule, since_unix=row.since_unix)
            return
        evict = f"; evict it: paceline evict {row.subject}" if row.act == "evict" else ""
        self._head.journal.note(
            "alert.start",
            subject=row.subject,
            why=f"{row.text}{evict}",
            level=_LEVELS.get(row.severity, "warn"),
            rule=row.rule,
            severity=row.severity,
            value=None if math.isnan(row.value) else row.value,
            cause=row.cause,
            act=row.act,
        )
        snapshot = self._head.snapshot
        if row.cause and snapshot is not None and row.subject in (*snapshot.slow, *snapshot.slow_nodes):
            self._head.journal.note("straggler.cause", subject=row.subject, why=f"likely cause: {row.cause}; {row.text}")

    # --- what is told ------------------------------------------------------------------------------------

    def _tell(self, source: MetricsSource, reading: Reading, joined: Joined, problems: Sequence[str]) -> None:
        rows = self._columns.rows(self._unix())
        newest = max((row.sampled_unix for row in rows), default=0.0)
        if not (rows or reading.roles) and self.view.state == "starting" and self._unix() - self.view.unix < self._patience_s:
            return  # a Prometheus that has just been started has scraped nothing yet
        if not rows:
            state, problem = "stale", "; ".join(problems[:1]) or _nobodys(joined)
        elif self._unix() - newest > self._spec.stale_after_s:
            state, problem = "stale", f"its newest value is {self._unix() - newest:.0f} s old"
        else:
            state, problem = ("partial" if problems else "ok"), "; ".join(problems[:_EXAMPLES])
        self._show(
            GpuView(
                self._unix(), state,
                kind=source.kind,
                source=source.name,
                profiles=list(reading.profiles),
                interval_s=self._spec.interval_s,
                resolution_s=self._resolution_s,
                devices=self.devices,
                roles=rows,
                not_collected=self._not_collected,
                problem=problem,
                warnings=list(reading.warnings[:_EXAMPLES]),
                matched=joined.matched,
                gpus_unmatched=joined.gpus_unmatched,
                series_unmatched=joined.series_unmatched,
                unmatched=list(joined.examples[:_EXAMPLES]),
                alerts=self._book.rows(),
                rules=len(self._rules),
            )
        )  # fmt: skip

    def _failed(self, error: SourceError) -> None:
        """What was known stays, with its age; alerts that fire go on firing, since nobody knows better."""
        last, source = self.view, self._supply.source
        self._show(
            GpuView(
                self._unix(), "down",
                kind=source.kind if source is not None else last.kind,
                source=source.name if source is not None else last.source,
                profiles=last.profiles,
                interval_s=self._spec.interval_s,
                resolution_s=self._resolution_s,
                devices=self.devices,
                roles=self._columns.rows(self._unix()),
                not_collected=self._not_collected,
                problem=str(error),
                matched=last.matched,
                gpus_unmatched=last.gpus_unmatched,
                series_unmatched=last.series_unmatched,
                alerts=self._book.rows(),
                rules=len(self._rules),
            )
        )  # fmt: skip

    def _show(self, view: GpuView) -> None:
        self.view = view
        self._publish(view)
        said = f"{view.source}: {view.state}"
        flickers = {view.state, self._said.rpartition(": ")[2]} == {
            "ok",
            "partial",
        } and self._unix() - self._said_unix < _FLICKER_S
        if said == self._said or flickers:
            return
        self._said, self._said_unix = said, self._unix()
        self._head.journal.note(
            "metrics.source",
            subject=view.source or "GPU metrics",
            after=view.state,
            why=view.problem,
            level="warn" if view.state in ("down", "stale", "partial") else "info",
            kind=view.kind,
            profiles=view.profiles,
            interval_s=view.interval_s,
            resolution_s=None if math.isnan(view.resolution_s) else view.resolution_s,
            devices=view.devices,
            matched=view.matched,
            gpus_unmatched=view.gpus_unmatched,
            not_collected=view.not_collected,
        )

    # --- what consoles ask -------------------------------------------------------------------------------

    async def curves(self, question: inquiry.QueryMetrics) -> inquiry.MetricCurves:
        source, began_s = self._supply.source, time.monotonic()
        if source is None:
            return inquiry.MetricCurves(question.request_id, problem=self.view.problem or "the source is not open yet; ask again")
        try:
            answer = await source.query(
                question.query,
                question.start_unix or None,
                question.end_unix or None,
                question.step_s or None,
                most=min(max(1, question.most), _MOST_SERIES),
            )
        except SourceError as error:
            return inquiry.MetricCurves(question.request_id, source=source.name, problem=str(error))
        return _told(question, source.name, answer, 1e3 * (time.monotonic() - began_s))

    async def names(self, question: inquiry.GetMetricNames) -> inquiry.MetricNames:
        source = self._supply.source
        if source is None:
            return inquiry.MetricNames(question.request_id, problem=self.view.problem or "the source is not open yet; ask again")
        try:
            found = await source.metrics()
        except SourceError as error:
            return inquiry.MetricNames(question.request_id, source=source.name, problem=str(error))
        names = [inquiry.MetricName(info.name, info.type, info.help, list(info.roles)) for info in found]
        return inquiry.MetricNames(question.request_id, names, source.name)


def _nobodys(joined: Joined) -> str:
    if not joined.series_unmatched:
        return "the source has no series of this fleet's GPUs"
    return f"none of the source's {joined.series_unmatched:,d} GPUs is this fleet's: {joined.examples[-1]}"


def _told(question: inquiry.QueryMetrics, source: str, answer: QueryAnswer, took_ms: float) -> inquiry.MetricCurves:
    curves = [
        inquiry.MetricCurve(curve.labels, np.asarray(curve.unix, "<f8").tobytes(), np.asarray(curve.values, "<f8").tobytes())
        for curve in answer.curves
    ]
    return inquiry.MetricCurves(
        request_id=question.request_id,
        curves=curves,
        kind=answer.kind,
        text=answer.text,
        step_s=answer.step_s,
        took_ms=took_ms,
        left_out=answer.left_out,
        source=source,
        warnings=list(answer.warnings),
    )
