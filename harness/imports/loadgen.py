"""LoadGen's log folders as one run: an attempt for each, judged by our own rules as far as the logs let them be judged.

Performance attempts come last, because the last attempt is the one that lists and screens show. Per-sample times are there only
if LoadGen traced; without a trace the figures are the percentiles that LoadGen logged.
"""

from __future__ import annotations

import calendar
import contextlib
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from harness.imports.copying import copy_file
from harness.imports.errors import ImportProblem
from harness.imports.loadgen_places import ACCURACY, SUMMARY, TRACE, Place, find_places, telling_name
from harness.imports.loadgen_tokens import Answers, read_answers
from harness.imports.loadgen_trace import Trace, read_trace
from harness.imports.made import Made, minimal_spec
from harness.imports.samples import write_samples
from harness.imports.staging import Staging, made_name
from harness.imports.told import Progress, Told
from harness.mlperf import detail_log
from harness.mlperf.detail_log import DETAIL_LOG, DetailLog
from harness.mlperf.judging import NOT_JUDGED, judged_by_answers
from harness.mlperf.rules import MODELS, rules_diff
from harness.mlperf.settings import NO_LIMIT_NS
from harness.mlperf.verdict import VerdictInput, judge
from harness.records.runfile import AttemptRecord
from harness.spec import RunSpec

#: Small files beside the logs that say more about them.
_BESIDE: Final = (
    "user.conf", "audit.config", "accuracy.txt", "measurements.json", "verify_accuracy.txt", "verify_output_len.txt",
)  # fmt: skip
_MOST_BESIDE: Final = 1 << 20
_SLOT: Final = "sut"
_KINDS: Final = {"PerformanceOnly": "performance", "AccuracyOnly": "accuracy", "SubmissionRun": "performance"}
_PERCENTILES: Final = {
    "min": "min", "mean": "avg", "50.00": "p50", "90.00": "p90", "95.00": "p95", "99.00": "p99", "99.90": "p99_9", "max": "max",
}  # fmt: skip
_WORST: Final = ("CRASHED", "ABORTED", "INVALID", "SUPERSEDED", "EXPLORATION", "VALID")


@dataclass(slots=True)
class _Logs:
    """One folder, read. `where`: how it is called in what is told."""

    place: Place
    log: DetailLog
    where: str
    model: str = ""
    answers: Answers | None = None
    trace: Trace | None = None
    unjudged: list[str] = field(default_factory=list)

    @property
    def keys(self) -> Mapping[str, Any]:
        return self.log.keys

    @property
    def kind(self) -> str:
        mode = self.keys.get("effective_test_mode")
        return "compliance" if self.place.test else _KINDS.get(mode, "performance") if isinstance(mode, str) else "performance"

    @property
    def scenario(self) -> str:
        found = self.keys.get("effective_scenario", self.keys.get("requested_scenario"))
        return found if isinstance(found, str) else {"Interactive": "Server"}.get(self.place.scenario, self.place.scenario)

    def number(self, key: str) -> float | None:
        value = self.keys.get(key)
        known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
        return float(value) if known else None  # type: ignore[arg-type]

    def limit_ms(self, name: str) -> float | None:
        """Of Server attempts that measure tokens; LoadGen has no word for "no limit" but ours."""
        limit_ns = self.number(f"requested_server_{name}_latency")
        if self.scenario != "Server" or self.keys.get("requested_use_token_latencies") is not True or not limit_ns:
            return None
        return None if not 0 < limit_ns < NO_LIMIT_NS else limit_ns / 1e6

    @property
    def issued(self) -> int:
        generated = sum(
            _count(queries) * _count(samples)
            for queries, samples in zip(
                self.log.values("generated_query_count"), self.log.values("generated_samples_per_query"), strict=False
            )
        )
        queries = self.number("result_query_count")
        return int(queries) if queries is not None and self.scenario == "Server" else generated

    @property
    def began_unix(self) -> float:
        if self.trace is not None and self.trace.began_unix:
            return self.trace.began_unix + self.trace.zero_ns / 1e9
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return float(calendar.timegm(time.strptime(self.keys.get("test_datetime", ""), "%Y-%m-%dT%H:%M:%SZ")))
        return 0.0

    @property
    def lasted_s(self) -> float | None:
        """From the begin of the load to its end; both stand in the log, to the millisecond."""
        begins, ends = ([_clock(text) for text in self.log.values(f"power_{side}")] for side in ("begin", "end"))
        known = [at for at in (*begins, *ends) if at is not None]
        return max(known) - min(known) if len(known) > 1 and len(begins) == len(ends) else None


