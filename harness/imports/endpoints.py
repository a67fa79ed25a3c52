"""A run of mlcommons/endpoints: one attempt against one replica, called "endpoint".

Its clock has no date (test_started_at is always 0), its events no scheduled times: TTFT and latency count from the moment at
which a request was issued. It was not paced by LoadGen, so its verdict is that of an exploration.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from harness.imports.copying import copy_file
from harness.imports.endpoints_events import Events, read_events
from harness.imports.endpoints_summary import Config, Summary, read_config, read_snapshot, read_summary
from harness.imports.errors import ImportProblem
from harness.imports.made import Made, minimal_spec
from harness.imports.samples import NEVER, write_samples
from harness.imports.staging import Staging, made_name
from harness.imports.told import Progress, Told
from harness.mlperf.verdict import VerdictInput, judge
from harness.records.runfile import AttemptRecord

EVENTS: Final = "events.jsonl"
SUMMARIES: Final = ("performance/result_summary.json", "result_summary.json")
SNAPSHOTS: Final = ("metrics/final_snapshot.json", "final_snapshot.json")
SIGNS: Final = (EVENTS, *SUMMARIES, *SNAPSHOTS)
_CONFIG: Final = "config.yaml"
_INDICES: Final = "sample_idx_map.json"
_COPIED: Final = (*SUMMARIES, *SNAPSHOTS, _CONFIG, "report.txt", "accuracy/accuracy_results.json")
_MOST_COPIED: Final = 64 << 20
_MOST_INDICES: Final = 64 << 20
_SLOT: Final = "endpoint"
_SCENARIOS: Final = {"poisson": "Server", "max_throughput": "Offline"}


@dataclass(slots=True)
class _Read:
    events: Events | None
    summary: Summary
    config: Config


def import_endpoints(source: Path, staging: Staging, told: Told, progress: Progress) -> Made:
    """Raises ImportProblem."""
    read = _read(source, told, progress)
    record = _attempt(read)
    if read.events is not None:
        _samples(record, read.events, staging, told)
    _figures(record, read)
    _judge(record, read)
    for name in _COPIED:
        path = source / name
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_COPIED:
            copy_file(path, staging.run.attempt(1) / name, progress)
    told.lacks("wall clock: the client keeps none (test_started_at is 0), so the run has no date")
    told.lacks("scheduled times: TTFT and latency count from the moment a request was issued, not from its schedule")
    if read.events is not None:
        told.lacks("output tokens of single requests: the events have texts only; TPOT is known for the run as a whole at most")
    return Made(
        kind="endpoints",
        name=made_name(source.name, read.config.model if source.name in ("results", "unpacked") else ""),
        spec=minimal_spec(
            model=read.config.model or "unknown", kind="explore", target_qps=record.target_qps,
            duration_s=record.rates.get("duration_s") or 0.0,
        ),
        attempts=[record],
        verdict=record.verdict,
        reasons=record.reasons,
        phase="ABORTED" if record.verdict == "ABORTED" else "DONE",
        versions={"endpoints": read.summary.version} if read.summary.version else {},
    )  # fmt: skip


def _read(source: Path, told: Told, progress: Progress) -> _Read:
    summary = _first_of(source, SUMMARIES, read_summary, told, "counts, rates and percentiles")
    snapshot = _first_of(source, SNAPSHOTS, read_snapshot, told, "counters and percentiles")
    config = _first_of(source, (_CONFIG,), read_config, told, "model, load pattern and settings")
    events = None
    path = source / EVENTS
    if path.is_file():
        events = read_events(path, _indices(source, told), progress)
        _tell(events, told)
    else:
        told.lacks(f"{EVENTS}: missing, so samples cannot be drilled into; figures are the client's own")
    whole = summary or snapshot
    if whole is None and (events is None or not len(events.columns)):
        damage = f" ({events.damaged} of {events.lines} lines damaged; {events.first_damage})" if events else ""
        unread = f"; {'; '.join(told.missing)}" if told.missing else ""
        raise ImportProblem(f"{source}: nothing of a run of mlcommons/endpoints could be read: no request{damage}{unread}")
    return _Read(events, whole or Summary(), config or Config())


def _first_of(source: Path, names: tuple[str, ...], read: Any, told: Told, what: str) -> Any:
    """The first of those files that can be read; trouble is told, and the rest still counts."""
    for name in names:
        try:
            found = read(source / name)
        except ImportProblem as problem:
            told.lacks(str(problem))
            continue
        if found is not None:
            told.read.append(f"{name}: {what}")
            return found
    return None


def _indices(source: Path, told: Told) -> dict[str, int]:
    """{phase: {uuid: place in the dataset}}"""
    path = source / _INDICES
    if not path.is_file():
        told.lacks(f"{_INDICES}: missing, so samples have no place in the dataset")
        return {}
    if path.stat().st_size > _MOST_INDICES:
        told.lacks(f"{_INDICES}: larger than {_MOST_INDICES >> 20} MB, not read; samples have no place in the dataset")
        return {}
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, int]])
        told.read.append(f"{_INDICES}: places in the dataset")
        return {uuid: index for phase in found.values() for uuid, index in phase.items() if 0 <= index < 2**31}
    told.lacks(f"{_INDICES}: is not what the client writes; samples have no place in the dataset")
    return {}


def _tell(events: Events, told: Told) -> None:
    told.read.append(f"{EVENTS}: {len(events.columns):,d} requests in {events.lines:,d} lines (not copied)")
    if events.damaged:
        told.lacks(f"{EVENTS}: {events.damaged:,d} of its lines are damaged and were left out; {events.first_damage}")
    if events.outside:
        told.lacks(f"{EVENTS}: {events.outside:,d} requests outside of performance tracking (warm-up, accuracy) were left out")
    if events.repeated:
        told.lacks(f"{EVENTS}: {events.repeated:,d} requests were issued again; they count from their first issue")
    if not events.with_prompt and len(events.columns):
        told.lacks("prompt tokens of single requests: the events have the prompts as text")
    if not events.ended:
        told.lacks(f"{EVENTS}: it has no session.ended: truncated, or the client was killed")


def _attempt(read: _Read) -> AttemptRecord:
    pattern = read.config.pattern
    record = AttemptRecord(1, "explore", _SCENARIOS.get(pattern, pattern or "unknown"), read.config.target_qps or 0.0, 1)
    record.state = "ENDED"
    record.settings_effective = dict(read.config.settings)
    return record


def _samples(record: AttemptRecord, events: Events, staging: Staging, told: Told) -> None:
    from harness.records.reader import Record, summarise

    columns = events.columns
    failed = np.array(events.failed, dtype=bool)
    done = np.array(columns.done_ns, dtype=np.int64) != NEVER
    written, odd = write_samples(staging.run, 1, _SLOT, columns, events.zero_ns, keep=done | failed)
    if odd:
        told.lacks(f"{EVENTS}: {odd:,d} requests have times that run backwards and were left out")
    summary = summarise(Record(staging.run), 1)
    totals = {"issued": len(columns), "completed": summary.totals["completed"], "failed": summary.totals["failed"]}
    record.totals = totals | {"lost": len(columns) - written, "redispatched": summary.totals["redispatched"]}
    record.rates = {name: value or None for name, value in summary.rates.items()}
    record.ttft_ms, record.latency_ms = summary.ttft_ms, summary.latency_ms


def _figures(record: AttemptRecord, read: _Read) -> None:
    """What the events do not have is the client's own."""
    summary = read.summary
    if not record.totals:
        record.totals = {name: summary.counts.get(name, 0) for name in ("issued", "completed", "failed")}
        record.totals["completed"] = max(0, record.totals["completed"] - record.totals["failed"])
        left = record.totals["issued"] - record.totals["completed"] - record.totals["failed"]
        record.totals |= {"lost": max(0, left), "redispatched": 0}
        record.rates = {"duration_s": summary.duration_s, "completed_qps": summary.qps}
    record.rates["tokens_per_s"] = summary.tps
    if summary.output_tokens is not None:
        record.totals["tokens"] = summary.output_tokens
    record.tpot_ms = summary.tpot_ms
    for name in ("ttft_ms", "latency_ms"):
        if getattr(record, name).get("p99") is None:
            setattr(record, name, getattr(summary, name))
    figures = {
        "completed_qps": record.rates.get("completed_qps"), "tokens_per_s": record.rates.get("tokens_per_s"),
        "ttft_p99_ms": record.ttft_ms.get("p99"), "tpot_p99_ms": record.tpot_ms.get("p99"),
    }  # fmt: skip
    record.results = {name: value for name, value in figures.items() if value is not None}


