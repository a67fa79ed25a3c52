"""From [fleet.kernels] to a replica's facts through a real vLLM: the plugin is found as in an environment without Paceline, loads
the experts of a tiny gpt-oss, and what it reports is what the replica tells. On the CPU, where triton interprets the kernel."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from environment import HERMETIC

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason=f"triton, which interprets the kernel on a CPU, is not in {sys.prefix}"
    ),
]
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def told(model: Path, logs: Path, **kernels: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (ROOT, HERE, ROOT / "tests" / "unit")))
    return subprocess.run(
        [sys.executable, str(HERE / "told_kernels.py"), str(model), str(logs), json.dumps(kernels)],
        env={**os.environ, **HERMETIC, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_replica_tells_the_kernel_the_hash_and_the_table_that_its_vllm_has_loaded(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not here")
    from mxfp4_model import write_both

    done = told(write_both(tmp_path / "models")[0], tmp_path / "logs", moe="paceline", required=True)
    said = next((line for line in done.stdout.splitlines() if line.startswith("facts:")), "")
    assert said, done.stderr[-3000:]
    facts = json.loads(said.removeprefix("facts:"))
    assert facts["kernel"] == "paceline-mxfp4-a16w4"
    assert re.fullmatch("[0-9a-f]{12}", facts["kernel.hash"])
    assert facts["kernel.config"] == "default", "no table is shipped for a CPU"
    assert facts["kernel.node_class"].startswith("cpu-")
    assert "kernel.fallback" not in facts
    (reports,) = (tmp_path / "logs" / "kernels").iterdir()
    assert [report.suffix for report in reports.iterdir()] == [".json"]
