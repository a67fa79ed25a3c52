"""Why an attempt cannot stand in a submission, in words: the rules, and what the official checker does not look at.

That checker passes a performance log whose result is INVALID, LoadGen errors in it, Interactive results judged by the limits
of Server, and compliance folders without logs. Here each of them is a reason, and TTFT and TPOT are judged by the samples of
the record, not by the log alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

from harness.mlperf.rules import MODELS, rules_diff
from harness.mlperf.submission.candidates import ACCURACY_LOG, SUMMARY_LOG, USER_CONF, Candidate, Place, size_of
from harness.mlperf.submission.demands import (
    ACCURACY,
    DEMANDS,
    INTERACTIVE,
    LEAST_DURATION_MS,
    OFFLINE,
    PERFORMANCE,
    limits_name,
)

#: How a verdict's reasons begin that speak of the score (harness/mlperf/judging.py).
_OF_THE_GATE = "accuracy: "
#: Results of LoadGen's log that must be true, and what false would mean.
_MET = {
    "result_min_duration_met": "the minimum duration was not met",
    "result_min_queries_met": "the minimum number of queries was not met",
}


def reasons_against(candidate: Candidate, place: Place, *, closed: bool) -> list[str]:
    """Empty: it may stand there."""
    found = [*_run_reasons(candidate, place, closed=closed), *_log_reasons(candidate, place)]
    if place.part == PERFORMANCE:
        found += _performance_reasons(candidate, place)
    elif place.part == ACCURACY:
        found += _accuracy_reasons(candidate, place, closed=closed)
    else:
        found += _compliance_reasons(candidate, place)
    return list(dict.fromkeys([*candidate.problems, *found]))


def _run_reasons(candidate: Candidate, place: Place, *, closed: bool) -> Iterator[str]:
    run, attempt = candidate.run, candidate.attempt
    if run.synthetic:
        yield "its engine is synthetic: no hardware was measured"
    if run.imported is not None:
        yield "its record was imported: the samples that would show TTFT and TPOT by our own measure are not there"
    if attempt.state != "ENDED":
        yield f"it has not ended ({attempt.state or 'no state'})"
    elif attempt.verdict != "VALID":
        gate_alone = attempt.verdict == "INVALID" and all(reason.startswith(_OF_THE_GATE) for reason in attempt.reasons)
        if closed or place.part != ACCURACY or not gate_alone:
            yield f"its verdict is {attempt.verdict or 'missing'}" + "".join(f"; {reason}" for reason in attempt.reasons)
    yield from (f"settings not as asked: {difference}" for difference in attempt.settings_diff)
    yield from _unfinished(candidate)
    yield from _spec_reasons(candidate, place)


def _unfinished(candidate: Candidate) -> Iterator[str]:
    totals = candidate.attempt.totals
    issued, completed = totals.get("issued", 0), totals.get("completed", 0)
    if not issued or issued != completed or totals.get("failed", 0):
        yield f"{issued} samples were issued, {completed} completed, {totals.get('failed', 0)} failed"


def _spec_reasons(candidate: Candidate, place: Place) -> Iterator[str]:
    """What decides how an engine answers and stands in no log."""
    args, sampling = candidate.table("fleet", "engine_args"), candidate.table("sampling")
    if args.get("enable_prefix_caching"):
        yield "fleet.engine_args.enable_prefix_caching is on: nothing may be reused across queries"
    if place.folder != INTERACTIVE and args.get("speculative_config"):
        yield "fleet.engine_args.speculative_config is set: speculative decoding is for Interactive only"
    if candidate.run.synthetic:
        return
    wanted = DEMANDS[place.benchmark].temperature
    if sampling.get("temperature", 0.0) != wanted:
        yield f"sampling.temperature is {sampling.get('temperature', 0.0)}, {place.benchmark} wants {wanted}"
    for name, off in (("top_p", 1.0), ("top_k", 0)) if wanted else ():  # greedy decoding looks at neither
        if sampling.get(name, off) != off:
            yield f"sampling.{name} is {sampling[name]}, {place.benchmark} wants {off}: every token may be drawn"


def _log_reasons(candidate: Candidate, place: Place) -> Iterator[str]:
    """LoadGen's own files, whatever run.json says of them."""
    for name in ("mlperf_log_detail.txt", SUMMARY_LOG, USER_CONF):
        if not size_of(candidate.folder / name):
            yield f"{name} is missing or empty in {candidate.folder}"
    log = candidate.log
    if not log.complete:
        yield "mlperf_log_detail.txt was not written to its end"
        return
    errors = max(log.result().num_errors, len(log.errors))
    if errors:
        yield f"LoadGen logged {errors} error{'s' * (errors != 1)}: " + "; ".join(log.errors[:3])
    scenario = log.keys.get("effective_scenario")
    if scenario != candidate.attempt.scenario:
        yield f"LoadGen's log is of scenario {scenario}, the record says {candidate.attempt.scenario}"
    name, kind = limits_name(place.benchmark, place.folder), candidate.attempt.kind
    test = place.part if kind == "compliance" else None
    for difference in rules_diff(name, candidate.attempt.scenario, kind, log.keys, test):
        yield f"settings not as the rules want: {difference}"