def _judge(record: AttemptRecord, read: _Read) -> None:
    interrupted = read.summary.state == "interrupted" or bool(read.events and read.events.interrupted)
    verdict = judge(
        VerdictInput(
            kind="explore",
            scenario=record.scenario,
            ending="aborted" if interrupted else "finished",
            ending_reason="the client was interrupted; what it had measured by then is here" if interrupted else "",
            issued=record.totals["issued"],
            completed=record.totals["completed"],
            failed=record.totals["failed"],
        )
    )
    record.verdict, record.reasons = verdict.verdict, verdict.reasons
    if not interrupted:
        record.reasons[0] = "made by mlcommons/endpoints, not paced by LoadGen: judged by none of MLPerf Inference's rules"
    record.notes = ["imported from mlcommons/endpoints", *verdict.notes]
    if read.config.pattern:
        at = f" of {read.config.concurrency:,d}" if read.config.concurrency else ""
        record.notes.append(f"load pattern: {read.config.pattern}{at}")
    if read.summary.tpot_ms:
        record.notes.append("TPOT is the client's: from first to last part, by the tokens after the first part")
    if read.summary.qps is not None:
        own = f", {read.summary.tps:,.1f} output tokens/s" if read.summary.tps is not None else ""
        record.notes.append(f"the client's own rates: {read.summary.qps:,.3f} requests/s{own}")
    _compare(record, read)


def _compare(record: AttemptRecord, read: _Read) -> None:
    if read.events is None:
        return
    theirs = read.summary.counts.get("completed")
    ours = record.totals["completed"] + record.totals["failed"]
    if theirs is not None and theirs != ours:
        record.notes.append(f"the client counted {theirs:,d} requests that completed or failed, its events have {ours:,d}")
