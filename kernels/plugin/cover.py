"""Which of gpt-oss's layers the kernel covers, by how vLLM is asked to run them. What it does not cover stays with vLLM."""

from __future__ import annotations

from typing import Any

import torch
from vllm import envs
from vllm.model_executor.layers.fused_moe.activation import MoEActivation

from kernels.shapes import MXFP4_BLOCK


def uncovered(moe: Any) -> str:
    """Why a layer of this FusedMoEConfig is not ours; empty: it is."""
    parallel = moe.moe_parallel_config
    if moe.is_lora_enabled:
        return "LoRA (--enable-lora) is on, which the kernel does not do"
    if parallel.enable_eplb:
        return "--enable-eplb is on, which the kernel does not do"
    if not takes_tokens_of(parallel):
        return f"all-to-all backend {parallel.all2all_backend} hands over tokens otherwise than the kernel takes them"
    if moe.moe_backend != "auto":
        return f"--moe-backend {moe.moe_backend} asks for another kernel; leave it out"
    if moe.activation != MoEActivation.SWIGLUOAI:
        return f"activation {moe.activation.value} is not gpt-oss's"
    if moe.in_dtype not in (torch.bfloat16, torch.float16):
        return f"activations are {moe.in_dtype}; must be bfloat16 or float16"
    if moe.hidden_dim % MXFP4_BLOCK:
        return f"hidden size {moe.hidden_dim} is no multiple of {MXFP4_BLOCK}, the block of a scale"
    if envs.VLLM_BATCH_INVARIANT:
        return "VLLM_BATCH_INVARIANT is set, and tiles are chosen by the size of the batch"
    return ""


def takes_tokens_of(parallel: Any) -> bool:
    """Tensor and expert parallelism, and of the all-to-all kernels those that hand over tokens in rows, unquantised."""
    if parallel.use_batched_activation_format or parallel.all2all_backend == "passthrough":
        return False
    return bool(not parallel.use_all2all_kernels or parallel.use_ag_rs_all2all_kernels or parallel.use_deepep_ht_kernels)
