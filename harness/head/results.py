"""What an attempt came to: our own numbers from the record, LoadGen's from its log, and the verdict on both.

Runs in a thread after the attempt has ended: it reads files and must not stop the head's clock.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from harness.head.attempt import Attempt, Outcome
from harness.mlperf import detail_log, rules
from harness.mlperf.accuracy.errors import ScoringError
from harness.mlperf.compliance.audits import Attempt as Audited
from harness.mlperf.compliance.verify import BY_THE_LOG, verify
from harness.mlperf.judging import Judged, judged_by_answers
from harness.mlperf.scores import write_compliance
from harness.mlperf.settings import settings_diff
from harness.mlperf.verdict import Ending, VerdictInput, judge
from harness.records.errors import RecordError
from harness.records.layout import RunFolder
from harness.records.reader import Record, Summary, summarise
from harness.records.runfile import AttemptRecord
from harness.spec import RunSpec


def conclude(attempt: Attempt, outcome: Outcome, folder: RunFolder, counted: dict[str, int], synthetic: bool) -> None:
    """Fills the attempt's record: totals, rates, percentiles, LoadGen's result, settings, verdict and reasons."""
    record, spec = attempt.record, attempt.spec
    summary = _measure(record, folder, {name: count for name, count in counted.items() if name != "stale"})
    record.totals["stale_replies"] = counted.get("stale", 0)
    found = _loadgen(attempt, record, spec)
    judged = _judge_by_answers(attempt, outcome)
    verdict = judge(_input(attempt, outcome, summary, found, record, synthetic, judged.reasons))
    record.verdict, record.reasons, record.acts = verdict.verdict, [*verdict.reasons], verdict.acts
    record.notes = [*verdict.notes, *judged.notes]
    results = {
        "completed_qps": summary.rates.get("completed_qps"),
        "tokens_per_s": summary.rates.get("tokens_per_s"),
        "ttft_p99_ms": summary.ttft_ms.get("p99"),
        "tpot_p99_ms": summary.tpot_ms.get("p99"),
    }
    record.results = {name: value for name, value in results.items() if value is not None}
    record.state = "ENDED"


def measure_left_open(record: AttemptRecord, folder: RunFolder) -> None:
    """An attempt that its head did not live to conclude: what its samples say."""
    _measure(record, folder, record.totals)


def _measure(record: AttemptRecord, folder: RunFolder, counted: dict[str, int]) -> Summary:
    summary = summarise(Record(folder), record.number)
    record.totals = merged(summary.totals, counted)
    record.rates = summary.rates
    record.ttft_ms, record.tpot_ms, record.latency_ms = summary.ttft_ms, summary.tpot_ms, summary.latency_ms
    return summary


def merged(rows: dict[str, int], counted: dict[str, int]) -> dict[str, int]:
    """Rows and the driver's counts each may lack the last moments of a killed process: the larger of both."""
    totals = {name: max(rows.get(name, 0), counted.get(name, 0)) for name in {**rows, **counted}}
    totals["lost"] = max(0, totals["issued"] - totals["completed"] - totals["failed"])
    return totals


def _loadgen(attempt: Attempt, record: AttemptRecord, spec: RunSpec) -> detail_log.DetailLog | None:
    if spec.load.kind == "explore":
        return None
    path = attempt.folder / detail_log.DETAIL_LOG
    if not path.exists():
        return None
    found = detail_log.read(path)
    asked = _asked(attempt)
    effective = {key: value for key, value in found.keys.items() if key.startswith(("effective_", "requested_"))}
    record.settings_asked = asked
    record.settings_effective = {key: value for key, value in effective.items() if not isinstance(value, list)}
    if asked and effective:
        record.settings_diff = settings_diff(asked, found.keys)
    record.loadgen = found.figures()
    return found


def _judge_by_answers(attempt: Attempt, outcome: Outcome) -> Judged:
    """A compliance test that its log alone decides is verified at once; what needs texts waits for somebody to ask."""
    load, model = attempt.spec.load, attempt.spec.model
    if not outcome.ok:
        return Judged()
    trouble = ""
    if load.test is not None and load.test in BY_THE_LOG:
        try:
            audited = Audited(attempt.folder, load.test, load.scenario, model.eos_token_id, model.mlperf_name)
            write_compliance(attempt.folder, verify(audited))
        except (ScoringError, RecordError) as error:
            trouble = str(error)
    return judged_by_answers(load.kind, load.test, model.mlperf_name, attempt.folder, trouble)


def _asked(attempt: Attempt) -> dict[str, Any]:
    try:
        asked: dict[str, Any] = json.loads((attempt.folder / "asked.json").read_text())
    except (OSError, ValueError):
        return {}
    return asked


def _input(
    attempt: Attempt,
    outcome: Outcome,
    summary: Summary,
    found: detail_log.DetailLog | None,
    record: AttemptRecord,
    synthetic: bool,
    judged: list[str],
) -> VerdictInput:
    spec, load = attempt.spec, attempt.spec.load
    result = found.result() if found is not None else None
    model = spec.model.mlperf_name
    return VerdictInput(
        kind=load.kind,
        scenario=load.scenario,
        ending=_ending(outcome),
        ending_reason=outcome.reason,
        loadgen_validity=result.validity if result else None,
        loadgen_complete=found.complete if found else False,
        loadgen_reasons=found.explanations() if found else [],
        num_errors=result.num_errors if result else 0,
        ttft_limit_ms=spec.limits.ttft_p99_ms,
        tpot_limit_ms=spec.limits.tpot_p99_ms,
        ttft_p99_ms=_or_nan(summary.ttft_ms.get("p99")),
        tpot_p99_ms=_or_nan(summary.tpot_ms.get("p99")),
        settings_diff=record.settings_diff,
        rules_diff=rules.rules_diff(model, load.scenario, load.kind, found.keys, load.test) if model and found else [],
        acts=Counter(name for name, _ in attempt.acts),
        issued=record.totals["issued"],
        completed=record.totals["completed"],
        failed=record.totals["failed"],
        redispatched=record.totals["redispatched"],
        mlperf_name=model,
        min_duration_s=load.duration_s,
        synthetic=synthetic,
        judged=judged,
    )


def _ending(outcome: Outcome) -> Ending:
    if outcome.verdict == "SUPERSEDED":
        return "superseded"
    if outcome.verdict == "ABORTED":
        return "aborted"
    return "finished" if outcome.ok else "crashed"


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
