"""One replica of four tells of another MoE table, over real processes; the facts are planted: no engine here has such layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from run_kit import RunHandle

from harness.analysis.drill import Drill
from harness.records.reader import Record

CLASS = "gfx950-256cu-288gb-AMD_Instinct_MI355X"
TUNED = {"kernel": "ours", "hash": "aa11", "config": "tuned", "config_hash": "0a1b2c3d4e5f", "node_class": CLASS}
ODD = "node001/gpu0"
PLANTED = {"*": TUNED, ODD: {"config": "default", "config_hash": ""}}


def paceline(run: RunHandle, *words: str) -> str:
    command = [sys.executable, "-m", "console.cli", *words]
    environ = {**os.environ, "PACELINE_RUNS": str(run.folder.path.parent)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_journal_status_live_and_the_record_say_which_replica_runs_another_table(start_run: Callable[..., RunHandle]) -> None:
    run = start_run(fleet__engine_args={"preset": "demo", "kernels": PLANTED}, load__target_qps=160, fleet__keep_warm_s=60)
    entry = run.wait_journal("kernel.differs")
    assert (entry.subject, entry.level) == (ODD, "warn")
    assert entry.why == f"runs another MoE table: default instead of tuned, as 3 of 4 replicas of {CLASS} have"
    status: dict[str, Any] = json.loads(paceline(run, "status", run.folder.name, "--json"))
    assert [(one["config"], one["replicas"]) for one in status["kernels"]] == [("tuned", 3), ("default", 1)]
    (odd,) = status["other_kernels"]
    assert (odd["slot"], odd["differs_in"], odd["own"], odd["usual"], odd["agree"]) == (ODD, "table", "default", "tuned", 3)
    told = f"1 replica runs another MoE kernel or table than most of {CLASS}; first {ODD}: MoE table: default instead of"
    assert told in paceline(run, "status", run.folder.name)
    assert run.slot(ODD).facts["kernel.config"] == "default"
    end = run.finish()
    assert end.verdict == "VALID", end.reasons
    assert [found.subject for found in run.journal("kernel.")] == [ODD], "told once, and of nobody else"
    record = Drill(Record(run.folder), 1)
    found = {one.field: {variant.value: variant.slots for variant in one.variants} for one in record.config()}
    assert found["kernel.config"]["default"] == [ODD]
    assert len(found["kernel.config"]["tuned"]) == 3
    assert f"MoE kernel 3 replicas: ours aa11, table tuned 0a1b2c3d4e5f, on {CLASS}" in paceline(run, "show", run.folder.name)
    (finding,) = [one for one in record.overview().findings if one.view == "config"]
    assert finding.text.startswith(f"1 replica runs another MoE kernel or table than most of {CLASS}; first {ODD}: MoE table:")
    paceline(run, "report", run.folder.name, "--out", str(folder := run.folder.path.parent / "reported"))
    (page,) = folder.glob("*.html")
    assert "ours aa11" in page.read_text(encoding="utf-8")
