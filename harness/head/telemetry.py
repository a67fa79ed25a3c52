"""What the head tells those who watch: snapshots, roster and journal news to all, the whole state to whoever asks."""

from __future__ import annotations

import contextlib
import time
from typing import Protocol

from harness.head.acts import Acts
from harness.head.attempt import Attempt
from harness.head.barrier import BarrierView
from harness.head.control_server import ControlServer
from harness.head.gpuwatch import GpuWatch
from harness.head.journal import Journal
from harness.head.live import Live
from harness.head.operations import Operations
from harness.head.placement import Placement
from harness.head.roster import Replica, Roster
from harness.head.runbook import RunBook
from harness.head.snapshot import SnapshotBuilder, View
from harness.head.stragglers import StragglerDuty
from harness.records.clusterlog import ClusterWriter
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.spec import RunSpec
from harness.wire import control
from harness.wire.clusterview import ClusterView


class Head(Protocol):
    """What telemetry reads of the supervisor."""

    folder: RunFolder
    spec: RunSpec
    book: RunBook
    server: ControlServer
    journal: Journal
    roster: Roster
    live: Live
    duty: StragglerDuty
    ops: Operations
    acts: Acts
    placement: Placement
    gpus: GpuWatch
    attempt: Attempt | None
    barrier: BarrierView | None
    phase: str
    phase_since_unix: float
    synthetic: bool


class Telemetry:
    def __init__(self, head: Head) -> None:
        self._head = head
        self._builder = SnapshotBuilder(head.roster, head.live)
        self._sequence = 0
        self._roster_told = 0
        self._cluster_told: ClusterView | None = None
        self._cluster_log = ClusterWriter(head.folder.cluster)
        self._cpu = (time.monotonic(), time.process_time(), 0.0)
        self._cpu_percent = (0.0, 0.0)

    def measure_cpu(self, now_s: float) -> None:
        """Once a second: percent of a core, of the head and of the driver."""
        then_s, own, driver = self._cpu
        own_now, batch = time.process_time(), self._head.live.batch
        driver_now = batch.cpu_s if batch is not None else 0.0
        span = max(1e-3, now_s - then_s)
        self._cpu_percent = (100 * (own_now - own) / span, max(0.0, 100 * (driver_now - driver) / span))
        self._cpu = (now_s, own_now, driver_now)

    def publish_snapshot(self, now_s: float) -> control.FleetSnapshot:
        head = self._head
        self._sequence += 1
        head_cpu, driver_cpu = self._cpu_percent
        ramp = head.ops.ramp
        view = View(
            seq=self._sequence,
            head_epoch=head.book.epoch,
            phase=head.phase,
            phase_since_unix=head.phase_since_unix,
            attempt=head.attempt,
            barrier=head.barrier,
            judgement=head.duty.judgement,
            straggler_note=head.duty.note(now_s),
            mechanism=head.ops.mechanism,
            paused=head.ops.paused,
            policy=head.duty.policy,
            controller=head.acts.controller,
            synthetic=head.synthetic,
            head_cpu_percent=head_cpu,
            driver_cpu_percent=driver_cpu,
            target_qps=head.ops.rate_qps,
            evictions=head.acts.evictions,
            ramp_to_qps=ramp.to_qps if ramp else 0.0,
            ramp_left_s=ramp.left_s if ramp else 0.0,
        )
        snapshot = self._builder.build(view, now_s)
        head.server.publish(snapshot)
        return snapshot

    def publish_roster(self) -> None:
        """Slots whose facts changed since the last time, if any."""
        roster = self._head.roster
        if roster.version == self._roster_told:
            return
        self._roster_told = roster.version
        changed = self._slot_infos(roster.take_changed())
        self._head.server.publish(control.RosterNews(roster.version, changed, self._attempts()))

    def publish_cluster(self, *, final: bool = False) -> None:
        """What is seen of pods and nodes, if that has changed; told and recorded."""
        view = self._head.placement.view()
        if view is None:
            return
        if view is not self._cluster_told:
            self._cluster_told = view
            self._head.server.publish(view)
        with contextlib.suppress(RecordError):  # tried again; of a disk that stays full, the samples tell
            self._cluster_log.take(view, time.time(), final=final)
        if final:
            self._cluster_log.close()

    def state(self, request: control.GetState, role: str) -> control.RunState:
        head = self._head
        tail = list(head.journal.tail)[-request.journal_tail :] if request.journal_tail > 0 else []
        return control.RunState(
            request_id=request.request_id,
            run=head.folder.name,
            spec=head.spec.model_dump_json().encode(),
            head_epoch=head.book.epoch,
            phase=head.phase,
            roster_version=head.roster.version,
            slots=self._slot_infos(head.roster.replicas),
            attempts=self._attempts(),
            journal=tail,
            series=head.live.series,
            role=role,
            controller=head.acts.controller,
            record=str(head.folder.path),
            started_unix=head.book.run.started_unix,
            telemetry=head.server.telemetry,
            synthetic=head.synthetic,
            head_versions=head.book.run.versions,
            cluster=head.placement.view(),
            gpus=head.gpus.view,
        )

    def _attempts(self) -> list[control.AttemptInfo]:
        """Without what only the record needs: settings and LoadGen's own result are most of an AttemptRecord."""
        fields = control.AttemptInfo.__struct_fields__
        return [control.AttemptInfo(**{name: getattr(a, name) for name in fields}) for a in self._head.book.attempts]

    def _slot_infos(self, replicas: list[Replica]) -> list[control.SlotInfo]:
        return [replica.info(str(self._head.folder.log_of_slot(replica.slot))) for replica in replicas]
