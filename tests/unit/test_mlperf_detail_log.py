"""Reading LoadGen's detail log, however it ended, and comparing settings in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.mlperf.detail_log import DETAIL_LOG, explain, parse, read
from harness.mlperf.settings import settings_diff


def line(key: str, value: Any, *, error: bool = False, warning: bool = False, time_ms: float = 1.0) -> str:
    about = {"is_error": error, "is_warning": warning, "file": "x.cc", "line_no": 1, "pid": 1, "tid": 1}
    entry = {"key": key, "value": value, "time_ms": time_ms, "namespace": "mlperf::logging", "metadata": about}
    return ":::MLLOG " + json.dumps(entry)


def test_a_killed_attempt_reads_as_incomplete_with_what_it_has() -> None:
    text = "\n".join(
        [line("effective_target_qps", 300, time_ms=1.8e13), line("generated_query_count", 9), line("power_end", "")[:60]]
    )
    log = parse(text)
    assert not log.complete
    assert log.keys["effective_target_qps"] == 300
    assert log.unreadable_lines == 1
    assert log.result().validity is None
    assert log.result().num_errors == 0


def test_a_missing_log_reads_as_empty(tmp_path: Path) -> None:
    assert not read(tmp_path).complete
    (tmp_path / DETAIL_LOG).write_bytes(b"\xff\xfe garbage\n" + line("result_validity", "VALID").encode())
    assert read(tmp_path).result().validity == "VALID"


def test_errors_count_even_when_the_log_forgot_their_number() -> None:
    log = parse(
        "\n".join([line("error_runtime", "Attempted to complete a sample twice.", error=True), line("w", "odd", warning=True)])
    )
    assert log.result().num_errors == 1
    assert log.errors == ["Attempted to complete a sample twice."]
    assert log.warnings == ["odd"]


def test_reasons_on_several_lines_become_several_reasons() -> None:
    advice = "constrain not met: Reduce target QPS to improve latency."
    log = parse(line("result_invalid_reason", f"TTFT {advice}\n * TPOT {advice}"))
    assert len(log.result().invalid_reasons) == 2
    ttft, tpot = log.explanations()
    assert "p99 of TTFT" in ttft
    assert "p99 of TPOT" in tpot


def test_early_stopping_that_failed_says_how_many_queries_are_missing() -> None:
    said = (
        " * Run unsuccessful.\n * Processed 300 queries.\n * Would need to run at least 159 more queries,\n"
        " with the run being successful if every additional\n query were under latency."
    )
    log = parse("\n".join([line("early_stopping_met", False), line("early_stopping_ttft_result", said)]))
    (only,) = log.explanations()
    assert "TTFT early stopping: Run unsuccessful. Processed 300 queries." in only
    assert "159 more queries" in only
    assert "Too few samples: p99 can be judged from 459 on, and there were 300" in only


@pytest.mark.parametrize(
    ("processed", "more", "says"),
    [(156, 303, "Too few samples"), (300, 362, "so many over the limit"), (6396, 12, "so many over the limit")],
)
def test_early_stopping_is_explained_by_too_few_samples_only_if_none_was_over(processed: int, more: int, says: str) -> None:
    said = f" * Processed {processed} queries.\n * Would need to run at least {more} more queries,\n"
    assert says in explain(said)
    assert "more samples under the limit" in explain("needs more queries").lower()


def test_an_accuracy_log_is_complete_only_with_every_part_and_every_sample() -> None:
    head = [line("effective_test_mode", "AccuracyOnly"), line("effective_accuracy_sample_count", 64)]
    part = [line("generated_query_count", 50), line("generated_samples_per_query", 1), line("power_end", "")]
    rest = [line("generated_query_count", 14), line("generated_samples_per_query", 1)]
    assert not parse("\n".join(head)).complete
    assert not parse("\n".join([*head, *part])).complete
    assert not parse("\n".join([*head, *part, *rest])).complete
    assert parse("\n".join([*head, *part, *rest, line("power_end", "")])).complete


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Increase expected QPS so the loadgen pre-generates a larger (coalesced) query.", "target_qps"),
        ("Attempted to record a sample latency before it's first token latency", "TTFT is worthless"),
        ("n_tokens argument missing or attempted to record 0 as number of tokens", "TPOT is worthless"),
        ("Multiple conf files are used", "read twice"),
    ],
)
def test_loadgens_messages_are_explained(text: str, says: str) -> None:
    assert says in explain(text)


def test_an_unknown_message_is_left_as_it_is() -> None:
    assert explain("something new") == ""


def test_differences_in_settings_are_told_in_words() -> None:
    effective = {"effective_target_qps": 3999, "requested_use_token_latencies": False, "effective_min_duration_ms": 1000}
    asked = {"target_qps": 4000.0, "use_token_latencies": True, "min_duration_ms": 1000, "qsl_rng_seed": 5, "note.x": "remark"}
    assert settings_diff(asked, effective) == [
        "target_qps: asked 4000, in effect 3999",
        "use_token_latencies: asked True, in effect False",
        "qsl_rng_seed: asked 5, not found in LoadGen's log",
    ]


def test_numbers_printed_with_six_digits_are_not_a_difference() -> None:
    assert settings_diff({"target_qps": 1234.5678}, {"effective_target_qps": 1234.57}) == []
