"""`paceline demo --engine vllm-cpu`: two real replicas of the tiny model under LoadGen Server, to a verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from harness.records.layout import RunFolder
from harness.records.reader import Record
from harness.spec import RunSpec


@pytest.mark.timeout(420)
def test_the_demo_with_vllm_ends_valid_with_every_token_counted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "console.cli", "demo", "--engine", "vllm-cpu", "--no-console", "--json"]
    env = {**os.environ, "PACELINE_RUNS": str(tmp_path / "runs"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env.pop("PACELINE_VLLM_PYTHON", None)  # this interpreter has vLLM, and that is what is asked for here
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=env, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "VALID"
    assert result["synthetic"] is False
    totals = result["totals"]
    assert totals["issued"] == totals["completed"] >= 459
    assert (totals["failed"], totals["lost"], totals["redispatched"]) == (0, 0, 0)

    record = RunFolder(Path(result["record"]))
    spec = RunSpec.model_validate_json(record.spec_json.read_text())
    assert "random weights" in spec.model.name
    assert str(spec.model.path).startswith(str(tmp_path / "cache" / "paceline" / "models"))
    samples = Record(record).samples(1).collect()
    assert set(samples["slot"]) == {"node000/gpu0", "node000/gpu1"}
    assert samples["n_tokens"].sum() == totals["tokens"]
    most = spec.load.max_output_tokens
    assert samples.filter(~pl.col("n_tokens").is_between(2, most)).is_empty()
    assert samples.filter(pl.col("n_tokens") == most).height > 0.8 * samples.height, "one token in 512 ends the text"
