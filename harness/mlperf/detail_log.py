"""LoadGen's mlperf_log_detail.txt: one JSON object a line after the marker `:::MLLOG `.

The only one of LoadGen's files that is parsed (labels in the summary drift between versions). Read without trust: times
are ignored, because lines written before the clock's origin carry absurd ones; a killed process leaves half a last
line; an accuracy attempt has no results at all. `result_token_throughput` is never used: it is scaled wrongly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.metrics.early_stopping import needed
from harness.mlperf.settings import settings_diff

__all__ = ["DETAIL_LOG", "DetailLog", "Result", "explain", "parse", "read", "settings_diff"]

DETAIL_LOG = "mlperf_log_detail.txt"
_MARKER = ":::MLLOG "
_LEAST_FOR_P99 = needed(0)  # 459: so many without one over the limit
_LONG_AND_UNUSED = frozenset({"loaded_qsl_set", "loadgen_file_sha1"})
#: Of a key, of errors and of warnings so many are kept: a log with millions of errors fits into memory.
_KEPT = 1000
_LONGEST_LINE = 64 << 20
_OF_RECORD = 20  # errors that run.json has

#: Percentiles that LoadGen logs, as in its keys.
_PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")

#: A part of LoadGen's text, and what it means for the person who reads it. The first that fits is taken.
_EXPLANATIONS: tuple[tuple[str, str], ...] = (
    ("larger (coalesced) query", "The Offline query ended before the minimum duration: raise load.target_qps."),
    ("Increase the target QPS so", "The schedule ended before the minimum duration (an early end, or too low a target QPS)."),
    ("TTFT constrain not met", "The p99 of TTFT is over its limit: lower the target QPS, or find why prompts wait."),
    ("TPOT constrain not met", "The p99 of TPOT is over its limit: lower the target QPS: smaller batches step faster."),
    ("Reduce target QPS to improve latency", "The p99 latency is over its limit: lower the target QPS."),
    ("exited early, before enough queries", "Fewer queries than the minimum were issued: the attempt was cut short."),
    ("complete a sample twice", "A sample was completed twice; the second was ignored. The exactly-once gate has failed."),
    ("n_tokens argument missing", "A sample was completed without its number of tokens; its TPOT is worthless."),
    ("negative number of tokens", "A sample was completed with a negative number of tokens; its TPOT is worthless."),
    ("Number of tokens need to be greater than 1", "A sample had a single token; TPOT needs at least two."),
    ("before it's first token latency", "A sample was completed before its first token was reported; its TTFT is worthless."),
    ("token latency after sample was completed", "A first token was reported after its sample was complete; it was ignored."),
    ("completion for an old sample", "A sample of an earlier attempt was completed; it was ignored."),
    ("incomplete samples at the end", "Samples were still open when the load ended."),
    ("Multiple conf files", "The configuration was read twice in one process: seeds and limits may not be those of the rules."),
    ("Max test duration reached", "LoadGen stopped at the maximum duration, before its minima were met."),
    ("Max query count reached", "LoadGen stopped at load.max_queries, before its minima were met."),
    ("Too many outstanding queries", "LoadGen stopped because too many queries were in flight."),
    ("Ran out of generated queries", "All queries were issued before the minimum duration: the target QPS was too low."),
)  # fmt: skip


def explain(text: str) -> str:
    """Plain words for one of LoadGen's messages; empty when there is nothing to add."""
    if "more queries" in text:
        return _early_stopping(text)
    return next((plain for part, plain in _EXPLANATIONS if part in text), "")


def _early_stopping(text: str) -> str:
    """`Processed 300 queries … at least 159 more queries`: the sum says whether any sample was over the limit at all."""
    said = re.search(r"Processed (\d+) queries.*?at least (\d+) more queries", text, re.DOTALL)
    if said is None:
        return "More samples under the limit are needed before p99 counts as held."
    processed, more = int(said[1]), int(said[2])
    if processed + more <= _LEAST_FOR_P99:
        return (
            f"Too few samples: p99 can be judged from {_LEAST_FOR_P99} on, and there were {processed}. "
            "Raise load.duration_s or load.min_queries."
        )
    return "With so many over the limit, more samples under it are needed before p99 counts as held."


@dataclass(frozen=True, slots=True)
class Result:
    """What LoadGen says about an attempt. None: the log does not say (killed, accuracy, or not of this scenario)."""

    validity: str | None
    invalid_reasons: list[str]
    perf_constraints_met: bool | None
    min_duration_met: bool | None
    min_queries_met: bool | None
    early_stopping_met: bool | None
    early_stopping_ttft: str
    early_stopping_tpot: str
    queries: int | None
    samples_per_s: float | None
    tokens_per_s: float | None
    ttft_ms: dict[str, float]  # "min", "mean", "max" and percentiles "50.00" … "99.90"
    tpot_ms: dict[str, float]
    latency_ms: dict[str, float]
    num_errors: int


