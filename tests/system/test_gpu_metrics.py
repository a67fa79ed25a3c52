"""A power-capped GPU in a whole run: found slow by its steps, explained by its exporter, told live and recorded,
by direct scrape and by a real Prometheus alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pytest
from run_kit import RunHandle

from harness.records.journal import read_journal
from harness.records.reader import Record
from harness.specfile import load_spec
from harness.wire.control import RunState

sys.path.insert(0, str(Path(__file__).parents[1] / "metrics"))

from prometheus_kit import prometheus_binary

Start = Callable[..., RunHandle]
CAPPED = "node001/gpu2"
OVERRIDES = [
    "load.kind='explore'", "load.duration_s=0", "load.target_qps=40", "fleet.nodes=2", "fleet.replicas_per_node=4",
    "stragglers.grace_s=4", "stragglers.window_s=3", "metrics.gpu.interval_s=1", "metrics.gpu.slow_interval_s=1",
    f'fleet.engine_args.faults=[{{slot="{CAPPED}", kind="slow", percent=40, because="power"}}]',
]  # fmt: skip


def values_of(state: RunState, role: str) -> dict[str, float]:
    assert state.gpus is not None
    row = next(row for row in state.gpus.roles if row.role == role)
    return dict(zip([slot.slot for slot in state.slots], np.frombuffer(row.values, "<f4").tolist(), strict=True))


@pytest.mark.parametrize("way", ["scrape", "prometheus"])
def test_a_power_capped_gpu_is_the_cause_beside_its_straggler(
    start_run: Start, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = list(OVERRIDES)
    if way == "prometheus":
        monkeypatch.setenv("PACELINE_PROMETHEUS", str(prometheus_binary()))
        overrides.append("metrics.gpu.with_prometheus=true")
    run = start_run(load_spec("demo", overrides))
    run.wait_issuing(60)
    run.wait_journal("straggler.slow", within_s=90, subject=CAPPED)
    alert = run.wait_journal("alert.start", within_s=90, subject=CAPPED)
    assert (alert.data["rule"], alert.data["cause"]) == ("power_cap", "power cap")
    run.wait("the cause beside the straggler", lambda: _cause_told(run))

    state = run.wait("figures that show the cap", lambda: found if _shows_the_cap(found := run.state()) else None)
    assert state.gpus is not None
    assert (state.gpus.kind, state.gpus.state) == ("simulated" if way == "scrape" else "promql", "ok")
    assert (state.gpus.matched, state.gpus.gpus_unmatched) == (8, 0)
    assert {(row.rule, row.subject) for row in state.gpus.alerts} >= {("power_cap", CAPPED)}
    run.wait("the cause on the screen", lambda: "power cap" in _screen(run))

    page = httpx.get(json.loads(run.folder.head_json.read_text())["metrics"], trust_env=False, timeout=30).text
    assert f'paceline_replica_state{{replica="{CAPPED}",state="READY"}} 1' in page
    assert "paceline_gpus_expected 8.0" in page

    assert run.command("stop").ok
    run.wait_end()
    rows = Record(run.folder).gpus().collect()
    by_slot = rows.filter(pl.col("role") == "throttle_power").group_by("slot").agg(pl.col("value").max())
    capped = dict(by_slot.iter_rows())
    assert capped.pop(CAPPED) > 0.5
    assert max(capped.values()) < 0.3
    assert [entry.subject for entry in read_journal(run.folder.journal) if entry.what == "alert.end"].count(CAPPED) >= 1
    assert not (run.folder.path / "prometheus").exists()


def _shows_the_cap(state: RunState) -> bool:
    """Where the machine stops for a moment there is less load, and the others draw less for it."""
    if state.gpus is None or state.gpus.state != "ok":
        return False
    power = values_of(state, "power")
    return bool(power[CAPPED] < 0.9 * np.median(list(power.values())))


def _cause_told(run: RunHandle) -> bool:
    return any("power cap" in entry.why for entry in (*run.journal("straggler.cause"), *run.journal("straggler.slow")))


def _screen(run: RunHandle) -> str:
    """What `paceline attach --once` prints of the Live screen."""
    command = [sys.executable, "-m", "console.cli", "attach", str(run.folder.path), "--once"]
    env = {**os.environ, "COLUMNS": "140", "LINES": "45"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=True).stdout
