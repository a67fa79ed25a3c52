"""Launches as data: what a GEMM is given, without triton or torch; and the hash that names the kernel."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import replace

import pytest

from kernels.errors import KernelInputError
from kernels.identity import KERNEL_SOURCE, kernel_hash
from kernels.moe.launch import Gemm, combine_arguments, gemm_arguments
from kernels.shapes import SILU, MoeShape, model
from kernels.tile import Tile

GPT_OSS = model("gpt-oss-120b")
R1 = model("DeepSeek-R1-MXFP4")


def arguments_of(function: str) -> set[str]:
    tree = ast.parse(KERNEL_SOURCE.read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return {each.arg for each in found.args.args}


@pytest.mark.parametrize("which", ["gate_up", "down"])
@pytest.mark.parametrize("shape", [GPT_OSS, R1], ids=["gpt-oss", "R1"])
def test_every_argument_of_the_kernel_is_given_once(shape: MoeShape, which: Gemm) -> None:
    launch = gemm_arguments(shape, Tile(), "bf16", which)
    assert launch.signature.keys() | launch.constants.keys() == arguments_of("moe_gemm")
    assert not launch.signature.keys() & launch.constants.keys()
    assert set(launch.divisible) == {name for name, kind in launch.signature.items() if kind.startswith("*")}


def test_both_layouts_differ_by_the_rows_of_a_pair_only() -> None:
    interleaved = gemm_arguments(GPT_OSS, Tile(), "bf16", "gate_up")
    concatenated = gemm_arguments(replace(GPT_OSS, gate_up="concatenated"), Tile(), "bf16", "gate_up")
    differing = {name for name, value in interleaved.constants.items() if concatenated.constants[name] != value}
    assert differing == {"PAIR_STRIDE", "HALF_STRIDE"}
    assert (concatenated.constants["PAIR_STRIDE"], concatenated.constants["HALF_STRIDE"]) == (1, 2880)


def test_down_gemm_is_the_same_whatever_the_activation() -> None:
    other = replace(GPT_OSS, gate_up="concatenated", activation=SILU, top_k=8)
    assert gemm_arguments(GPT_OSS, Tile(), "bf16", "down") == gemm_arguments(other, Tile(), "bf16", "down")


def test_sizes_are_those_of_the_gemm() -> None:
    gate_up, down = (gemm_arguments(R1, Tile(block_n=128), "fp16", which) for which in ("gate_up", "down"))
    assert (gate_up.constants["N"], gate_up.constants["K"], gate_up.column_blocks) == (4096, 7168, 32)
    assert (down.constants["N"], down.constants["K"], down.column_blocks) == (7168, 2048, 56)
    assert (gate_up.constants["TOKEN_PAIRS"], down.constants["TOKEN_PAIRS"]) == (8, 1)
    assert gate_up.signature["x"] == "*fp16"
    assert gate_up.constants["FORMAT"] == "fp16"


def test_weights_above_2_gib_are_not_said_to_be_within() -> None:
    assert "w" in gemm_arguments(GPT_OSS, Tile(), "bf16", "gate_up").within_2gb  # 1.06 GB
    assert "w" not in gemm_arguments(R1, Tile(), "bf16", "gate_up").within_2gb  # 3.76 GB


def test_weights_of_the_router_are_of_the_gate_up_gemm_and_only_on_demand() -> None:
    assert "router_weights" in gemm_arguments(R1, Tile(), "bf16", "gate_up", weights_on_input=True).signature
    assert "router_weights" not in gemm_arguments(R1, Tile(), "bf16", "gate_up").signature
    assert "router_weights" not in gemm_arguments(R1, Tile(), "bf16", "down", weights_on_input=True).signature


def test_combine_is_given_every_argument_once() -> None:
    for mapped in (False, True):
        launch = combine_arguments(GPT_OSS, "bf16", mapped=mapped)
        assert launch.signature.keys() | launch.constants.keys() == arguments_of("moe_combine")
        assert not launch.signature.keys() & launch.constants.keys()
        assert ("expert_map" in launch.signature) == mapped


def test_only_amd_is_given_its_own_options() -> None:
    launch = gemm_arguments(GPT_OSS, Tile(warps=8, stages=3, waves_per_eu=2), "bf16", "down")
    assert launch.options(amd=False) == {"num_warps": 8, "num_stages": 3, "enable_fp_fusion": True}
    assert launch.options(amd=True)["waves_per_eu"] == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": "fp8"}, "weights = 'fp8' of gpt-oss-120b: this kernel is for mxfp4"),
        ({"hidden": 2890}, "hidden = 2890 must be a multiple of 32"),
        ({"intermediate": 0}, "intermediate = 0 must be a multiple of 32"),
        ({"hidden": 2**16, "intermediate": 2**16}, "131072 x 65536 weights of one expert"),
    ],
)
def test_shapes_that_the_kernel_is_not_for_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(KernelInputError, match=said):
        gemm_arguments(replace(GPT_OSS, **change), Tile(), "bf16", "gate_up")  # type: ignore[arg-type]


def test_dtype_and_gemm_that_are_not_known_are_refused() -> None:
    with pytest.raises(KernelInputError, match="dtype = 'fp32' must be one of bf16, fp16"):
        gemm_arguments(GPT_OSS, Tile(), "fp32", "down")
    with pytest.raises(KernelInputError, match="gate_up = 'interleave' must be one of interleaved, concatenated"):
        gemm_arguments(replace(GPT_OSS, gate_up="interleave"), Tile(), "bf16", "gate_up")  # type: ignore[arg-type]
    with pytest.raises(KernelInputError, match="which = 'up' must be one of gate_up, down"):
        gemm_arguments(GPT_OSS, Tile(), "bf16", "up")


def test_kernel_hash_is_of_its_source() -> None:
    assert kernel_hash() == hashlib.sha256(KERNEL_SOURCE.read_bytes()).hexdigest()[:12]
