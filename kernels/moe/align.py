"""Which rows each program of a grouped GEMM works on: pairs sorted by expert, each expert's padded to whole blocks.

One launch, so that it costs a decode step little, and nothing in it depends on the routing but what it writes: it can be captured
in a graph. `kernels.reference.align` says what holds of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.errors import KernelInputError
from kernels.moe.align_kernel import moe_align_pairs
from kernels.reference.align import most_blocks

_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Alignment:
    """As kernels.reference.align.Aligned, but for what lies beyond `padded`: that holds anything, and nothing reads it."""

    sorted_ids: torch.Tensor  # [blocks * block_m] i32
    block_experts: torch.Tensor  # [blocks] i32
    padded: torch.Tensor  # [1] i32


def moe_align(topk_ids: torch.Tensor, block_m: int, experts: int, expert_map: torch.Tensor | None = None) -> Alignment:
    """topk_ids [T, k] i32 → Alignment. `experts` are those here; `expert_map` [all experts] i32 has their numbers here, -1 for
    others. Ids that no expert has count as others, too."""
    if topk_ids.dtype != torch.int32 or not topk_ids.is_contiguous():
        raise KernelInputError(f"topk_ids is {topk_ids.dtype}, strides {topk_ids.stride()}; must be int32 and contiguous")
    pairs = topk_ids.numel()
    blocks = most_blocks(pairs, block_m, experts)
    # One allocation whose parts all start at multiples of 16 bytes, which is what their readers are compiled for.
    one = torch.empty(4 + blocks * (block_m + 1), dtype=torch.int32, device=topk_ids.device)
    padded, sorted_ids, block_experts = one[:1], one[4 : 4 + blocks * block_m], one[4 + blocks * block_m :]
    if not pairs:
        return Alignment(sorted_ids, block_experts, padded.zero_())
    moe_align_pairs[(experts,)](
        topk_ids,
        expert_map,
        sorted_ids,
        block_experts,
        padded,
        pairs,
        experts if expert_map is None else expert_map.numel(),
        EXPERTS=experts,
        BINS=triton.next_power_of_2(experts + 1),
        BLOCK_M=block_m,
        CHUNK=_CHUNK,
        num_warps=4,
    )
    return Alignment(sorted_ids, block_experts, padded)
