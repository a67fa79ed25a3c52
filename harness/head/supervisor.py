"""The supervisor: the truth about a run. Wires roster, workers, attempts, acts, record and telemetry together.

One asyncio loop, no locks: what arrives is handled as it arrives, what recurs hangs on one clock (`_tick`, at the
snapshot rate). The life of a run is the one coroutine `run`: place, wait at the barrier, attempt after attempt, end.
Everything else only sets what that coroutine looks at (`Operations.wanted`, `.stopping`) or moves a state machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time

from harness.cluster.base import ClusterError
from harness.cluster.choose import cluster_of
from harness.engines import registry
from harness.head import barrier as barriers
from harness.head.acts import Acts
from harness.head.attempt import Attempt, Outcome
from harness.head.before import Before
from harness.head.control_server import ControlServer
from harness.head.drains import Drains
from harness.head.exposition import HeadMetrics
from harness.head.fleetbook import FleetBook
from harness.head.gpuwatch import GpuWatch
from harness.head.inquiries import Inquiries
from harness.head.journal import Journal
from harness.head.kernelwatch import KernelWatch
from harness.head.live import Live
from harness.head.operations import Operations, Stop, Wanted
from harness.head.placement import Placement
from harness.head.results import conclude, measure_left_open
from harness.head.roster import Replica, Roster
from harness.head.runbook import RunBook
from harness.head.snapshot import timeline_columns
from harness.head.stragglers import StragglerDuty
from harness.head.telemetry import Telemetry
from harness.head.workers import Workers
from harness.metrics.exposition import listen_address
from harness.metrics.gpu.choose import Supply
from harness.metrics.gpu.simgpus import FleetLoad, fleet_load
from harness.mlperf.judging import take_answers
from harness.records.errors import RecordError
from harness.records.journal import JournalWriter
from harness.records.layout import RunFolder
from harness.records.writer import RecordWriter
from harness.spec import RunSpec
from harness.wire import attempt as up
from harness.wire import control, inquiry, sockets, states
from harness.wire.keys import ServerKeys
from harness.wire.page import PageServer

#: Until the barrier has opened most of the fleet may be missing, and what most of it has is not known.
_FORMING = (states.PLACING, states.REGISTERING, states.WARMING)

log = logging.getLogger("paceline.head")


class Supervisor:
    def __init__(self, folder: RunFolder, spec: RunSpec, keys: ServerKeys, book: RunBook) -> None:
        self.folder, self.spec, self.book = folder, spec, book
        self.phase = states.PLACING
        self.phase_since_unix = time.time()
        self.synthetic = registry.is_synthetic(spec)
        self._slots = spec.slots()
        self._loop = asyncio.get_running_loop()
        self._context = sockets.context()
        self.server = ControlServer(
            self._loop, self._context, keys, book.control_address, book.telemetry_address, self._on_message
        )
        self.journal = Journal(JournalWriter(folder.journal), self._publish_entry, time.time)
        self.roster = Roster(spec, registry.args_hash(spec), self._on_move, time.monotonic, time.time)
        self.fleet = FleetBook(folder, spec)
        self.kernels = KernelWatch(self.roster, self.journal)
        self.live = Live(spec, len(self._slots))
        self.writer = RecordWriter(folder, spec.record.chunk_s)
        self.duty = StragglerDuty(self, spec.stragglers, self._slots)
        self.workers = Workers(
            self.roster,
            self.journal,
            self.server.send,
            head_epoch=book.epoch,
            spec_json=spec.model_dump_json().encode(),
            clock=time.monotonic,
            on_beat=self.duty.observe,
        )
        self.placement = Placement(self, cluster_of(folder, spec), self._loop.call_later)
        self.drains = Drains(self.roster, time.monotonic, self._recycle, self.placement.evict, {}, set())
        self.ops = Operations(self, spec)
        self.acts = Acts(self.ops, self.roster, self.drains, self.journal, spec, time.monotonic, self.placement)
        self.attempt: Attempt | None = None
        self.barrier: barriers.BarrierView | None = None
        self.metrics = HeadMetrics(self)
        self._page = PageServer(self.metrics.render)
        self.page_url = ""
        self.gpus = GpuWatch(self, Supply(spec, folder.path, self._fleet_load), self.server.publish)
        self.snapshot: control.FleetSnapshot | None = None
        self.telemetry = Telemetry(self)
        self.inquiries = Inquiries(self, self.server.send)
        self._second = 0
        self._swept_s = time.monotonic()
        self._flushing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.folder.name

    # --- the life of a run -------------------------------------------------------------------------------

    async def run(self) -> str:
        """Returns the phase it ended in. Never raises: trouble is a phase with a reason."""
        ticker = asyncio.create_task(self._tick_for_ever())
        try:
            return await self._live()
        except Exception as error:
            log.exception("the head failed")
            reason = f"the head failed: {type(error).__name__}: {error}"
            self.book.close_left_open(reason)
            return self._end(states.FAILED, "CRASHED", [reason])
        finally:
            await self._close(ticker)

    async def _live(self) -> str:
        self.journal.note("head.start", why=f"epoch {self.book.epoch}, process {os.getpid()}", epoch=self.book.epoch)
        before = await self._take_up() if self.book.resumed else Before()
        self.page_url = await self._show_page()
        self.book.listen(self.server.endpoint, self.server.telemetry, self.page_url)
        self.gpus.start(list(before.fired.values()))
        try:
            self.placement.start(self.server.endpoint, before.wanted_nodes)
        except ClusterError as error:
            return self._end(states.FAILED, "CRASHED", [str(error)])
        self._to_phase(states.REGISTERING, "workers placed")
        refused = await self._wait_at_barrier()
        if refused is not None:
            return refused
        for slot, incarnation in before.drained.items():
            replica = self.roster.current(slot, incarnation)
            if replica is not None and replica.state == states.READY:
                self._drain_again(replica)
        while True:
            while self.ops.wanted is not None and self.ops.stopping is None:
                wanted, self.ops.wanted = self.ops.wanted, None
                await self._one_attempt(wanted)
            if self.ops.stopping is not None or not await self._keep_warm():
                return self._end_of_run()

    async def _take_up(self) -> Before:
        """Continue a run whose head died: slots keep their counts, operators' settings hold, lost attempts get their figures."""
        before = Before.of(self.folder)
        for slot, (incarnation, nth) in before.lives.items():
            self.roster.remember(slot, incarnation, nth)
        for slot in before.waived:
            if slot in self.roster.by_slot:
                self.roster.by_slot[slot].waived = True
        last = self.book.last_attempt
        if last is not None:
            self.ops.want(Wanted(last.kind, last.target_qps))
        for attempt in self.book.attempts:
            if not attempt.rates:
                await asyncio.to_thread(measure_left_open, attempt, self.folder)
        return before

    def _drain_again(self, replica: Replica) -> None:
        why = "drained before the head restarted"
        self.drains.start(replica, "stay", within_s=math.inf, who="head", why=why, holds_samples=False)

    async def _wait_at_barrier(self) -> str | None:
        """None when it opened; else the phase the run ended in."""
        began = time.monotonic()
        while True:
            view = barriers.look(
                self.roster,
                self.spec.fleet.barrier,
                waited_s=time.monotonic() - began,
                why_no_node=self.placement.why_no_node,
            )
            self.barrier = view
            if self.ops.stopping is not None:
                return self._end(states.ABORTED, "ABORTED", [self.ops.stopping.why or f"stopped by {self.ops.stopping.who}"])
            if view.gave_up:
                return self._end(states.FAILED, "CRASHED", [view.gave_up, *barriers.by_reason(view.missing)[:10]])
            if view.open:
                if view.note:
                    self.journal.note("barrier.quorum", why=view.note, level="warn")
                self.barrier = None
                await self._flush(final=True)
                self._to_phase(states.READY, view.note or f"{view.ready} replicas READY")
                return None
            self._to_phase(view.phase, "")
            await asyncio.sleep(0.05)

    async def _keep_warm(self) -> bool:
        """True when another attempt is wanted."""
        if self.ops.wanted is None and self.ops.stopping is None:
            self.ops.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ops.changed.wait(), self.spec.fleet.keep_warm_s)
        return self.ops.wanted is not None and self.ops.stopping is None

    async def _one_attempt(self, wanted: Wanted) -> None:
        spec = self.spec_of(wanted)
        load = spec.load
        record = self.book.new_attempt(wanted.kind, load.scenario, wanted.qps, wanted.supersedes)
        record.test = load.test or ""
        attempt = Attempt(record, spec, self.folder, self._context, self._on_driver)
        self.live.begin(wanted.qps, record.number)
        self.duty.begin(load.duration_s)
        self.ops.begin(wanted.qps)
        self.attempt = attempt
        self.journal.attempt = record.number
        self.journal.note("attempt.start", subject=str(record.number), why=f"{load.what} {load.scenario} at {wanted.qps:g} QPS")
        ready = [replica for replica in self.roster.replicas if replica.state == states.READY]
        attempt.start(self._slots, len(ready))
        for replica in ready:
            attempt.admit(replica)
        self._to_phase(states.MEASURING, f"attempt {record.number}")
        self.book.save()
        if self.ops.stopping is not None:
            self.ops.end_attempt_for(self.ops.stopping)
        await attempt.ended.wait()
        await self._conclude(attempt)

    def spec_of(self, wanted: Wanted) -> RunSpec:
        """The run's spec with another kind and rate, validated like any other: raises pydantic's ValidationError."""
        raw = self.spec.model_dump()
        raw["load"] |= {"kind": wanted.kind, "target_qps": wanted.qps, "test": wanted.test}
        return RunSpec.model_validate(raw)

    async def _conclude(self, attempt: Attempt) -> None:
        outcome = attempt.outcome or Outcome(False, "the attempt ended without a word")
        self._to_phase(states.DRAINING, "attempt over: logs and results")
        await asyncio.to_thread(attempt.reap)
        self._tell_replicas(control.DataClosed(attempt.record.epoch))
        self.drains.attempt_over()
        self.ops.attempt_over()
        self.inquiries.attempt_over()
        await self._flush(final=True)
        counted = self.live.counted()
        record = attempt.record
        record.ended_unix = time.time()
        try:
            await asyncio.to_thread(conclude, attempt, outcome, self.folder, counted, self.synthetic)
        except Exception as error:
            log.exception("attempt %d: its results cannot be computed", record.number)
            record.verdict, record.state = "CRASHED", "ENDED"
            record.reasons = [outcome.reason, f"its results cannot be computed: {error}"]
        level = {"CRASHED": "error", "INVALID": "warn", "ABORTED": "warn"}.get(record.verdict, "info")
        self.journal.note(
            "attempt.end",
            subject=str(record.number),
            after=record.verdict,
            why="; ".join(record.reasons) or outcome.reason,
            level=level,
        )
        self.attempt = None
        self.live.end()
        self._to_phase(states.READY, f"attempt {record.number} {record.verdict}")
        self.roster.version += 1
        self.book.save()

    def _end_of_run(self) -> str:
        for attempt in take_answers(self.book.run, self.folder):  # scored while the fleet was kept warm
            self.journal.note(
                "attempt.judged", subject=str(attempt.number), after=attempt.verdict, why="; ".join(attempt.reasons)
            )
        last = self.book.last_attempt
        if last is None:
            stop = self.ops.stopping
            return self._end(states.ABORTED, "ABORTED", [stop.why if stop and stop.why else "stopped before an attempt began"])
        phase = {"CRASHED": states.FAILED, "ABORTED": states.ABORTED}.get(last.verdict, states.DONE)
        return self._end(phase, last.verdict, last.reasons)

    def _end(self, phase: str, verdict: str, reasons: list[str]) -> str:
        self.book.end(verdict, reasons)
        self._to_phase(phase, "; ".join(reasons) or verdict)
        return phase

    async def hand_over(self, why: str) -> None:
        """Write down all that is known, for a head that continues the run; the running attempt is lost."""
        self.journal.note("head.hand_over", why=why, level="warn")
        if self.attempt is not None:
            self.attempt.kill()
        await self._flush(final=True)
        self.book.save()

    async def _close(self, ticker: asyncio.Task[None]) -> None:
        """Fleet first, then the last words: a console sees the end before the sockets close."""
        self.workers.ending = True
        self.workers.to_all(control.StopWorker(f"run {self.phase}"))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(self.placement.stop, 8.0)
        self.placement.close()
        await self.gpus.close()
        await self._page.close()
        ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticker
        await self._flush(final=True)
        self.journal.note("head.end", why=f"run {self.phase}")
        self.book.save()
        self.telemetry.publish_snapshot(time.monotonic())
        self.telemetry.publish_roster()
        self.telemetry.publish_cluster(final=True)
        await asyncio.sleep(0.3)
        if self.spec.cluster.kind == "kubernetes":
            await self.inquiries.until_record_taken(self.spec.cluster.kubernetes.keep_record_s, self.server.poke)
        self.inquiries.close()
        self.server.close()
        self._context.destroy(linger=500)
        self.book.gone()

    async def _show_page(self) -> str:
        """Our own /metrics; a port that is taken costs the page, not the run."""
        address = listen_address(self.spec.metrics, self.spec.cluster)
        if address is None:
            return ""
        try:
            return await self._page.start(*address)
        except OSError as error:
            why = f"{address[0]}:{address[1]} cannot be listened on: {error.strerror or error} (metrics.listen)"
            self.journal.note("metrics.page", why=why, level="warn")
            return ""

    def _fleet_load(self) -> FleetLoad:
        return fleet_load(self.roster.replicas, time.monotonic())

    # --- the clock ---------------------------------------------------------------------------------------

    async def _tick_for_ever(self) -> None:
        period = 1.0 / self.spec.metrics.snapshot_hz
        due = time.monotonic()
        while True:
            due = max(due + period, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            try:
                self._tick(time.monotonic())
            except Exception:
                log.exception("a tick failed")  # one bad tick must not stop supervision

    def _tick(self, now: float) -> None:
        self.server.poke()
        self.drains.tick()
        self.placement.tick()
        self.ops.tick()
        new_second = math.floor(now) != self._second
        if new_second:
            self._second = math.floor(now)
            self._each_second(now)
        self.telemetry.publish_roster()
        snapshot = self.snapshot = self.telemetry.publish_snapshot(now)
        if new_second:  # a row a slot for the record, from the snapshot that screens got
            self.writer.timeline(snapshot.attempt, snapshot.unix, timeline_columns(snapshot), self._slots)
        if self.writer.due() and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.create_task(self._flush(final=False))
        trouble = self.journal.trouble or self.book.trouble
        if trouble is not None:
            self._record_trouble(trouble)

    def _each_second(self, now: float) -> None:
        late = now - self._swept_s > max(2.0, self.spec.fleet.lease_s / 2)
        self._swept_s = now
        for replica in self.roster.sweep(late):
            # Its process may hang (a stopped one never ends by itself): have it ended and replaced.
            self.workers.command(replica, control.RecycleSlot(replica.slot, replica.incarnation, replica.reason))
        self.placement.each_second(now)
        self.telemetry.publish_cluster()
        if self.attempt is not None:
            self.attempt.check(late=late)
            self._keep_totals(self.attempt)
            self._remind(self.attempt, now)
        if self.phase not in _FORMING:
            self.kernels.look()
        self.duty.judge(now)
        self.live.tick_series(time.time(), self.roster.ready)
        self.telemetry.measure_cpu(now)

    def _remind(self, attempt: Attempt, now: float) -> None:
        """The data endpoint is told once; a replica that missed it would stay idle for the whole attempt."""
        if not attempt.endpoint or not attempt.running:
            return
        for replica in self.roster.replicas:
            told_s = now - replica.since_s
            if replica.state == states.READY and told_s > 2 and (replica.slot, replica.incarnation) not in attempt.in_pool:
                self.server.send(replica.peer, self._data_endpoint(attempt))

    def _keep_totals(self, attempt: Attempt) -> None:
        """For whoever reads run.json meanwhile, and for the next head should this one be killed."""
        if self.live.batch is not None and self._second % 5 == 0:
            attempt.record.totals = self.live.counted()
            self.book.save()

    def _publish_entry(self, entry: control.JournalEntry) -> None:
        self.server.publish(control.JournalNews([entry]))
        self.metrics.note(entry)

    # --- the record --------------------------------------------------------------------------------------

    async def _flush(self, *, final: bool) -> None:
        try:
            if final:
                self.fleet.save()
            await asyncio.to_thread(self.writer.flush, final=final)
        except RecordError as error:
            self._record_trouble(str(error))
        except Exception as error:
            log.exception("the record cannot be written")
            self._record_trouble(f"{type(error).__name__}: {error}")
        if final and self.writer.dropped_rows:
            self.journal.note("record.dropped", why=f"{self.writer.dropped_rows} rows never reached the disk", level="error")

    def _record_trouble(self, reason: str) -> None:
        """A run whose record has holes is not worth finishing: end the attempt, keep what is there."""
        if self.attempt is not None:
            self.attempt.end(Outcome(False, f"the record cannot be written: {reason}"))
        if self.ops.stopping is None:
            self.ops.stop_for(Stop("head", f"the record cannot be written: {reason}", aborted=False))

    # --- messages ----------------------------------------------------------------------------------------

    def _on_message(self, peer: bytes, role: str, message: control.ToHead) -> None:
        if isinstance(message, control.Command):
            self.server.send(peer, self.acts.run(message, role))
        elif isinstance(message, control.GetState):
            if role == "operator":
                self.acts.seen(message.operator)
            self.server.send(peer, self.telemetry.state(message, role))
        elif isinstance(message, inquiry.Question):
            self.inquiries.ask(peer, message)
        else:
            self.workers.handle(peer, message)

    def _on_driver(self, message: up.ToSupervisor) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        if isinstance(message, up.Batch):
            rows = self.live.take(message, time.monotonic())
            if message.started_unix:
                attempt.record.started_unix = message.started_unix
            self.writer.samples(attempt.number, attempt.record.epoch, rows, self._slots)
        elif isinstance(message, up.DriverUp):
            self._tell_replicas(self._data_endpoint(attempt))
        elif isinstance(message, up.DriverPhase):
            goes_on = message.phase.startswith(states.WARMING_PAIRS) and attempt.record.state.startswith(states.WARMING_PAIRS)
            attempt.record.state = message.phase
            if not goes_on:  # of "3 of 20", "5 of 20" … the journal keeps the first
                self.book.save()
                self.journal.note("attempt.phase", subject=str(attempt.number), after=message.phase)
            if message.phase == "draining":
                self._to_phase(states.DRAINING, "everything is issued; what is in flight finishes")
            if message.phase == "issuing":
                self.duty.load_begins(time.monotonic())
        elif isinstance(message, up.PairsWarmed):
            slowest = f"slowest {message.slowest_pair}: {message.slowest_ms:.0f} ms"
            why = f"{message.count} pairs of prefill and decode in {message.seconds:.1f} s; {slowest}"
            self.journal.note("pairs.warmed", subject=str(attempt.number), why=why, pairs=message.count)
        elif isinstance(message, up.Held):
            self.inquiries.note_held(message)
        elif isinstance(message, up.InPool):
            attempt.in_pool.add((message.slot, message.incarnation))
        elif isinstance(message, up.Drained):
            self.drains.note_drained(message.slot, message.incarnation)
        elif isinstance(message, up.Redispatched):
            if message.samples:
                why = f"{message.samples} samples in flight: {message.reason}"
                self.journal.note("samples.redispatched", subject=message.slot, why=why, level="warn", samples=message.samples)
        elif isinstance(message, up.Silent):
            replica = self.roster.current(message.slot, message.incarnation)
            if replica is not None:
                why = message.why or f"answered nothing for {message.waited_s:.0f} s (sample deadline)"
                self.roster.move(replica, states.LOST, why)
                self.workers.command(replica, control.RecycleSlot(replica.slot, replica.incarnation, why))

    def _data_endpoint(self, attempt: Attempt) -> control.DataEndpoint:
        return control.DataEndpoint(attempt.record.epoch, attempt.endpoint, self.book.server_public)

    def _tell_replicas(self, message: control.DataEndpoint | control.DataClosed) -> None:
        for peer in self.workers.replica_peers():
            self.server.send(peer, message)

    # --- state machines ----------------------------------------------------------------------------------

    def _to_phase(self, phase: str, why: str) -> None:
        if phase == self.phase or phase not in states.RUN_MOVES[self.phase]:
            return
        before, self.phase = self.phase, phase
        self.phase_since_unix = time.time()
        level = "error" if phase == states.FAILED else "info"
        self.journal.note("run.phase", before=before, after=phase, why=why, level=level)
        self.book.phase(phase)

    def _on_move(self, replica: Replica, before: str, why: str, who: str) -> None:
        gone = replica.state in (states.LOST, states.REJECTED) and not why.startswith("recycled")
        self.journal.note(
            "replica.state",
            who=who,
            subject=replica.slot,
            before=before,
            after=replica.state,
            why=why,
            level="warn" if gone or replica.state in (states.SUSPECT, states.EVICTED) else "info",
            incarnation=replica.incarnation,
            nth=replica.nth,
        )
        if replica.state == states.READY:
            self.fleet.note(replica, time.time())
        attempt = self.attempt
        if attempt is None or not attempt.running:
            return
        if replica.state == states.READY:
            attempt.admit(replica)
            if attempt.endpoint and replica.peer:
                self.server.send(replica.peer, self._data_endpoint(attempt))
        elif replica.state in (states.SUSPECT, states.DRAINING):
            attempt.tell(up.Hold(replica.slot, replica.incarnation))
        elif replica.state not in states.ALIVE:
            attempt.tell(up.Drop(replica.slot, replica.incarnation, why))

    def _recycle(self, replica: Replica, why: str) -> None:
        self.roster.move(replica, states.LOST, f"recycled: {why}")
        self.workers.command(replica, control.RecycleSlot(replica.slot, replica.incarnation, why))

    def start_slot(self, replica: Replica) -> None:
        self.placement.start_slot(replica)

    @property
    def attempt_running(self) -> bool:
        return self.ops.attempt_running