def import_loadgen(source: Path, staging: Staging, told: Told, progress: Progress) -> Made:
    """Raises ImportProblem."""
    places = find_places(source)
    _check_room(places, staging)
    every = [_read(place, source, told, progress) for place in places]
    if not any(logs.keys for logs in every):
        raise ImportProblem(
            f"{source}: no line of {', '.join(logs.where for logs in every[:4])} is an entry of LoadGen "
            "(`:::MLLOG` and a JSON object); nothing was read"
        )
    every = [logs for logs in every if logs.keys]
    every.sort(key=lambda logs: (logs.kind == "performance", logs.began_unix, logs.where))
    attempts = [_attempt(number, logs, staging, told, progress) for number, logs in enumerate(every, start=1)]
    worst = min(attempts, key=lambda attempt: _WORST.index(attempt.verdict) if attempt.verdict in _WORST else 0)
    versions = {str(logs.keys["loadgen_version"]) for logs in every if "loadgen_version" in logs.keys}
    return Made(
        kind="loadgen",
        name=made_name(*telling_name(source, places)),
        spec=_spec(every),
        attempts=attempts,
        verdict=worst.verdict,
        reasons=[
            f"attempt {attempt.number}: {reason}" if len(attempts) > 1 else reason
            for attempt in attempts
            for reason in attempt.reasons
        ],
        versions={"loadgen": ", ".join(sorted(versions))} if versions else {},
    )


def _spec(every: list[_Logs]) -> RunSpec:
    """Of the last of them, as far as it goes into a spec."""
    last = every[-1]
    model = next((logs.model or logs.place.model for logs in reversed(every) if logs.model or logs.place.model), "")
    return minimal_spec(
        model=model or "unknown",
        mlperf_name=last.model or None,
        scenario=last.scenario,
        kind=last.kind,
        test=last.place.test,
        target_qps=last.number("effective_target_qps") or 0.0,
        duration_s=(last.number("effective_min_duration_ms") or 0) / 1000,
        ttft_p99_ms=last.limit_ms("ttft"),
        tpot_p99_ms=last.limit_ms("tpot"),
    )


