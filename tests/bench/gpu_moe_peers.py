"""What tests/bench/gpu_moe.py compares our MoE layer with. A peer that is not there, or fails, raises, and the bench records why.

Peers get their routing for free: what they sort and count is made before the graph, while our layer's align is within its time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from kernels.shapes import BYTES_PER_WEIGHT, GPT_OSS_SWIGLU, MoeShape
from kernels.tuner.measure import SETS_AT_LEAST, Call, activate
from kernels.tuner.ours import Mxfp4Subject


class Peer(Protocol):
    name: str
    bytes_per_weight: float
    same_weights: bool  # as ours, so that its result can be judged too

    def layer(self, call: Call) -> Callable[[], torch.Tensor]:
        """Ready to be captured: no synchronisation, no shape that depends on data."""
        ...


class GroupedMm:
    """torch's grouped GEMM on bf16 weights, with activation and combine by plain torch operations."""

    name = "torch._grouped_mm bf16"
    bytes_per_weight = BYTES_PER_WEIGHT["bf16"]
    same_weights = False

    def __init__(self, shape: MoeShape, device: torch.device, sets: int = SETS_AT_LEAST) -> None:
        if not hasattr(torch, "_grouped_mm"):
            raise NotImplementedError(f"torch {torch.__version__} has no _grouped_mm")
        self._shape = shape

        def made(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(shape.experts, rows, columns, dtype=torch.bfloat16, device=device) * columns**-0.5

        pairs = [(made(2 * shape.intermediate, shape.hidden), made(shape.hidden, shape.intermediate)) for _ in range(sets)]
        self._sets = [(w13.transpose(1, 2), w2.transpose(1, 2)) for w13, w2 in pairs]

    def layer(self, call: Call) -> Callable[[], torch.Tensor]:
        w13, w2 = self._sets[call.weight_set % len(self._sets)]
        shape = self._shape
        flat = call.ids.reshape(-1)
        here = (flat < shape.experts).nonzero().reshape(-1)
        order = here[torch.argsort(flat[here], stable=True)]
        tokens = order // shape.top_k
        ends = torch.cumsum(torch.bincount(flat[order].long(), minlength=shape.experts), 0).to(torch.int32)
        gammas = call.weights.reshape(-1)[order].to(torch.bfloat16)[:, None]
        if not len(order):  # no token chose an expert of this rank: nothing to multiply, which not every version accepts
            return lambda: torch.zeros_like(call.x)

        def run() -> torch.Tensor:
            inner = activate(torch._grouped_mm(call.x[tokens], w13, offs=ends), shape)
            rows = torch._grouped_mm(inner, w2, offs=ends) * gammas
            return torch.zeros_like(call.x).index_add_(0, tokens, rows)

        return run


class TritonKernels:
    """The matmul_ogs kernels that vLLM runs gpt-oss with, through vLLM's own wrapper, on the same MXFP4 weights as ours."""

    name = "vllm triton_kernels"
    bytes_per_weight = BYTES_PER_WEIGHT["mxfp4"]
    same_weights = True

    def __init__(self, subject: Mxfp4Subject) -> None:
        shape = subject.shape
        if shape.activation != GPT_OSS_SWIGLU or shape.routed_over != shape.experts:
            raise NotImplementedError("vLLM's wrapper has gpt-oss's activation alone, and here no expert parallelism")
        from vllm.model_executor.layers.fused_moe.config import mxfp4_w4a16_moe_quant_config
        from vllm.model_executor.layers.fused_moe.experts import gpt_oss_triton_kernels_moe as theirs
        from vllm.model_executor.layers.quantization.utils.mxfp4_utils import _swizzle_mxfp4
        from vllm.utils.import_utils import has_triton_kernels

        if not has_triton_kernels():
            raise NotImplementedError("this vLLM has no triton_kernels")
        self._theirs, self._shape = theirs, shape
        self._sets: list[tuple[Any, Any, Any]] = []
        for weights in subject.weights:
            w13, flex13, s13 = _swizzle_mxfp4(weights.w13, weights.s13)
            w2, flex2, s2 = _swizzle_mxfp4(weights.w2, weights.s2)
            quant = mxfp4_w4a16_moe_quant_config(_precision(s13, flex13), _precision(s2, flex2), weights.b13, weights.b2)
            self._sets.append((w13, w2, quant))

    def layer(self, call: Call) -> Callable[[], torch.Tensor]:
        w13, w2, quant = self._sets[call.weight_set]
        routing, gather, scatter = self._theirs.make_routing_data(call.ids, call.weights, self._shape.experts)
        out = torch.empty_like(call.x)

        def run() -> torch.Tensor:
            found: torch.Tensor = self._theirs.triton_kernel_fused_experts(
                out, call.x, w13, w2, routing, gather, scatter, self._shape.top_k, quant_config=quant
            )
            return found

        return run


def _precision(scale: Any, flex: Any) -> Any:
    """The name of the scales' field differs between generations of triton_kernels."""
    try:
        from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig
    except ImportError:
        from triton_kernels.matmul import FlexCtx, PrecisionConfig
    named = {"weight_scale": scale}
    if "weight_scale" not in PrecisionConfig.__dataclass_fields__:
        named = {"b_mx_scale": scale, "b_microblock_size": 32}
    return PrecisionConfig(**named, flex_ctx=FlexCtx(rhs_data=flex))