def _performance_reasons(candidate: Candidate, place: Place) -> Iterator[str]:
    keys = candidate.log.keys
    if keys.get("result_validity") != "VALID":
        yield f"LoadGen's result is {keys.get('result_validity', 'missing')}"
    duration_ms = keys.get("effective_min_duration_ms")
    if not isinstance(duration_ms, int | float) or duration_ms < LEAST_DURATION_MS:
        yield f"min_duration_ms in effect is {duration_ms}, at least {LEAST_DURATION_MS} is wanted"
    yield from (meaning for key, meaning in _MET.items() if keys.get(key) is not True)
    if place.folder == OFFLINE:
        samples, least = keys.get("effective_samples_per_query"), DEMANDS[place.benchmark].offline_samples
        if not isinstance(samples, int | float) or samples < least:
            yield f"samples_per_query in effect is {samples}, at least {least} is wanted (raise load.target_qps)"
        return
    if keys.get("early_stopping_met") is not True:
        yield "early stopping was not met: too few samples, or too many over a limit"
    yield from _limit_reasons(candidate, place)


def _limit_reasons(candidate: Candidate, place: Place) -> Iterator[str]:
    from harness.records.reader import Record, summarise

    rules = MODELS[limits_name(place.benchmark, place.folder)]
    summary = summarise(Record(candidate.run_folder), candidate.attempt.number)
    found = candidate.log.result()
    for name, limit_ms, ours, theirs in (
        ("TTFT", rules.ttft_p99_ms, summary.ttft_ms["p99"], found.ttft_ms.get("99.00")),
        ("TPOT", rules.tpot_p99_ms, summary.tpot_ms["p99"], found.tpot_ms.get("99.00")),
    ):
        if ours is None:
            yield f"{name} p99 cannot be shown: the record has no samples of this attempt"
        for source, p99_ms in (("by the record's samples", ours), ("in LoadGen's log", theirs)):
            if p99_ms is not None and not p99_ms < limit_ms:
                yield f"{name} p99 {p99_ms:.6g} ms {source} is not below the {place.folder} limit of {limit_ms:g} ms"


def _accuracy_reasons(candidate: Candidate, place: Place, *, closed: bool) -> Iterator[str]:
    score, rules = candidate.score, MODELS[place.benchmark]
    if score is None:
        yield f"it is not scored (`paceline score {candidate.name}`)"
        return
    if score.metric != "exact_match":
        yield f"its score is {score.metric}, {place.benchmark} wants exact_match"
    if score.n != rules.accuracy_samples:
        yield f"{score.n} samples were scored, {place.benchmark} has {rules.accuracy_samples}"
    if closed and not _at_least(score.score, rules.accuracy_gate):
        yield f"exact_match {score.score:.6g} is below the gate of {rules.accuracy_gate:g}"
    low, high = rules.tokens_per_sample
    if closed and not low <= score.tokens_per_sample <= high:
        yield f"{score.tokens_per_sample:.6g} tokens per sample are not within {low:g} to {high:g}"
    log = candidate.folder / ACCURACY_LOG
    if not size_of(log):
        yield f"{ACCURACY_LOG} is missing or empty in {candidate.folder}"
    elif sha256_of(log) != score.log_sha256:
        yield f"{ACCURACY_LOG} is not the file that was scored (another sha256): score it again"


def _compliance_reasons(candidate: Candidate, place: Place) -> Iterator[str]:
    found = candidate.compliance
    if place.part not in DEMANDS[place.benchmark].tests:
        yield f"{place.part} is not a test of {place.benchmark}"
    elif found is not None and found.test != place.part:
        yield f"it was verified as {found.test}"
    if found is None:
        yield f"it is not verified (`paceline verify {candidate.name}`)"
        return
    if not found.passed:
        yield f"{place.part} was not passed" + "".join(
            f"; {check.name}: {check.text}" for check in found.checks if not check.passed
        )


def _at_least(value: float, least: float) -> bool:
    return math.isfinite(value) and value >= least


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
