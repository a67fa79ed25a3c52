"""Every way to a verdict. One healthy attempt, and what each single change makes of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from harness.mlperf.verdict import VerdictInput, judge
from harness.wire.states import VERDICTS

HEALTHY = VerdictInput(
    kind="performance",
    scenario="Server",
    ending="finished",
    loadgen_validity="VALID",
    loadgen_complete=True,
    ttft_limit_ms=2000.0,
    tpot_limit_ms=80.0,
    ttft_p99_ms=1500.0,
    tpot_p99_ms=60.0,
    issued=1000,
    completed=1000,
    min_duration_s=600.0,
)


def changed(**fields: Any) -> VerdictInput:
    return dataclasses.replace(HEALTHY, **fields)


def test_a_healthy_attempt_is_valid_without_reasons() -> None:
    verdict = judge(HEALTHY)
    assert (verdict.verdict, verdict.reasons, verdict.acts, verdict.shown) == ("VALID", [], 0, "VALID")


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ({"loadgen_validity": "INVALID"}, "INVALID", "LoadGen says INVALID"),
        ({"loadgen_validity": None}, "INVALID", "nothing about validity"),
        ({"num_errors": 1}, "INVALID", "LoadGen logged 1 error;"),
        ({"num_errors": 3}, "INVALID", "LoadGen logged 3 errors;"),
        ({"ttft_p99_ms": 2000.1}, "INVALID", "TTFT p99 2000.1 ms is over the limit of 2000 ms"),
        ({"tpot_p99_ms": 81.5}, "INVALID", "TPOT p99 81.5 ms is over the limit of 80 ms"),
        ({"ttft_p99_ms": math.nan}, "INVALID", "TTFT p99 was not measured"),
        ({"settings_diff": ["target_qps: asked 4000, in effect 3999"]}, "INVALID", "not as asked: target_qps"),
        ({"rules_diff": ["qsl_rng_seed: wrong"]}, "INVALID", "not as the rules want: qsl_rng_seed"),
        ({"acts": {"evict": 1}}, "INVALID", "an operator's evict touched"),
        ({"acts": {"recycle": 2}}, "INVALID", "an operator's recycle touched the attempt (2 times)"),
        ({"completed": 999}, "INVALID", "1000 samples were issued, 999 completed"),
        ({"completed": 1001}, "INVALID", "1000 samples were issued, 1001 completed"),
        ({"failed": 1}, "INVALID", "1 sample failed"),
        ({"issued": 0, "completed": 0}, "INVALID", "no sample was issued"),
        ({"mlperf_name": "gpt-oss-120b", "min_duration_s": 120.0}, "INVALID", "not a submission-length run"),
        ({"loadgen_complete": False}, "CRASHED", "log is not complete"),
        ({"ending": "crashed", "ending_reason": "driver killed by signal 9"}, "CRASHED", "driver killed by signal 9"),
        ({"ending": "crashed"}, "CRASHED", "ended unasked"),
        ({"ending": "aborted", "ending_reason": "Ctrl-C"}, "ABORTED", "Ctrl-C"),
        ({"ending": "aborted"}, "ABORTED", "operator"),
        ({"ending": "superseded", "ending_reason": "rate changed to 500 by ann"}, "SUPERSEDED", "500"),
        ({"ending": "superseded"}, "SUPERSEDED", "another rate"),
        ({"judged": ["accuracy: not scored yet"]}, "INVALID", "accuracy: not scored yet"),
        ({"kind": "compliance", "num_errors": 1}, "INVALID", "LoadGen logged 1 error"),
        ({"kind": "explore", "loadgen_validity": None, "loadgen_complete": False}, "EXPLORATION", "not paced by LoadGen"),
    ],
)
def test_one_change_decides(change: dict[str, Any], verdict: str, reason: str) -> None:
    found = judge(changed(**change))
    assert found.verdict == verdict
    assert found.verdict in VERDICTS
    assert any(reason in text for text in found.reasons), found.reasons


@pytest.mark.parametrize(
    "change",
    [
        {"ttft_limit_ms": None, "tpot_limit_ms": None, "ttft_p99_ms": math.nan, "tpot_p99_ms": math.nan},
        {"scenario": "Offline", "ttft_p99_ms": 9e6},  # Offline has no latency limits
        {"kind": "accuracy", "loadgen_validity": None, "ttft_p99_ms": 9e6, "min_duration_s": 1.0, "mlperf_name": "gpt-oss-120b"},
        {"kind": "compliance", "loadgen_validity": "INVALID", "loadgen_reasons": ["too short"], "ttft_p99_ms": 9e6},
        {"min_duration_s": 120.0},  # a model without rules may be short
        {"mlperf_name": "deepseek-r1", "min_duration_s": 600.0},
        {"ttft_p99_ms": 2000.0, "tpot_p99_ms": 80.0},  # at the limit is within it
    ],
)
def test_these_changes_leave_it_valid(change: dict[str, Any]) -> None:
    assert judge(changed(**change)).reasons == []


def test_valid_with_errors_is_never_valid() -> None:
    for kind in ("performance", "accuracy"):
        for scenario in ("Server", "Offline"):
            for drains in (0, 3):
                attempt = changed(kind=kind, scenario=scenario, num_errors=1, acts={"drain": drains})
                assert judge(attempt).verdict == "INVALID"


def test_drains_are_counted_and_shown_but_leave_it_valid() -> None:
    verdict = judge(changed(acts={"drain": 2}))
    assert (verdict.verdict, verdict.acts, verdict.shown) == ("VALID", 2, "VALID · ACTS 2")
    assert "ACTS 2" in verdict.notes[0]


def test_all_acts_are_counted_beside_any_verdict() -> None:
    verdict = judge(changed(acts={"drain": 2, "evict": 1}))
    assert (verdict.verdict, verdict.acts, verdict.shown) == ("INVALID", 3, "INVALID · ACTS 3")


def test_a_redispatch_is_a_note_and_not_a_failure() -> None:
    verdict = judge(changed(redispatched=7))
    assert verdict.verdict == "VALID"
    assert verdict.notes == ["7 samples were dispatched again after a loss"]


def test_a_synthetic_engine_is_named_beside_every_verdict() -> None:
    for change in ({}, {"ending": "aborted"}, {"kind": "explore"}):
        assert any("synthetic" in note for note in judge(changed(synthetic=True, **change)).notes)


def test_loadgens_invalid_is_a_note_in_a_compliance_attempt() -> None:
    verdict = judge(changed(kind="compliance", loadgen_validity="INVALID", mlperf_name="deepseek-r1", min_duration_s=0.0))
    assert (verdict.verdict, verdict.reasons) == ("VALID", [])
    assert verdict.notes == ["LoadGen says INVALID, as is normal here: a compliance test is short and has no limits to hold"]


def test_an_exploration_says_where_it_missed_the_limits() -> None:
    verdict = judge(changed(kind="explore", tpot_p99_ms=95.0))
    assert verdict.verdict == "EXPLORATION"
    assert any("TPOT p99 95 ms" in reason for reason in verdict.reasons)


def test_loadgens_own_words_follow_its_verdict() -> None:
    verdict = judge(changed(loadgen_validity="INVALID", loadgen_reasons=["TPOT constrain not met (lower the target QPS)"]))
    assert verdict.reasons == ["LoadGen says INVALID", "TPOT constrain not met (lower the target QPS)"]


def test_every_reason_is_listed_not_only_the_first() -> None:
    verdict = judge(
        changed(loadgen_validity="INVALID", num_errors=2, failed=1, completed=999, acts={"recycle": 1}, tpot_p99_ms=90.0)
    )
    assert len(verdict.reasons) == 6
