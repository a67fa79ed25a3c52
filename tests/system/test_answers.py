"""Accuracy and compliance attempts of real runs: on one warm fleet after each other, and TEST07 where LoadGen would crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_kit import RunHandle

from harness.engines.tinymodel import write_tiny_model
from harness.mlperf.compliance.audits import Attempt
from harness.mlperf.compliance.verify import verify
from harness.mlperf.scores import AccuracyScore, read_compliance, write_score

Start = Callable[..., RunHandle]
N = 24


def tables(place: Path, tokens: int) -> dict[str, Any]:
    """A dataset with right answers; the synthetic engine answers with random bytes of the tiny model's tokenizer."""
    write_tiny_model(place / "model")
    rows = [
        {"input_tokens": [5] * 20, "output_tokens": tokens, "dataset": "gpqa", "ground_truth": "ABCD"[n % 4]} for n in range(N)
    ]
    (place / "data.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return {
        "dataset": {"kind": "jsonl", "path": str(place / "data.jsonl"), "tokenizer": str(place / "model")},
        "model": {"name": "tiny", "vocab_size": 260},
        "fleet__engine_args": {"preset": "demo", "speed": 40},
        "limits": {},
    }


def test_accuracy_and_compliance_attempts_follow_each_other_on_a_warm_fleet(start_run: Start, tmp_path: Path) -> None:
    run = start_run(
        load={"kind": "accuracy", "target_qps": 100, "duration_s": 1, "max_output_tokens": 2000},
        fleet__keep_warm_s=60,
        **tables(tmp_path, 1278),
    )
    for number, test in enumerate(("TEST06", "TEST09"), 2):
        run.wait(f"attempt {number - 1}", lambda n=number: run.attempts[n - 2].state == "ENDED", 60)
        run.wait("the fleet to be ready again", lambda: run.run.phase == "READY")
        reply = run.command("start_attempt", test=test, qps=100)
        assert reply.ok, reply.message
        assert f"compliance {test} at 100 QPS" in reply.message
    refused = run.command("start_attempt", kind="compliance")
    assert not refused.ok
    run.wait("the last attempt", lambda: len(run.attempts) == 3 and run.attempts[2].state == "ENDED", 60)
    write_score(
        run.folder.attempt(1),
        AccuracyScore(
            metric="exact_match", score=12.5, gate=None, passed=None, n=N, expected_n=None, subsets=[], tokens_per_sample=1278.0,
            log_sha256="", scored_unix=0.0,
        ),
    )  # fmt: skip
    end = run.finish()
    accuracy, six, nine = end.attempts
    assert [attempt.verdict for attempt in end.attempts] == ["VALID", "VALID", "VALID"], [a.reasons for a in end.attempts]
    assert [attempt.test for attempt in end.attempts] == ["", "TEST06", "TEST09"]
    assert [attempt.totals["completed"] for attempt in end.attempts] == [N, 100, N]
    assert all(attempt.settings_diff == [] for attempt in end.attempts)
    assert "accuracy: exact_match 12.5000 over 24 samples" in accuracy.notes  # scored while the fleet was warm
    assert "compliance: TEST06 passed" in six.notes
    assert "compliance: TEST09 passed" in nine.notes
    found = read_compliance(run.folder.attempt(3))
    assert found is not None
    assert found.checks[1].text == "1,278.00 over 24 samples; 1150.38 to 1406.02 are allowed"


def test_test07_runs_offline_over_every_sample_once(start_run: Start, tmp_path: Path) -> None:
    made = tables(tmp_path, 30)
    made["model"] |= {"mlperf_name": "gpt-oss-120b"}
    load = {"kind": "compliance", "test": "TEST07", "scenario": "Offline", "target_qps": 100, "duration_s": 1}
    run = start_run(load=load, **made)
    attempt = run.wait_end().attempts[0]
    assert attempt.totals["issued"] == attempt.totals["completed"] == N
    assert attempt.loadgen["num_errors"] == 0
    assert attempt.settings_diff == []
    assert attempt.verdict == "INVALID"
    assert attempt.reasons[-1] == "compliance: not verified yet (paceline verify)"
    assert all("990" in reason for reason in attempt.reasons[:-1])
    logged = json.loads((run.folder.attempt(1) / "mlperf_log_accuracy.json").read_text())
    assert sorted(entry["qsl_idx"] for entry in logged) == list(range(N))
    assert verify(Attempt(run.folder.attempt(1), "TEST06", "Offline", 2)).checks[0].passed is False
