"""The kernels' plugin in a real vLLM: a tiny gpt-oss with MXFP4 experts, on the CPU, where triton interprets the kernel.

vLLM has no kernel of its own for these weights on a CPU without AMX, so what is compared with is float64, for each call of each
layer, and vLLM's bf16 kernel on a checkpoint of the same numbers, for the whole model. No GPU has run this.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environment import HERMETIC
from plugin_kit import entry_point

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason=f"triton, which interprets the kernel on a CPU, is not in {sys.prefix}"
    ),
]
HERE = Path(__file__).parent
RANKS = 2
RUNS_WITHIN_S = 300.0
CLASS = "cpu-2cu-8gb-cpu"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(MXFP4, bf16)"""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not here")
    from mxfp4_model import write_both

    return write_both(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory, models: tuple[Path, Path]) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Two ranks, each with half of the experts."""
    return run(tmp_path_factory.mktemp("on"), "generate", str(models[0]), str(RANKS), PACELINE_MOE="paceline")


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory, models: tuple[Path, Path]) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    return run(tmp_path_factory.mktemp("off"), "generate", str(models[1]), "1", VLLM_ENABLE_V1_MULTIPROCESSING="0")


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    store = tmp_path_factory.mktemp("store")
    (store / CLASS).mkdir()
    (store / CLASS / "E=4,N=128,device_name=cpu.json").write_text("{}")
    (store / "gfx942-304cu-192gb-AMD_Instinct_MI300X").mkdir()
    found, _, said = run(tmp_path_factory.mktemp("decided"), "decide", str(store), PACELINE_MOE="paceline")
    assert found["tables"] == str(store / CLASS)
    return found, said


def run(folder: Path, *arguments: str, **environment: str) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """What it printed, the reports of its processes by rank, and what it logged."""
    path = os.pathsep.join(map(str, (HERE.parents[1], HERE, entry_point(folder / "metadata"))))
    ours = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    reports = {"PACELINE_KERNELS_REPORT": str(folder / "reports")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PACELINE_", "VLLM_"))}
    done = subprocess.run(
        [sys.executable, str(HERE / "plugin_kit.py"), *arguments],
        env={**inherited, **HERMETIC, **ours, **reports, **environment},
        capture_output=True, text=True, timeout=RUNS_WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    written = [json.loads(each.read_text()) for each in (folder / "reports").glob("*.json")]
    printed = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
    return json.loads(printed), sorted(written, key=lambda each: int(each["rank"])), done.stdout + done.stderr


# --- a real engine -------------------------------------------------------------------------------------------


def test_every_layer_of_every_rank_computes_what_float64_does(on: tuple[dict[str, Any], list[dict[str, Any]], str]) -> None:
    of_ranks = on[0]["errors"]
    assert len(of_ranks) == RANKS
    for calls in of_ranks:
        assert len(calls) >= 4  # two layers: the prompt, and a token after it
        assert all(mapped for _, mapped, _ in calls)
        assert max(error for _, _, error in calls) < 1e-2
    print(f"largest relative error: {max(error for calls in of_ranks for _, _, error in calls):.2g}")


def test_the_model_says_what_it_says_in_bf16_on_vllms_own_kernel(
    on: tuple[dict[str, Any], list[dict[str, Any]], str], off: tuple[dict[str, Any], list[dict[str, Any]], str]
) -> None:
    apart = [abs(ours - theirs) for ours, theirs in zip(on[0]["logprobs"], off[0]["logprobs"], strict=True)]
    print(f"log-probabilities apart: median {statistics.median(apart):.4f}, largest {max(apart):.4f}")
    assert statistics.median(apart) < 0.02
    assert statistics.stdev(off[0]["logprobs"]) > 0.1  # they differ by more than that among themselves


def test_each_rank_reports_the_kernel_that_it_loaded(on: tuple[dict[str, Any], list[dict[str, Any]], str]) -> None:
    from kernels.identity import kernel_hash

    found, reports, said = on
    assert [each["rank"] for each in reports] == list(range(RANKS))
    assert found["pid"] not in [each["pid"] for each in reports]  # which loads no layers, and is silent
    for report in reports:
        assert (report["kernel"], report["kernel_hash"]) == ("paceline-mxfp4-a16w4", kernel_hash())
        assert (report["layers"], report["fallback"], report["target"]) == (2, "", "cpu")
        assert report["config"] == {"how": "default", "file": "", "hash": "", "keys": [], "of_floor": {}}
        assert all(report[name] for name in ("vllm", "torch", "triton", "node_class"))
    assert "the MoE kernel of Paceline runs" in said


def test_a_plugin_that_is_off_changes_and_reports_nothing(off: tuple[dict[str, Any], list[dict[str, Any]], str]) -> None:
    found, reports, said = off
    assert found["registered"] == []
    assert reports == []
    assert "Paceline" not in said


# --- what it decides -----------------------------------------------------------------------------------------


def test_the_entry_point_puts_our_configuration_in_the_place_of_vllms(decided: tuple[dict[str, Any], str]) -> None:
    found, _ = decided
    assert found["by_entry_point"] == ["PacelineGptOssMxfp4Config"]
    assert found["ours"] == {"config": "PacelineGptOssMxfp4Config", "method": "PacelineMxfp4MoEMethod", "report": None}
    assert found["off"] == []


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("lora", "LoRA (--enable-lora)"),
        ("other backend", "--moe-backend marlin asks for another kernel"),
        ("eplb", "--enable-eplb"),
        ("batched", "deepep_low_latency"),
        ("store away", "PACELINE_KERNEL_STORE = /nowhere: is not there"),
    ],
)
def test_what_is_not_covered_is_left_to_vllm_with_the_reason(decided: tuple[dict[str, Any], str], case: str, said: str) -> None:
    found, log = decided
    assert found[case]["method"] != "PacelineMxfp4MoEMethod"
    report = found[case]["report"]
    assert said in report["fallback"]
    assert (report["kernel"], report["config"]["how"], report["layers"]) == ("", "", 1)
    assert f"vLLM's own MoE kernel runs, not Paceline's: {report['fallback']}" in log


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("too new", "vLLM 0.99.0 is newer than what the plugin is known to fit (0.32, 0.33)"),
        ("other signature", "FusedMoEExpertsModular.apply has no parameter hidden_states"),
    ],
)
def test_a_vllm_that_the_plugin_does_not_fit_is_refused_loudly(decided: tuple[dict[str, Any], str], case: str, said: str) -> None:
    found, log = decided
    assert found[case]["config"] == "NotingGptOssMxfp4Config"
    assert found[case]["method"] != "PacelineMxfp4MoEMethod"
    assert said in found[case]["report"]["fallback"]
    assert (found[case]["report"]["kernel"], found[case]["report"]["target"]) == ("", "cpu")
    assert f"PACELINE_MOE=paceline: vLLM's own MoE kernel runs, not Paceline's: {found[case]['report']['fallback']}" in log
