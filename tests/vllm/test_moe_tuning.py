"""What the tuner of vLLM's own fused_moe uses of vLLM, on the real one: what moved or went fails here.

The kernel itself needs a GPU, which is not here: it is not run, and nothing is timed.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from kernels.accelerators import accelerator
from kernels.shapes import GPT_OSS_SWIGLU, MoeShape, Weights, model
from kernels.store import table_name
from kernels.tuner import vllm_moe

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def vllm() -> dict[str, Any]:
    return vllm_moe.symbols()


def shape_of(weights: Weights) -> MoeShape:
    return MoeShape("tiny", 4, 2, 256, 128, weights=weights)


def test_fused_experts_takes_what_it_is_given(vllm: dict[str, Any]) -> None:
    taken = inspect.signature(vllm["fused_experts"]).parameters
    assert list(taken)[:5] == ["hidden_states", "w1", "w2", "topk_weights", "topk_ids"]
    assert {"activation", "global_num_experts", "expert_map", "quant_config"} <= set(taken)


def test_a_configuration_that_is_set_is_the_one_that_its_kernel_gets(vllm: dict[str, Any]) -> None:
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config

    config = vllm_moe.space(model("gpt-oss-120b"), 16, accelerator("H200"))[0]
    with vllm["override_config"](config):
        assert try_get_optimal_moe_config((4, 256, 256), (4, 256, 128), 2, None, 16) == config


@pytest.mark.parametrize(("weights", "dtype"), [("bf16", None), ("fp8", "fp8_w8a8"), ("int4", "int4_w4a16")])
def test_the_table_is_looked_for_under_the_name_that_is_written(vllm: dict[str, Any], weights: str, dtype: str | None) -> None:
    from vllm.utils.platform_utils import get_device_name_as_file_name

    block = vllm_moe.block_shape(weights)
    theirs = vllm["get_config_file_name"](256, 256, dtype, None if block is None else list(block))
    shape = model("DeepSeek-V4-Flash").split(tp=8)
    device = get_device_name_as_file_name()
    if not device:  # a CPU has no name, and no table
        device, theirs = "NVIDIA_H200", theirs.replace("device_name=", "device_name=NVIDIA_H200")
    assert table_name(shape, device, vllm_moe.TABLE_DTYPE[weights], block) == theirs


@pytest.mark.parametrize("weights", ["bf16", "fp8", "int4"])
def test_weights_are_what_vllm_takes_for_them(vllm: dict[str, Any], weights: Weights) -> None:
    import torch

    shape = shape_of(weights)
    made = vllm_moe._Weights(shape, "bf16", vllm, torch.Generator().manual_seed(1))
    quant = made.quant
    assert (quant.use_fp8_w8a8, quant.use_int4_w4a16) == (weights == "fp8", weights == "int4")
    assert quant.block_shape == {"bf16": None, "fp8": [128, 128], "int4": [0, 128]}[weights]
    assert made.w13.shape == (4, 256, 128 if weights == "int4" else 256)
    subject = vllm_moe.VllmSubject(shape, "bf16", torch.device("cpu"), vllm, [made])
    gate_up, down, *_ = subject.matrices(0, 3)
    assert (gate_up.shape, down.shape) == ((256, 256), (256, 128))
    assert 0.5 < float(gate_up.std()) * 16 < 2.0
    assert float(down.std()) > 0.0


def test_both_activations_are_there_and_others_are_refused(vllm: dict[str, Any]) -> None:
    from kernels.errors import KernelInputError
    from kernels.shapes import Activation

    assert vllm["MoEActivation"].SWIGLUOAI.value == "swigluoai"
    assert vllm["MoEActivation"].SILU.value == "silu"
    vllm_moe.refuse(model("gpt-oss-120b"))
    with pytest.raises(KernelInputError, match="has no activation as this model's"):
        vllm_moe.refuse(MoeShape("odd", 4, 2, 256, 128, weights="bf16", activation=Activation(alpha=2.0)))
    with pytest.raises(KernelInputError, match="has no activation as this model's"):
        vllm_moe.refuse(MoeShape("odd", 4, 2, 256, 128, weights="bf16", activation=GPT_OSS_SWIGLU))
