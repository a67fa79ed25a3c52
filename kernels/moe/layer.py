"""The MXFP4 mixture-of-experts layer on this process's device: align, gate/up GEMM, down GEMM, combine.

Four launches, no synchronisation, and nothing on the host that depends on the routing: calls can be captured in a graph.
Weights are checked once, when they are loaded (`check_scales`); shapes and types at every call.
"""

from __future__ import annotations

from typing import Final

import torch
import triton

from kernels.errors import KernelInputError, NotHere
from kernels.moe.align import Alignment, moe_align
from kernels.moe.interpreted import round_to_nearest
from kernels.moe.kernel import moe_combine, moe_gemm
from kernels.moe.launch import Dtype, Launch, combine_arguments, gemm_arguments
from kernels.shapes import MXFP4_BLOCK, Activation, GateUp, MoeShape
from kernels.tile import LayerConfig

DTYPES: Final[dict[torch.dtype, Dtype]] = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_ALIGNMENT = 256  # bytes between the two parts of a workspace
_NAN_SCALE = 255
#: Largest scale code whose products with 6 (the largest code of a weight) the type can hold.
_LARGEST_SCALE = {torch.bfloat16: 127 + 125, torch.float16: 127 + 13}
_INTERPRETED: Final = not isinstance(moe_gemm, triton.runtime.JITFunction)
if _INTERPRETED:
    round_to_nearest()


def fused_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    s13: torch.Tensor,
    w2: torch.Tensor,
    s2: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    *,
    config: LayerConfig,
    activation: Activation,
    gate_up: GateUp,
    b13: torch.Tensor | None = None,
    b2: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    weights_on_input: bool = False,
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [T, H] bf16 or fp16 → [T, H]: for each token the sum of its experts' results, times the router's weights.

    w13 u8 [E, 2I, H/2] with s13 u8 [E, 2I, H/32], w2 u8 [E, H, I/2] with s2 u8 [E, H, I/32]; biases f32 [E, 2I] and [E, H];
    topk_ids i32 and topk_weights f32 [T, k]. expert_map i32 [all experts]: the number of an expert among the E here, -1 for those
    of other ranks, which contribute nothing, as do ids below 0. `weights_on_input`: the router's weights multiply x instead.
    `workspace` u8, of workspace_bytes(...), holds the activations between the GEMMs and is allocated where it is not given. All
    tensors are contiguous and start at multiples of 16 bytes. KernelInputError tells what does not fit.
    """
    shape, dtype = _checked(x, w13, s13, w2, s2, topk_ids, topk_weights, b13, b2, expert_map, activation, gate_up)
    tokens = x.shape[0]
    if out is None:
        out = torch.empty_like(x)
    _require("out", out, x.dtype, tuple(x.shape), x.device)
    if not tokens:
        return out
    inner, rows = _parts(workspace, shape, tokens, x)
    with torch.cuda.device_of(x):
        aligned = moe_align(topk_ids, config.gate_up.block_m, shape.experts, expert_map)
        gate_up_launch = gemm_arguments(shape, config.gate_up, dtype, "gate_up", weights_on_input=weights_on_input)
        run_gemm(gate_up_launch, x, w13, s13, b13, inner, aligned, topk_weights)
        run_gemm(gemm_arguments(shape, config.down, dtype, "down"), inner, w2, s2, b2, rows, aligned, topk_weights)
        run_combine(shape, rows, topk_ids, expert_map, None if weights_on_input else topk_weights, out)
    return out


def run_gemm(
    launch: Launch,
    x: torch.Tensor,
    w: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    aligned: Alignment,
    topk_weights: torch.Tensor,
) -> None:
    """One GEMM alone, unchecked: x of tokens → out of pairs (gate/up), or x of pairs → out of pairs (down)."""
    given = {
        "x": x, "w": w, "scales": scales, "bias": bias, "out": out, "sorted_ids": aligned.sorted_ids,
        "block_experts": aligned.block_experts, "padded": aligned.padded, "router_weights": topk_weights,
        "pairs": topk_weights.numel(),
    }  # fmt: skip
    arguments = {name: given[name] for name in launch.signature}
    grid = (aligned.block_experts.numel() * launch.column_blocks,)
    moe_gemm[grid](**arguments, **launch.constants, **launch.options(amd=torch.version.hip is not None))


def run_combine(
    shape: MoeShape,
    rows: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    topk_weights: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """rows of pairs [T * k, H] → out [T, H], unchecked."""
    launch = combine_arguments(shape, DTYPES[rows.dtype], mapped=expert_map is not None, weights_on_input=topk_weights is None)
    given = {
        "y": rows, "topk_ids": topk_ids, "expert_map": expert_map, "router_weights": topk_weights, "out": out,
        "experts": shape.experts if expert_map is None else expert_map.numel(),
    }  # fmt: skip
    arguments = {name: given[name] for name in launch.signature}
    grid = (topk_ids.shape[0], launch.column_blocks)
    moe_combine[grid](**arguments, **launch.constants, **launch.options(amd=torch.version.hip is not None))


def workspace_bytes(tokens: int, top_k: int, hidden: int, intermediate: int, itemsize: int = 2) -> int:
    """Of the activations between the GEMMs and of the pairs' results, which the combine reads."""
    return _rounded(tokens * top_k * intermediate * itemsize) + _rounded(tokens * top_k * hidden * itemsize)