@dataclass(frozen=True, slots=True)
class DetailLog:
    """`keys` has the last value of every key; `values(key)` the first thousand. Errors and warnings are LoadGen's own texts,
    as many; `error_count` is of all."""

    keys: dict[str, Any]
    errors: list[str]
    warnings: list[str]
    complete: bool
    unreadable_lines: int = 0
    error_count: int = 0
    _all: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    def values(self, key: str) -> list[Any]:
        return self._all.get(key, [])

    def result(self) -> Result:
        keys = self.keys
        reasons = [line.strip(" *") for text in self.values("result_invalid_reason") for line in str(text).splitlines()]
        validity, queries = keys.get("result_validity"), _number(keys.get("result_query_count"))
        return Result(
            validity=validity if isinstance(validity, str) else None,
            invalid_reasons=[reason for reason in reasons if reason],
            perf_constraints_met=_truth(keys.get("result_perf_constraints_met")),
            min_duration_met=_truth(keys.get("result_min_duration_met")),
            min_queries_met=_truth(keys.get("result_min_queries_met")),
            early_stopping_met=_truth(keys.get("early_stopping_met")),
            early_stopping_ttft=_one_line(keys.get("early_stopping_ttft_result", "")),
            early_stopping_tpot=_one_line(keys.get("early_stopping_tpot_result", "")),
            queries=None if queries is None else int(queries),
            samples_per_s=_number(keys.get("result_completed_samples_per_sec", keys.get("result_samples_per_second"))),
            tokens_per_s=_number(keys.get("result_completed_tokens_per_second", keys.get("result_tokens_per_second"))),
            ttft_ms=self._latencies("result_first_token_{}_latency_ns", "result_first_token_{}_percentile_latency_ns"),
            tpot_ms=self._latencies("result_time_to_output_token_{}", "result_time_per_output_token_{}_percentile_ns"),
            latency_ms=self._latencies("result_{}_latency_ns", "result_{}_percentile_latency_ns"),
            num_errors=max(int(_number(keys.get("num_errors")) or 0), self.error_count),
        )

    def figures(self) -> dict[str, Any]:
        """What an attempt's record keeps of it, as `loadgen`."""
        result = self.result()
        return {
            "validity": result.validity,
            "queries": result.queries,
            "samples_per_s": result.samples_per_s,
            "tokens_per_s": result.tokens_per_s,
            "ttft_ms": result.ttft_ms,
            "tpot_ms": result.tpot_ms,
            "latency_ms": result.latency_ms,
            "early_stopping_met": result.early_stopping_met,
            "min_duration_met": result.min_duration_met,
            "min_queries_met": result.min_queries_met,
            "num_errors": result.num_errors,
            "errors": self.errors[:_OF_RECORD],
        }

    def explanations(self) -> list[str]:
        """Each thing that LoadGen complains of, with what it means, once."""
        result = self.result()
        texts = [*result.invalid_reasons, *self.errors]
        if result.early_stopping_met is False:
            texts += [
                f"{name} early stopping: {text}"
                for name, text in (("TTFT", result.early_stopping_ttft), ("TPOT", result.early_stopping_tpot))
                if "unsuccessful" in text
            ]
        lines = [f"{text} ({plain})" if (plain := explain(text)) else text for text in texts]
        return list(dict.fromkeys(lines))

    def _latencies(self, moment: str, percentile: str) -> dict[str, float]:
        named = {name: moment.format(name) for name in ("min", "mean", "max")}
        named |= {p: percentile.format(p) for p in _PERCENTILES}
        found = {name: _number(self.keys.get(key)) for name, key in named.items()}
        return {name: ns / 1e6 for name, ns in found.items() if ns is not None}


def read(path: Path) -> DetailLog:
    """The log of an attempt's folder, or that file itself, line by line. A missing one reads as an empty, incomplete log."""
    file = path / DETAIL_LOG if path.is_dir() else path
    try:
        with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            return _parse(iter(lambda: lines.readline(_LONGEST_LINE), ""))
    except FileNotFoundError:
        return parse("")


def parse(text: str) -> DetailLog:
    return _parse(text.split("\n"))


def _parse(lines: Iterable[str]) -> DetailLog:
    everything: dict[str, list[Any]] = {}
    keys: dict[str, Any] = {}
    errors: list[str] = []
    warnings: list[str] = []
    unreadable = error_count = 0
    for entry in _entries(lines):
        if entry is None:
            unreadable += 1
            continue
        key, value, about = entry
        if key in _LONG_AND_UNUSED:
            continue
        keys[key] = value
        _keep(everything.setdefault(key, []), value)
        if about.get("is_error"):
            error_count += 1
            _keep(errors, str(value))
        elif about.get("is_warning"):
            _keep(warnings, str(value))
    return DetailLog(keys, errors, warnings, _is_complete(keys, everything), unreadable, error_count, everything)


def _entries(lines: Iterable[str]) -> Iterator[tuple[str, Any, dict[str, Any]] | None]:
    """Key, value and metadata of every entry; None for one that cannot be read."""
    for line in lines:
        at = line.find(_MARKER)
        if at < 0:
            continue
        try:
            entry = json.loads(line[at + len(_MARKER) :])
            key, value, about = entry["key"], entry["value"], entry.get("metadata", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield None
        else:
            yield (key, value, about) if isinstance(key, str) and isinstance(about, dict) else None


def _keep(values: list[Any], value: Any) -> None:
    if len(values) < _KEPT:
        values.append(value)


def _is_complete(keys: dict[str, Any], everything: dict[str, list[Any]]) -> bool:
    """Written to its end: with its results, or (accuracy has none) with every part's end and every sample."""
    if keys.get("effective_test_mode") != "AccuracyOnly":
        return "result_validity" in keys and "num_errors" in keys
    parts = everything.get("generated_query_count", [])
    counts = zip(parts, everything.get("generated_samples_per_query", []), strict=False)
    generated = sum((_number(queries) or 0) * (_number(samples) or 0) for queries, samples in counts)
    wanted = _number(keys.get("effective_accuracy_sample_count"))
    return 0 < len(everything.get("power_end", [])) == len(parts) and generated >= (1 if wanted is None else wanted)


def _number(value: Any) -> float | None:
    """None for what is no number that can be counted with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _one_line(text: Any) -> str:
    """LoadGen's bullets and line breaks as one sentence after the other."""
    return " ".join(str(text).replace("*", " ").split())
