"""The FleetSnapshot: everything a screen shows that moves, as columns, four times a second."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from harness.head import roles
from harness.head.attempt import Attempt
from harness.head.barrier import BarrierView
from harness.head.live import Live
from harness.head.roster import Roster
from harness.metrics.stragglers import Judgement
from harness.spec import LoadSpec
from harness.wire import states
from harness.wire.control import FleetSnapshot, SlaView

_MISSING_SHOWN = 20


@dataclass(slots=True)
class View:
    """What the supervisor hands over for one snapshot."""

    seq: int
    head_epoch: int
    phase: str
    phase_since_unix: float
    attempt: Attempt | None
    barrier: BarrierView | None
    judgement: Judgement | None
    straggler_note: str
    mechanism: str
    paused: bool
    policy: str
    controller: str
    synthetic: bool
    head_cpu_percent: float
    driver_cpu_percent: float
    target_qps: float
    evictions: int = 0
    ramp_to_qps: float = 0.0
    ramp_left_s: float = 0.0


class SnapshotBuilder:
    def __init__(self, roster: Roster, live: Live) -> None:
        self._roster = roster
        self._live = live
        self._slow_s = 0.0
        self._cached: dict[str, Any] = {}

    def build(self, view: View, now_s: float) -> FleetSnapshot:
        if now_s - self._slow_s >= 1.0:
            self._slow_s = now_s
            self._cached = self._once_a_second(view, now_s)
        roster, live, attempt = self._roster, self._live, view.attempt
        batch = live.batch if attempt is not None else None
        load = attempt.spec.load if attempt is not None else roster.spec.load
        judgement = view.judgement
        slow = judgement.slow if judgement else []
        barrier = view.barrier
        return FleetSnapshot(
            unix=time.time(),
            seq=view.seq,
            head_epoch=view.head_epoch,
            roster_version=roster.version,
            phase=view.phase,
            phase_since_unix=view.phase_since_unix,
            attempt=attempt.number if attempt else 0,
            attempt_kind=load.kind,
            attempt_state=attempt.phase if attempt else "",
            scenario=load.scenario,
            mechanism=view.mechanism,
            target_qps=view.target_qps,
            paused=view.paused,
            elapsed_s=live.elapsed_s if attempt else 0.0,
            duration_s=_least_s(load, batch.planned if batch else 0, view.target_qps),
            min_queries=(batch.planned if batch else 0) or load.min_queries or 0,
            issued=batch.issued if batch else 0,
            completed=batch.completed if batch else 0,
            redispatched=batch.redispatched if batch else 0,
            failed=batch.failed if batch else 0,
            in_flight=batch.in_flight if batch else 0,
            backlog=batch.held if batch else 0,
            backlog_slope=live.backlog_slope,
            offered_qps=live.offered_qps,
            scheduled_qps=live.scheduled_qps,
            completed_qps=live.completed_qps,
            tokens_per_s=self._tokens_per_s(),
            tokens_per_s_whole=live.tokens / live.elapsed_s if live.elapsed_s > 0 else 0.0,
            counts=roster.count(),
            missing=barrier.missing[:_MISSING_SHOWN] if barrier else [],
            missing_total=len(barrier.missing) if barrier else 0,
            slow=[roster.replicas[replica.slot_index].slot for replica in slow],
            slow_nodes=judgement.slow_nodes if judgement else [],
            fleet_slow=judgement.fleet_slow if judgement else False,
            slow_age_s=[max(0.0, now_s - replica.since_s) for replica in slow],
            straggler_note=view.straggler_note,
            acts=len(attempt.acts) if attempt else 0,
            policy=view.policy,
            controller=view.controller,
            synthetic=view.synthetic,
            head_cpu_percent=view.head_cpu_percent,
            driver_cpu_percent=view.driver_cpu_percent,
            evictions=view.evictions,
            ramp_to_qps=view.ramp_to_qps,
            ramp_left_s=view.ramp_left_s,
            roles=roles.views(roster, live),
            **self._cached,
            **self._columns(judgement, now_s),
        )

    def _once_a_second(self, view: View, now_s: float) -> dict[str, Any]:
        """Quantiles of 512 replicas and projections cost a few ms: once a second is enough."""
        live = self._live
        left = self._samples_left(view)
        lag_p50, lag_p99 = live.lag_ms()
        window_end_s = live.latency_now_s(now_s)
        ttft: SlaView = live.ttft.view(window_end_s, left)
        tpot: SlaView = live.tpot.view(window_end_s, left)
        return {
            "ttft": ttft,
            "tpot": tpot,
            "issue_lag_p50_ms": lag_p50,
            "issue_lag_p99_ms": lag_p99,
            "ttft_p99_ms": live.ttft.windows.replica_quantile(0.99).astype("<f4").tobytes(),
            "tpot_p99_ms": live.tpot.windows.replica_quantile(0.99).astype("<f4").tobytes(),
        }

    def _samples_left(self, view: View) -> float:
        attempt, batch = view.attempt, self._live.batch
        if attempt is None or batch is None or attempt.spec.load.duration_s <= 0:
            return 0.0
        load = attempt.spec.load
        planned = batch.planned or max(load.duration_s * view.target_qps, load.min_queries or 0)
        return max(0.0, planned - batch.completed)

    def _tokens_per_s(self) -> float:
        """Tokens that replicas generate now, by their heartbeats: also those of samples still in flight."""
        return float(sum(r.tokens_s for r in self._roster.replicas if r.tokens_s == r.tokens_s))

    def _columns(self, judgement: Judgement | None, now_s: float) -> dict[str, Any]:
        replicas = self._roster.replicas
        n = len(replicas)
        floats = {name: np.full(n, np.nan, "<f4") for name in _BEAT_FLOATS}
        ints = {name: np.zeros(n, "<i4") for name in ("running", "waiting", "restarts")}
        codes = np.zeros(n, np.uint8)
        for i, replica in enumerate(replicas):
            codes[i] = states.REPLICA_CODE[replica.state]
            floats["state_age_s"][i] = now_s - replica.since_s
            ints["restarts"][i] = max(0, replica.nth - 1)
            beat = replica.beat
            if beat is None:
                continue
            floats["beat_age_s"][i] = now_s - replica.beat_s
            floats["kv_use"][i] = beat.kv_use
            floats["tokens_s"][i] = replica.tokens_s
            if beat.steps:
                floats["step_ms"][i] = beat.step_ms
                floats["batch"][i] = beat.batch
            ints["running"][i] = beat.running
            ints["waiting"][i] = beat.waiting
        columns: dict[str, npt.NDArray[Any]] = {**floats, **ints, "state_code": codes}
        nothing = np.full(n, np.nan, "<f4")
        # A judgement is of the last window: it says nothing of an incarnation that was not READY then.
        young = (codes != states.REPLICA_CODE[states.READY]) | (floats["state_age_s"] < self._roster.spec.stragglers.window_s)
        columns["ratio"] = np.where(young, np.nan, judgement.ratio).astype("<f4") if judgement else nothing
        columns["z"] = np.where(young, np.nan, judgement.z).astype("<f4") if judgement else nothing
        columns["outstanding"] = self._live.outstanding.astype("<i4")
        columns["oldest_s"] = (self._live.oldest_ms / 1000.0).astype("<f4")
        return {name: column.tobytes() for name, column in columns.items()}


_BEAT_FLOATS = ("kv_use", "tokens_s", "step_ms", "batch", "beat_age_s", "state_age_s")


def _least_s(load: LoadSpec, planned: int, qps: float) -> float:
    """How long the load takes at least. Where a count decides, as in accuracy and compliance, no minimum duration applies."""
    if load.kind in ("accuracy", "compliance") and planned and qps > 0:
        return planned / qps
    return load.duration_s


def timeline_columns(snapshot: FleetSnapshot) -> dict[str, npt.NDArray[Any]]:
    """The row a slot that the record keeps once a second, from the snapshot that screens got."""
    fields = msgspec.structs.asdict(snapshot)
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.frombuffer(fields[name], "<f4") for name in ("kv_use", "tokens_s", "step_ms", "batch", "ratio", "z")
    }
    for name in ("outstanding", "running", "waiting"):
        columns[name] = np.frombuffer(fields[name], "<i4")
    columns["state"] = np.frombuffer(snapshot.state_code, np.uint8)
    return columns