def check_scales(name: str, scales: torch.Tensor, dtype: torch.dtype) -> None:
    """Once, for weights as they are loaded: the kernel multiplies by scales without looking for those that are no number.

    KernelInputError for code 255, E8M0's NaN, which would become an infinity that a clamped activation hides; and for scales
    that `dtype` cannot hold together with a weight. Code 0, which is 2^-127, counts as about zero in the kernel.
    """
    largest, what = _LARGEST_SCALE[dtype], f"too large for {str(dtype).removeprefix('torch.')}"
    if not scales.numel() or int(scales.max()) <= largest:
        return
    place = (scales.reshape(-1) > largest).nonzero()[0].item()
    expert, row = place // scales[0].numel(), place % scales[0].numel() // scales.shape[-1]
    code = int(scales.reshape(-1)[place])
    what = "that is NaN" if code == _NAN_SCALE else what
    raise KernelInputError(
        f"{name}: scale code {code} of expert {expert}, row {row}, {what}; must be 0..{largest} for {dtype}: "
        "the checkpoint is damaged, or these are not E8M0 scales" + (", or use bfloat16" if dtype == torch.float16 else "")
    )


def _parts(workspace: torch.Tensor | None, shape: MoeShape, tokens: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = tokens * shape.top_k
    needed = workspace_bytes(tokens, shape.top_k, shape.hidden, shape.intermediate, x.element_size())
    if workspace is None:
        workspace = torch.empty(needed, dtype=torch.uint8, device=x.device)
    elif workspace.dtype != torch.uint8 or workspace.device != x.device or workspace.numel() < needed:
        raise KernelInputError(
            f"workspace is {workspace.dtype} of {workspace.numel():,} bytes on {workspace.device}; must be uint8, at least "
            f"{needed:,} bytes (workspace_bytes) on {x.device} for {tokens} tokens"
        )
    else:
        _require("workspace", workspace, torch.uint8, tuple(workspace.shape), x.device)
        workspace = workspace.view(-1)
    inner_bytes, row_bytes = (pairs * width * x.element_size() for width in (shape.intermediate, shape.hidden))
    start = _rounded(inner_bytes)
    inner = workspace[:inner_bytes].view(x.dtype).view(pairs, shape.intermediate)
    return inner, workspace[start : start + row_bytes].view(x.dtype).view(pairs, shape.hidden)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _checked(
    x: torch.Tensor,
    w13: torch.Tensor,
    s13: torch.Tensor,
    w2: torch.Tensor,
    s2: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    b13: torch.Tensor | None,
    b2: torch.Tensor | None,
    expert_map: torch.Tensor | None,
    activation: Activation,
    gate_up: GateUp,
) -> tuple[MoeShape, Dtype]:
    if x.ndim != 2 or x.dtype not in DTYPES:
        raise KernelInputError(f"x is {x.dtype} of shape {tuple(x.shape)}; must be bfloat16 or float16 [tokens, hidden]")
    if x.device.type == "cpu" and not _INTERPRETED:
        raise NotHere(
            "x is on the CPU; there this kernel runs only in triton's interpreter (TRITON_INTERPRET=1): use a GPU's tensors"
        )
    tokens, hidden = x.shape
    if w2.ndim != 3 or topk_ids.ndim != 2:
        raise KernelInputError(
            f"w2 {tuple(w2.shape)} and topk_ids {tuple(topk_ids.shape)}: "
            "must be [experts, hidden, intermediate / 2] and [tokens, k]"
        )
    experts, intermediate, top_k = w2.shape[0], 2 * w2.shape[2], topk_ids.shape[1]
    if (b13 is None) != (b2 is None):
        raise KernelInputError(f"{'b13' if b13 is None else 'b2'} is missing: both GEMMs have biases, or neither has")
    for name, size in (("hidden", hidden), ("intermediate", intermediate)):
        if size < MXFP4_BLOCK or size % MXFP4_BLOCK:
            raise KernelInputError(f"{name} = {size} must be a multiple of {MXFP4_BLOCK}, the block of a scale")
    if not experts or not top_k:
        raise KernelInputError(f"experts = {experts} and k = {top_k}: both must be at least 1")
    right: list[tuple[str, torch.Tensor | None, torch.dtype, tuple[int, ...]]] = [
        ("x", x, x.dtype, (tokens, hidden)),
        ("w13", w13, torch.uint8, (experts, 2 * intermediate, hidden // 2)),
        ("s13", s13, torch.uint8, (experts, 2 * intermediate, hidden // MXFP4_BLOCK)),
        ("w2", w2, torch.uint8, (experts, hidden, intermediate // 2)),
        ("s2", s2, torch.uint8, (experts, hidden, intermediate // MXFP4_BLOCK)),
        ("topk_ids", topk_ids, torch.int32, (tokens, top_k)),
        ("topk_weights", topk_weights, torch.float32, (tokens, top_k)),
        ("b13", b13, torch.float32, (experts, 2 * intermediate)),
        ("b2", b2, torch.float32, (experts, hidden)),
        ("expert_map", expert_map, torch.int32, (-1 if expert_map is None else expert_map.numel(),)),
    ]
    for name, tensor, dtype, size_of in right:
        if tensor is not None:
            _require(name, tensor, dtype, size_of, x.device)
    shape = MoeShape(
        "", experts, top_k, hidden, intermediate, gate_up=gate_up, bias=b13 is not None, activation=activation,
    )  # fmt: skip
    return shape, DTYPES[x.dtype]


def _require(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise KernelInputError(f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}; must be {dtype} {shape}")
    if tensor.device != device:
        raise KernelInputError(f"{name} is on {tensor.device}; must be on {device}, where x is")
    if not tensor.is_contiguous():
        raise KernelInputError(f"{name} has strides {tensor.stride()}; must be contiguous (.contiguous(), once, as it is loaded)")
    if tensor.data_ptr() % 16:
        raise KernelInputError(f"{name} starts at an address that is no multiple of 16; give a tensor of its own (.clone())")
