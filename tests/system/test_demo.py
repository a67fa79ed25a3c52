"""The demo's own promise: the planted straggler is found within a minute, nobody else is accused, and evicting it heals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from run_kit import RunHandle

from harness.records.reader import Record
from harness.specfile import load_spec

Start = Callable[..., RunHandle]
STRAGGLER = "node000/gpu3"


@pytest.mark.alone
def test_the_demos_straggler_is_flagged_and_evicting_it_brings_a_healthy_replacement(start_run: Start) -> None:
    run = start_run(load_spec("demo", ["load.kind='explore'", "load.duration_s=0", "record.chunk_s=0.5"]))
    run.wait_issuing(60)
    flagged = run.wait_journal("straggler.slow", within_s=60)
    assert flagged.subject == STRAGGLER
    assert flagged.data["ratio"] > 1.25
    old = run.slot(STRAGGLER)
    assert run.command("evict", slot=STRAGGLER, incarnation=old.incarnation, deadline_s=0, reason="slow").ok
    run.wait_journal("replica.state", subject=STRAGGLER, after="EVICTED")
    run.wait("its replacement", lambda: (s := run.slot(STRAGGLER)).state == "READY" and s.incarnations == 2)
    by_the_second = (pl.col("slot") == STRAGGLER) & (pl.col("incarnation") == 2)
    run.wait("its samples on record", lambda: Record(run.folder).samples(1).filter(by_the_second).collect().height)
    assert run.command("stop").ok
    attempt = run.wait_end().attempts[0]
    assert attempt.totals["issued"] == attempt.totals["completed"]
    assert {entry.subject for entry in run.journal("straggler.slow")} == {STRAGGLER}
    story = [entry.what for entry in run.journal(subject=STRAGGLER) if entry.unix >= flagged.unix]
    assert story[:3] == ["straggler.slow", "act.evict", "replica.state"]


@pytest.mark.alone
def test_the_recycle_policy_restarts_a_straggler_by_itself(start_run: Start) -> None:
    overrides = ["load.kind='explore'", "load.duration_s=0", "load.target_qps=60", "fleet.nodes=2"]
    overrides += ['stragglers.policy="recycle"', "stragglers.grace_s=4", "stragglers.window_s=3"]
    overrides.append('fleet.engine_args.faults=[{slot="node001/gpu2", kind="slow", percent=40}]')
    run = start_run(load_spec("demo", overrides))
    run.wait_journal("straggler.slow", within_s=60, subject="node001/gpu2")
    act = run.wait_journal("act.recycle", subject="node001/gpu2")
    assert act.who == "policy"
    run.wait("a healthy incarnation", lambda: (s := run.slot("node001/gpu2")).state == "READY" and s.incarnations == 2)
    assert run.command("stop").ok
    end = run.wait_end()
    assert end.attempts[0].totals["issued"] == end.attempts[0].totals["completed"]


def test_the_command_line_runs_the_demo_to_one_json_object(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "console.cli", "run", "demo", "--no-console", "--json"]
    command += ["-s", "load.duration_s=5", "-s", "fleet.nodes=2", "-s", "fleet.engine_args.faults=[]"]
    command += ["-s", "limits.ttft_p99_ms=30000", "-s", "limits.tpot_p99_ms=10000"]  # a busy machine may take its time
    env = {**os.environ, "PACELINE_RUNS": str(tmp_path / "runs")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=env, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "VALID"
    totals = result["totals"]
    assert totals["issued"] == totals["completed"] > 459
    assert totals["lost"] == 0
    assert sum(replica["samples"] for replica in result["replicas"]) == totals["completed"]
    assert sum(replica["tokens"] for replica in result["replicas"]) == totals["tokens"]
    assert set(result["ttft_ms"]) == {"min", "avg", "p50", "p90", "p95", "p99", "p99_9", "max"}
    logs = Path(result["record"]) / "attempts" / "1"
    assert {"mlperf_log_detail.txt", "mlperf_log_summary.txt", "mlperf_log_accuracy.json"} <= {p.name for p in logs.iterdir()}
    assert "MEASURING" in done.stderr