def _check_room(places: list[Place], staging: Staging) -> None:
    copied = [place.folder / name for place in places for name in (DETAIL_LOG, SUMMARY, ACCURACY)]
    traced = sum(path.stat().st_size // 8 for place in places if (path := place.folder / TRACE).is_file())
    staging.needs(traced + sum(path.stat().st_size for path in copied if path.is_file()), "copying the logs")


def _read(place: Place, source: Path, told: Told, progress: Progress) -> _Logs:
    inside = place.folder.relative_to(source).as_posix()
    where = DETAIL_LOG if inside == "." else f"{inside}/{DETAIL_LOG}"
    before = "" if inside == "." else f"{inside}/"
    try:
        log = detail_log.read(place.folder / DETAIL_LOG)
    except OSError as error:
        raise ImportProblem(f"{place.folder / DETAIL_LOG}: cannot be read: {error.strerror or error}") from error
    logs = _Logs(place, log, where)
    told.read.append(f"{where}: {len(log.keys)} keys" + (f", {log.error_count} errors" if log.error_count else ""))
    if log.unreadable_lines:
        told.lacks(f"{where}: {log.unreadable_lines} of its lines are damaged and were left out")
    logs.model = _model(logs, told)
    _read_answers(logs, before, told, progress)
    _read_trace(logs, before, told, progress)
    return logs


def _read_answers(logs: _Logs, before: str, told: Told, progress: Progress) -> None:
    path, where = logs.place.folder / ACCURACY, f"{before}{ACCURACY}"
    if not path.is_file() or path.stat().st_size <= 4:  # LoadGen leaves an empty array behind a performance run
        if logs.kind == "accuracy":
            told.lacks(f"{where}: missing or empty, so there are neither answers nor their numbers of tokens")
        return
    answers = read_answers(path, progress)
    if not len(answers.seq):
        told.lacks(f"{where}: no answer in it can be read")
        return
    logs.answers = answers
    told.read.append(f"{where}: the numbers of tokens of {len(answers.seq):,d} answers")
    if answers.damaged:
        told.lacks(f"{where}: {answers.damaged:,d} of its entries are damaged and were left out")
    if not answers.closed:
        told.lacks(f"{where}: it has no end: truncated, or LoadGen was killed")


def _read_trace(logs: _Logs, before: str, told: Told, progress: Progress) -> None:
    path, where = logs.place.folder / TRACE, f"{before}{TRACE}"
    lacking = "so there are no per-sample times: figures are LoadGen's own, and samples cannot be drilled into"
    if not path.is_file() or not path.stat().st_size:
        told.lacks(f"{where}: {'empty' if path.is_file() else 'missing'} (LoadGen traces only when told to), {lacking}")
        return
    trace = read_trace(path, progress)
    if not len(trace.columns):
        told.lacks(f"{where}: no sample stands in it, {lacking}")
        return
    logs.trace = trace
    told.read.append(f"{where}: times of {len(trace.columns):,d} samples, {trace.first_tokens:,d} first tokens (not copied)")
    if trace.damaged:
        told.lacks(f"{where}: {trace.damaged:,d} of its lines are damaged and were left out")
    if trace.shared:
        told.lacks(f"{where}: {trace.shared:,d} first tokens belong to queries of several samples; they were given out in order")
    if not trace.began_unix:
        told.lacks(f"{where}: it has no end, so the wall clock is the detail log's, to the second")


def _model(logs: _Logs, told: Told) -> str:
    """Whose rules to judge by: the path's, else user.conf's, else the model that has exactly these counts and limits."""
    if logs.place.mlperf_name:
        return logs.place.mlperf_name
    with contextlib.suppress(OSError):
        text = (logs.place.folder / "user.conf").read_text(errors="replace")[:_MOST_BESIDE]
        for name in re.findall(r"^\s*([\w-]+(?:\.[\d]+)?[\w-]*)\.(?:Server|Offline|\*)\.", text, re.MULTILINE):
            if name in MODELS:
                return str(name)
    limits = logs.limit_ms("ttft"), logs.limit_ms("tpot")
    for name, rules in MODELS.items():
        count = logs.number("effective_performance_sample_count")
        alike = logs.scenario == "Server" and limits == (rules.ttft_p99_ms, rules.tpot_p99_ms)
        if count == rules.performance_samples and alike:
            told.lacks(f"{logs.where}: the model; its sample count and limits are those of {name}, whose rules were applied")
            return name
    return ""


def _attempt(number: int, logs: _Logs, staging: Staging, told: Told, progress: Progress) -> AttemptRecord:
    target_qps = logs.number("effective_target_qps") or 0.0
    record = AttemptRecord(number, logs.kind, logs.scenario, target_qps, 1, logs.began_unix, state="ENDED")
    record.test = logs.place.test
    record.ended_unix = logs.began_unix + (logs.lasted_s or 0.0) if logs.began_unix else 0.0
    record.settings_effective = {
        key: value for key, value in logs.keys.items()
        if key.startswith(("effective_", "requested_")) and isinstance(value, str | int | float | bool)
    }  # fmt: skip
    record.loadgen = logs.log.figures()
    _copy(logs, staging.run.attempt(number), progress)
    _figures(record, logs, staging, told)
    _judge(record, logs, staging.run.attempt(number))
    return record


def _copy(logs: _Logs, target: Path, progress: Progress) -> None:
    for name in (DETAIL_LOG, SUMMARY, ACCURACY, *_BESIDE):
        path = logs.place.folder / name
        if path.is_file() and not path.is_symlink() and (name not in _BESIDE or path.stat().st_size <= _MOST_BESIDE):
            copy_file(path, target / name, progress)


def _figures(record: AttemptRecord, logs: _Logs, staging: Staging, told: Told) -> None:
    """From the trace where there is one; what it does not have is LoadGen's."""
    result = logs.log.result()
    issued = logs.issued
    record.totals = {"issued": issued, "completed": issued if logs.log.complete else 0, "failed": 0, "lost": 0, "redispatched": 0}
    record.rates = {
        "duration_s": logs.lasted_s,
        "scheduled_qps": logs.number("result_scheduled_samples_per_sec"),
        "issued_qps": None,
        "completed_qps": result.samples_per_s,
        "tokens_per_s": result.tokens_per_s,
    }
    record.ttft_ms, record.tpot_ms, record.latency_ms = (
        {ours: values.get(theirs) for theirs, ours in _PERCENTILES.items()}
        for values in (result.ttft_ms, result.tpot_ms, result.latency_ms)
    )
    if logs.answers is not None and logs.kind == "accuracy":
        record.totals["tokens"] = logs.answers.total
    if logs.trace is not None:
        _from_trace(record, logs, logs.trace, staging, told)
    figures = {
        "completed_qps": record.rates["completed_qps"], "tokens_per_s": record.rates["tokens_per_s"],
        "ttft_p99_ms": record.ttft_ms.get("p99"), "tpot_p99_ms": record.tpot_ms.get("p99"),
    }  # fmt: skip
    record.results = {name: value for name, value in figures.items() if value is not None}


def _from_trace(record: AttemptRecord, logs: _Logs, trace: Trace, staging: Staging, told: Told) -> None:
    from harness.records.reader import Record, summarise

    if logs.answers is not None:
        _give_tokens(trace, logs.answers)
    written, odd = write_samples(staging.run, record.number, _SLOT, trace.columns, trace.zero_ns)
    if odd:
        told.lacks(f"{logs.where}: {odd:,d} samples of its trace have times that run backwards and were left out")
    summary = summarise(Record(staging.run), record.number)
    record.totals["issued"] = max(record.totals["issued"], written)
    record.totals["completed"] = max(record.totals["completed"], written) if logs.log.complete else written
    record.totals["lost"] = record.totals["issued"] - record.totals["completed"]
    if record.totals["completed"] > written:
        told.lacks(f"{logs.where}: {record.totals['completed'] - written:,d} of its samples are not in the trace")
    measured = {name: value for name, value in summary.rates.items() if value}
    record.rates = {**record.rates, **measured, "completed_qps": record.rates["completed_qps"] or measured.get("completed_qps")}
    for name in ("ttft_ms", "tpot_ms", "latency_ms"):
        ours = getattr(summary, name)
        if ours["p99"] is not None:
            setattr(record, name, ours)


def _give_tokens(trace: Trace, answers: Answers) -> None:
    seq = np.array(trace.columns.seq, dtype=np.int64)
    known, first = np.unique(np.array(answers.seq, dtype=np.int64), return_index=True)
    tokens = np.minimum(np.array(answers.tokens, dtype=np.int64)[first], 2**31 - 1)
    at = np.minimum(np.searchsorted(known, seq), len(known) - 1)
    found = np.where(known[at] == seq, tokens[at], 0).astype(np.int32)
    trace.columns.n_tokens = type(trace.columns.n_tokens)("i", found.tobytes())


def _judge(record: AttemptRecord, logs: _Logs, folder: Path) -> None:
    """`folder`: the attempt's own. Scores and tests that others say they passed are no substitute for `score` and `verify`."""
    model, unjudged = logs.model or None, logs.unjudged
    if model is None:
        unjudged.append("rules: the logs do not say which MLPerf model this is, so no model's rules were applied")
    unjudged.append("settings as asked: the logs say what was in effect, not what was wanted")
    if logs.kind == "performance" and logs.trace is None:
        unjudged.append("TTFT and TPOT by our own measurement: they are LoadGen's percentiles")
    judged = judged_by_answers(logs.kind, record.test or None, model, folder)
    verdict = judge(
        VerdictInput(
            kind=logs.kind,
            scenario=logs.scenario,
            ending="finished",
            loadgen_validity=logs.log.result().validity,
            loadgen_complete=logs.log.complete,
            loadgen_reasons=logs.log.explanations(),
            num_errors=logs.log.result().num_errors,
            ttft_limit_ms=logs.limit_ms("ttft"),
            tpot_limit_ms=logs.limit_ms("tpot"),
            ttft_p99_ms=_or_nan(record.ttft_ms.get("p99")),
            tpot_p99_ms=_or_nan(record.tpot_ms.get("p99")),
            rules_diff=rules_diff(model, logs.scenario, logs.kind, logs.keys, logs.place.test) if model else [],
            issued=record.totals["issued"],
            completed=record.totals["completed"],
            mlperf_name=model,
            min_duration_s=(logs.number("effective_min_duration_ms") or 0.0) / 1000,
            judged=judged.reasons,
        )
    )
    record.verdict = verdict.verdict
    record.reasons = [*verdict.reasons, *(f"{NOT_JUDGED}{text}" for text in unjudged)]
    record.notes = [
        f"imported from LoadGen's logs in {logs.where.rpartition('/')[0] or 'one folder'}",
        *verdict.notes,
        *judged.notes,
    ]
    if logs.place.test:
        record.notes.append(f"compliance run of {logs.place.test}; its duration and queries are those of the test")
    scored = _scored(logs.place.folder)
    if scored:
        record.notes.append(f"accuracy.txt says exact_match {scored} (not checked)")


def _scored(folder: Path) -> str:
    with contextlib.suppress(OSError):
        found = re.search(r"'exact_match':\s*([\d.]{1,20})", (folder / "accuracy.txt").read_text(errors="replace")[:_MOST_BESIDE])
        return found[1] if found else ""
    return ""


def _clock(text: Any) -> float | None:
    """`11-30-2026 11:03:42.143` as seconds; only differences of two are used."""
    try:
        whole, _, part = str(text).partition(".")
        return calendar.timegm(time.strptime(whole, "%m-%d-%Y %H:%M:%S")) + float(f"0.{part or 0}")
    except (ValueError, OverflowError):
        return None


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 else 0


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
