"""A recorded run at any of its seconds, in the messages that its head would have sent then.

Times here are seconds since the record's first sign of life. What no part of a record holds (age of the oldest sample in
flight, heartbeats, CPU use) is unknown in the snapshots too, never made up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from console.feeds.chronicle import Chronicle
from console.feeds.gpu_tape import GpuTape, read_gpus
from console.feeds.tape import PER_S, AttemptTape, LatencyTape, Progress, TimelineTape, read_timeline, rows_between
from harness.metrics.early_stopping import allowed_over, needed
from harness.metrics.histogram import EDGES_MS, percentiles, quantiles
from harness.metrics.parts import TtftParts
from harness.metrics.projection import project
from harness.metrics.rates import RATE_WINDOW_S
from harness.records.clusterlog import ClusterTape, read_cluster
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.runfile import AttemptRecord, RunFile
from harness.spec import RunSpec
from harness.wire import control
from harness.wire.clusterview import ClusterView
from harness.wire.gpus import GpuView
from harness.wire.inquiry import GetSla, LatencyDetail, SlaDetail
from harness.wire.states import HOLDS_SAMPLES, REPLICA_CODE, REPLICA_STATES

if TYPE_CHECKING:
    from harness.records.reader import Record

JOURNAL_TAIL: Final = 500
SERIES_POINTS: Final = 1800
EPOCH: Final = 1
_MISSING_SHOWN: Final = 20
_WORKING: Final = [REPLICA_CODE[name] for name in sorted(HOLDS_SAMPLES)]


News = control.JournalNews | control.RosterNews | ClusterView | GpuView


class NothingRecorded(Exception):
    """There is no second to play; the text says why."""


class RecordedRun:
    def __init__(self, record: Record, run: RunFile, spec: RunSpec, chronicle: Chronicle, timeline: TimelineTape,
                 tapes: dict[int, AttemptTape], cluster: ClusterTape, gpus: GpuTape) -> None:  # fmt: skip
        self.path, self.problems = record.folder.path, list(record.problems)
        self._record, self.run, self.spec = record, run, spec
        self.chronicle, self.timeline, self.tapes, self.cluster, self.gpus = chronicle, timeline, tapes, cluster, gpus
        spans = [self.chronicle.span, (timeline.unix[0], timeline.unix[-1]) if len(timeline.unix) else None]
        known = [span for span in spans if span is not None]
        if not known:
            raise NothingRecorded(f"{self.path} holds neither a journal nor a timeline: there is nothing to replay")
        self.start_unix = float(min(first for first, _ in known))
        self.length_s = max(1.0, math.ceil(max(last for _, last in known) - self.start_unix))
        loads = [one.started_unix for one in run.attempts if one.started_unix]
        self.load_s = max(0.0, min(loads) - self.start_unix) if loads else 0.0
        self._series = self._all_series()

    def marks_s(self) -> list[int]:
        """Seconds at which an act, an alert or an attempt's beginning or end is on the screens."""
        return sorted({math.ceil(entry.unix - self.start_unix) for entry in self.chronicle.entries if _is_mark(entry)})

    # --- messages --------------------------------------------------------------------------------------------

    def state(self, at_s: float) -> control.RunState:
        """All that a console must know at that second, its past included."""
        unix, run = self.start_unix + at_s, self.run
        return control.RunState(
            request_id="", run=self.path.name, spec=self.spec.model_dump_json().encode(), head_epoch=EPOCH,
            phase=self.chronicle.phase(unix)[0], roster_version=1, slots=self.chronicle.slot_infos(unix),
            attempts=self.chronicle.attempt_infos(unix), journal=self.chronicle.until(unix, JOURNAL_TAIL),
            series=self.series(at_s), role="", controller=self.chronicle.controller(unix), record=str(self.path),
            started_unix=run.started_unix, telemetry="", synthetic=run.synthetic, head_versions=run.versions,
            cluster=self.cluster.at(unix), gpus=self.gpus.at(unix),
        )  # fmt: skip

    def news(self, before_s: float, at_s: float) -> list[News]:
        """What was told between these two seconds, besides snapshots."""
        before, unix = self.start_unix + before_s, self.start_unix + at_s
        found: list[News] = []
        if entries := self.chronicle.between(before, unix):
            moved = self.chronicle.moved_between(before, unix)
            found += [control.JournalNews(entries), control.RosterNews(1, moved, self.chronicle.attempt_infos(unix))]
        view = self.cluster.at(unix)
        if view is not None and view is not self.cluster.at(before):
            found.append(view)
        if self.gpus.moment(before) != self.gpus.moment(unix) and (of_gpus := self.gpus.at(unix)) is not None:
            found.append(of_gpus)
        return found

    def gpu_past(self, at_s: float, rounds: int, roles: Collection[str]) -> Iterator[GpuView]:
        return self.gpus.past(self.start_unix + at_s, rounds, roles)

    def series(self, at_s: float) -> control.FleetSeries:
        """The last half hour until then."""
        last = min(int(at_s) + 1, len(self._series["unix"]))
        columns = {name: values[max(0, last - SERIES_POINTS) : last].tolist() for name, values in self._series.items()}
        for name in ("in_flight", "backlog", "ready"):
            columns[name] = [int(value) for value in columns[name]]
        return control.FleetSeries(**columns)

    def column(self, name: str, at_s: float) -> NDArray[np.float32]:
        """One of the timeline's columns at that second, for sparklines: NaN where there was no value."""
        row = self.timeline.row(self.start_unix + at_s + 0.5)
        if row < 0:
            return np.full(len(self.chronicle.slots), np.nan, dtype=np.float32)
        if name in self.timeline.ints:  # 0 of a replica that is gone is no value
            working = np.isin(self.timeline.state[row], _WORKING)
            return np.where(working, self.timeline.ints[name][row], np.nan).astype(np.float32)
        values: NDArray[np.float32] = self.timeline.floats[name][row]
        return values

    def serving(self, at_s: float) -> NDArray[np.bool_]:
        row = self.timeline.row(self.start_unix + at_s + 0.5)
        if row < 0:
            return np.zeros(len(self.chronicle.slots), dtype=np.bool_)
        return cast("NDArray[np.bool_]", self.timeline.state[row] == REPLICA_CODE["READY"])

    def snapshot(self, at_s: float, seq: int) -> control.FleetSnapshot:
        unix = self.start_unix + at_s
        told = self.chronicle
        attempt = told.attempt(unix)
        phase, since_unix = told.phase(unix)
        columns, code = self._columns(unix)
        load = self._load_of(attempt)
        fields = self._load_figures(attempt, unix, columns)
        slow = self._slow(attempt, unix, code, columns)
        counts = np.bincount(code, minlength=len(REPLICA_STATES))
        missing = self._missing(phase, code)
        packed: dict[str, Any] = {name: column.tobytes() for name, column in columns.items()}
        return control.FleetSnapshot(
            unix=unix, seq=seq, head_epoch=EPOCH, roster_version=1, phase=phase, phase_since_unix=since_unix,
            attempt=attempt.number if attempt else 0, attempt_kind=attempt.kind if attempt else self.spec.load.kind,
            attempt_state=told.attempt_phase(attempt.number, unix) if attempt else "",
            scenario=attempt.scenario if attempt else self.spec.load.scenario, mechanism="",
            paused=told.paused(attempt.number, unix) if attempt else False, duration_s=load["duration_s"],
            min_queries=int(load["min_queries"]),
            counts={name: int(n) for name, n in zip(REPLICA_STATES, counts, strict=False) if n},
            missing=missing[:_MISSING_SHOWN], missing_total=len(missing),
            slow=list(slow), slow_age_s=[max(0.0, unix - slow[slot]) for slot in slow], slow_nodes=told.slow_nodes(slow),
            fleet_slow=told.fleet_slow(attempt.number, unix) if attempt else False,
            straggler_note=told.straggler_note(attempt, unix), acts=told.acts(attempt.number, unix) if attempt else 0,
            evictions=told.evictions(unix), policy=told.policy(unix), controller=told.controller(unix),
            synthetic=self.run.synthetic, head_cpu_percent=math.nan, driver_cpu_percent=math.nan,
            state_code=code.tobytes(), **fields, **packed,
        )  # fmt: skip

    def sla(self, at_s: float, question: GetSla) -> SlaDetail | None:
        """Distributions until then; None when no sample was known yet. Blocking: the split of TTFT is read from the disk."""
        unix = self.start_unix + at_s
        attempt = self.chronicle.attempt(unix) or next(
            (one for one in reversed(self.run.attempts) if 0 < one.started_unix <= unix), None
        )
        tape = self.tapes.get(attempt.number) if attempt is not None else None
        if attempt is None or tape is None:
            return None
        tick = (unix - attempt.started_unix) * PER_S
        window_s = self.spec.metrics.window_s
        without = self._positions(question.without)
        ttft, tpot = (_detail(one, tick, window_s, without) for one in (tape.ttft, tape.tpot))
        parts = TtftParts(window_s, split=self.spec.fleet.split)
        try:
            parts.add(rows_between(self._record, attempt.number, tick - window_s * PER_S, tick), tick / PER_S)
        except (RecordError, OSError, ValueError):
            parts.reset()
        return SlaDetail(question.request_id, attempt.number, window_s, ttft, tpot, *parts.figures(tick / PER_S))

    def _positions(self, slots: list[str]) -> NDArray[np.intp]:
        index = {slot: position for position, slot in enumerate(self.chronicle.slots)}
        return np.array([index[slot] for slot in slots if slot in index], dtype=np.intp)

    # --- parts of a snapshot ---------------------------------------------------------------------------------

    def _load_of(self, attempt: AttemptRecord | None) -> dict[str, float]:
        load = self.spec.load
        endless = attempt is not None and attempt.kind == "explore" and load.kind != "explore"
        if attempt is not None and attempt.kind in ("accuracy", "compliance") and attempt.target_qps > 0:
            issued = attempt.totals.get("issued", 0)  # there a count decides, no duration
            return {"duration_s": issued / attempt.target_qps, "min_queries": issued}
        return {"duration_s": 0.0 if endless else load.duration_s, "min_queries": load.min_queries or 0}

    def _columns(self, unix: float) -> tuple[dict[str, NDArray[Any]], NDArray[np.uint8]]:
        n = len(self.chronicle.slots)
        row = self.timeline.row(unix + 0.5)
        code, since, restarts = self.chronicle.lives(unix)
        columns: dict[str, NDArray[Any]] = {}
        for name in ("kv_use", "tokens_s", "step_ms", "batch", "ratio", "z"):
            columns[name] = self.timeline.floats[name][row] if row >= 0 else np.full(n, np.nan)
        for name in ("outstanding", "running", "waiting"):
            columns[name] = self.timeline.ints[name][row] if row >= 0 else np.zeros(n)
        if row >= 0 and unix - self.timeline.unix[row] < 2.0 * self.timeline.every:
            code = self.timeline.state[row]
        unknown = np.full(n, np.nan)
        columns |= {"restarts": restarts, "state_age_s": unix - since, "oldest_s": unknown, "beat_age_s": unknown}
        ints = set(control.INT_COLUMNS)
        return {name: column.astype("<i4" if name in ints else "<f4") for name, column in columns.items()}, code

    def _load_figures(self, attempt: AttemptRecord | None, unix: float, columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """What the samples say; adds the latencies of every slot to the columns."""
        limits, n = self.spec.limits, len(self.chronicle.slots)
        tokens = columns["tokens_s"]
        at = min(int(unix - self.start_unix), len(self._series["unix"]) - 1)
        figures: dict[str, Any] = {
            "target_qps": 0.0, "elapsed_s": 0.0, "issued": 0, "completed": 0, "redispatched": 0, "failed": 0, "in_flight": 0,
            "backlog": 0, "backlog_slope": 0.0, "offered_qps": 0.0, "scheduled_qps": 0.0, "completed_qps": 0.0,
            "tokens_per_s": float(np.nansum(tokens)), "tokens_per_s_whole": 0.0, "issue_lag_p50_ms": 0.0, "issue_lag_p99_ms": 0.0,
            "ttft": control.SlaView(limits.ttft_p99_ms), "tpot": control.SlaView(limits.tpot_p99_ms),
        }  # fmt: skip
        columns["ttft_p99_ms"] = columns["tpot_p99_ms"] = np.full(n, np.nan, dtype="<f4")
        tape = self.tapes.get(attempt.number) if attempt is not None else None
        if attempt is None:
            return figures
        figures["target_qps"] = target_qps = self.chronicle.target_qps(attempt, unix)
        if tape is None or not tape.samples:
            return figures
        elapsed_s = max(0.0, unix - attempt.started_unix)
        tick = elapsed_s * PER_S
        done = int(np.searchsorted(tape.done, tick, side="right"))
        recent = int(np.searchsorted(tape.done, tick - RATE_WINDOW_S * PER_S, side="right"))
        figures |= {
            "elapsed_s": elapsed_s, "issued": int(np.searchsorted(tape.issued, tick, side="right")), "completed": done,
            "redispatched": int(tape.redispatched[done]),
            "in_flight": int(self._series["in_flight"][at]), "backlog": int(self._series["backlog"][at]),
            "backlog_slope": self._slope(at), "offered_qps": float(self._series["offered_qps"][at]),
            "completed_qps": float(self._series["completed_qps"][at]),
            "scheduled_qps": float(_rates(tape.scheduled, np.array([tick]))[0]),
            "tokens_per_s_whole": float(tape.tokens[done]) / elapsed_s if elapsed_s > 0 else 0.0,
        }  # fmt: skip
        if done > recent:
            p50, p99 = np.percentile(tape.lag_ms[recent:done], (50, 99))
            figures |= {"issue_lag_p50_ms": float(p50), "issue_lag_p99_ms": float(p99)}
        load = self._load_of(attempt)
        planned = max(load["duration_s"] * target_qps, load["min_queries"])
        left = max(0.0, planned - done) if load["duration_s"] > 0 else 0.0
        for name, latency in (("ttft", tape.ttft), ("tpot", tape.tpot)):
            figures[name], first, last = self._sla_view(latency, tick, left)
            columns[f"{name}_p99_ms"] = latency.quantile_by_slot(first, last, 0.99).astype("<f4")
        return figures

    def _sla_view(self, tape: LatencyTape, tick: float, left: float) -> tuple[control.SlaView, int, int]:
        """And the samples of the window: from which to which."""
        last = tape.known(tick)
        first = tape.known(tick - self.spec.metrics.window_s * PER_S)
        whole, limited = tape.counts(last), tape.limit_ms is not None
        window = whole - tape.counts(first)
        projected = project(whole, window, left)
        view = control.SlaView(
            tape.limit_ms, percentiles(window), percentiles(whole), over=tape.over_by(last),
            over_allowed=max(0, allowed_over(last, 0.99)) if limited else 0,
            needed=max(0, needed(0, 0.99) - last) if limited else 0,
            projected_ms=projected.value_ms, projected_low_ms=projected.low_ms, projected_high_ms=projected.high_ms,
        )  # fmt: skip
        return view, first, last

    def _slope(self, at: int) -> float:
        """Growth of the backlog over the window, samples a second."""
        backlog = self._series["backlog"][max(0, at - int(self.spec.metrics.window_s)) : at + 1]
        return float(np.polyfit(np.arange(len(backlog)), backlog, 1)[0]) if len(backlog) >= 3 and backlog.any() else 0.0

    def _slow(
        self, attempt: AttemptRecord | None, unix: float, code: NDArray[np.uint8], columns: dict[str, NDArray[Any]]
    ) -> dict[str, float]:
        """Flagged and READY, worst first."""
        if attempt is None:
            return {}
        flagged = self.chronicle.slow(attempt.number, unix)
        index = {slot: position for position, slot in enumerate(self.chronicle.slots)}
        ready = {s: at for s, at in flagged.items() if s in index and code[index[s]] == REPLICA_CODE["READY"]}
        ratios = {slot: float(columns["ratio"][index[slot]]) for slot in ready}
        return dict(sorted(ready.items(), key=lambda item: -np.nan_to_num(ratios[item[0]])))

    def _missing(self, phase: str, code: NDArray[np.uint8]) -> list[str]:
        if phase not in ("PLACING", "REGISTERING", "WARMING"):
            return []
        waiting = np.flatnonzero(code != REPLICA_CODE["READY"])
        return [f"{self.chronicle.slots[at]}: {REPLICA_STATES[int(code[at])]}" for at in waiting]

    # --- the whole run's series ------------------------------------------------------------------------------

    def _all_series(self) -> dict[str, NDArray[np.float64]]:
        seconds = np.arange(int(self.length_s) + 1, dtype=np.float64)
        unix: NDArray[np.float64] = self.start_unix + seconds
        zero = np.zeros(len(seconds))
        names = ("target_qps", "offered_qps", "completed_qps", "in_flight", "backlog", "tokens_per_s", "ready")
        series: dict[str, NDArray[np.float64]] = {"unix": unix} | {name: zero.copy() for name in names}
        for name in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms"):
            series[name] = np.full(len(seconds), np.nan)
        self._fleet_series(series, unix)
        for tape in self.tapes.values():
            self._attempt_series(series, tape, unix)
        return {name: series[name] for name in control.FleetSeries.__struct_fields__}

    def _fleet_series(self, series: dict[str, NDArray[np.float64]], unix: NDArray[np.float64]) -> None:
        rows = np.searchsorted(self.timeline.unix, unix + 0.5, side="right") - 1
        known = rows >= 0
        if not known.any():
            return
        tokens = np.nansum(self.timeline.floats["tokens_s"], axis=1)
        ready = (self.timeline.state == REPLICA_CODE["READY"]).sum(axis=1)
        series["tokens_per_s"][known], series["ready"][known] = tokens[rows[known]], ready[rows[known]]

    def _attempt_series(self, series: dict[str, NDArray[np.float64]], tape: AttemptTape, unix: NDArray[np.float64]) -> None:
        attempt = tape.attempt
        running = np.array([self.chronicle.attempt(float(moment)) is attempt for moment in unix], dtype=np.bool_)
        if not running.any():
            return
        ticks = (unix[running] - attempt.started_unix) * PER_S
        series["target_qps"][running] = [self.chronicle.target_qps(attempt, float(moment)) for moment in unix[running]]
        issued, dispatched, done = (
            np.searchsorted(times, ticks, side="right") for times in (tape.issued, tape.dispatched, tape.done)
        )
        series["offered_qps"][running] = _rates(tape.issued, ticks)
        series["completed_qps"][running] = _rates(tape.done, ticks)
        series["in_flight"][running] = np.maximum(0, issued - done)
        series["backlog"][running] = np.maximum(0, issued - dispatched)
        window = self.spec.metrics.window_s * PER_S
        for name, latency in (("ttft", tape.ttft), ("tpot", tape.tpot)):
            found = latency.percentiles_each_s(ticks, window)
            series[f"{name}_p50_ms"][running] = [one.p50 for one in found]
            series[f"{name}_p99_ms"][running] = [one.p99 for one in found]


def _is_mark(entry: control.JournalEntry) -> bool:
    if entry.what.startswith(("act.", "alert.")) or entry.what in ("straggler.slow", "attempt.start", "attempt.end"):
        return True
    return entry.what == "replica.state" and entry.after in ("LOST", "REJECTED")


def _rates(times: NDArray[np.int32], ticks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Events a second over the head's rate window, or over what there is of it at the start of a load."""
    span_s = np.clip(ticks / PER_S, 1.0, RATE_WINDOW_S)
    counted = np.searchsorted(times, ticks, side="right") - np.searchsorted(times, ticks - span_s * PER_S, side="right")
    rates: NDArray[np.float64] = counted / span_s
    return rates


def _detail(tape: LatencyTape, tick: float, window_s: float, without: NDArray[np.intp]) -> LatencyDetail:
    last, first = tape.known(tick), tape.known(tick - window_s * PER_S)
    whole = tape.counts(last)
    window = whole - tape.counts(first)
    used = np.flatnonzero(whole)
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    rest = math.nan
    if len(without):
        kept = ~np.isin(tape.slot[first:last], without)
        rest = percentiles(np.bincount(tape.cell[first:last][kept], minlength=len(window))).p99
    return LatencyDetail(
        tape.limit_ms, EDGES_MS[low : high + 1].tolist() if high else [], window[low:high].tolist(), whole[low:high].tolist(),
        window_ms=quantiles(window), whole_ms=quantiles(whole), window_n=last - first, whole_n=last,
        over_window=tape.over_by_slot(first, last).astype("<i4").tobytes(),
        over_whole=tape.over_by_slot(0, last).astype("<i4").tobytes(),
        samples_whole=tape.by_slot(last).astype("<i4").tobytes(), without_p99_ms=rest,
    )  # fmt: skip


def read_recorded(path: Path, tell: Progress) -> RecordedRun:
    """Blocking: reads the whole record and tells how far it is. Raises NothingRecorded, RecordError."""
    import polars as pl

    from harness.records.reader import Record

    record = Record(path)
    run = record.run
    try:
        spec = RunSpec.model_validate(run.spec)
    except ValueError as error:
        raise NothingRecorded(f"{path}: its spec is of another version, so its fleet is not known") from error
    tell("reading the journal")
    chronicle = Chronicle(record.journal(), run.attempts, spec, RunFolder(path), synthetic=run.synthetic)
    tell("reading the timeline")
    try:
        timeline = read_timeline(record, chronicle.slots)
        tapes = {}
        for attempt in run.attempts:
            what = f"reading the samples of attempt {attempt.number} of {len(run.attempts)}"
            tapes[attempt.number] = tape = AttemptTape(
                attempt, chronicle.slots, (spec.limits.ttft_p99_ms, spec.limits.tpot_p99_ms)
            )
            tape.read(record, lambda part, what=what: tell(f"{what}: {part}"))  # type: ignore[misc]
        tell("reading GPU metrics")
        gpus = read_gpus(record, chronicle.slots, chronicle.entries, spec.fleet.layout.devices, spec.metrics.gpu)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise RecordError(path, f"cannot be read for a replay: {str(error).splitlines()[0]}") from error
    tell("adding up")
    return RecordedRun(record, run, spec, chronicle, timeline, tapes, read_cluster(record.folder.cluster), gpus)


__all__ = ["NothingRecorded", "RecordedRun", "read_recorded"]
