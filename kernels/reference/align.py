"""Alignment of routed pairs to blocks: each block of a grouped GEMM has rows of one expert only.

A pair is one of the M * k choices (token, slot), numbered token * k + slot. The semantics are those of vLLM's
moe_align_block_size, with everything that it leaves open settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.errors import KernelInputError

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Aligned:
    sorted_ids: I32  # [blocks * block_m]: pairs, and n_valid = M * k where a place is empty
    block_experts: I32  # [blocks]: this rank's number of the expert; -1 where a block is empty
    padded: int  # how many places are in use, a multiple of block_m


def most_blocks(pairs: int, block_m: int, experts: int) -> int:
    """Blocks that `pairs` can need, however they are routed: a bound for buffers and grids that must not depend on routing."""
    return (pairs + min(pairs, experts) * (block_m - 1)) // block_m


def align(topk_ids: npt.NDArray[Any], block_m: int, experts: int, expert_map: npt.NDArray[Any] | None = None) -> Aligned:
    """topk_ids [M, k] of `experts` experts → Aligned.

    expert_map [experts], for expert parallelism: an expert's number on this rank, -1 if it is not here. Pairs of experts that
    are not here, and those whose id is -1, are left out altogether: blocks of theirs would only be skipped, and most pairs are
    such at 8 ranks. So nothing writes their rows, and whoever combines must not read them.

    What holds afterwards:
     - every pair whose expert is here stands in sorted_ids exactly once, every other pair nowhere;
     - all pairs of block b, sorted_ids[b * block_m : (b + 1) * block_m], have the expert block_experts[b];
     - an expert with n pairs has ceil(n / block_m) blocks, side by side; in them its pairs come first, in ascending order,
       then n_valid (a kernel on a device may order the pairs of one expert otherwise);
     - blocks are in ascending order of this rank's numbers; an expert without pairs has none;
     - padded = block_m times the count of those blocks; from there on sorted_ids is n_valid and block_experts is -1;
     - the lengths depend on M, k, block_m and the number of experts here only: most_blocks(...).
    """
    ids = np.asarray(topk_ids)
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise KernelInputError(f"topk_ids is {ids.dtype} of shape {ids.shape}; must be integers [M, k]")
    if block_m < 1:
        raise KernelInputError(f"block_m = {block_m} must be at least 1")
    here, local = local_experts(ids, experts, expert_map)
    owners = here.ravel()
    pairs = np.flatnonzero(owners >= 0)
    pairs = pairs[np.argsort(owners[pairs], kind="stable")]
    counts = np.bincount(owners[pairs], minlength=local)
    blocks_of = -(-counts // block_m)
    first_place = np.cumsum(blocks_of * block_m) - blocks_of * block_m
    first_pair = np.cumsum(counts) - counts
    places = np.arange(pairs.size) + np.repeat(first_place - first_pair, counts)
    blocks = most_blocks(ids.size, block_m, local)
    sorted_ids = np.full(blocks * block_m, ids.size, np.int32)
    sorted_ids[places] = pairs
    block_experts = np.full(blocks, -1, np.int32)
    used = int(blocks_of.sum())
    block_experts[:used] = np.repeat(np.arange(local), blocks_of)
    return Aligned(sorted_ids, block_experts, used * block_m)


def local_experts(topk_ids: npt.NDArray[Any], experts: int, expert_map: npt.NDArray[Any] | None) -> tuple[I32, int]:
    """Ids of all experts → this rank's numbers, -1 for what is not here; and how many experts are here."""
    if topk_ids.size and (topk_ids.min() < -1 or topk_ids.max() >= experts):
        wrong = int(topk_ids.min() if topk_ids.min() < -1 else topk_ids.max())
        raise KernelInputError(f"topk_ids has expert {wrong}; must be in 0..{experts - 1}, or -1 for none")
    if expert_map is None:
        return topk_ids.astype(np.int32), experts
    if expert_map.shape != (experts,):
        raise KernelInputError(f"expert_map {expert_map.shape}: must be ({experts},), a number for each expert")
    kept = expert_map[expert_map >= 0]
    if sorted(kept) != list(range(kept.size)):
        raise KernelInputError("expert_map: the experts here must be numbered 0, 1, 2, ... without a gap or a repetition")
    return np.where(topk_ids < 0, -1, expert_map[topk_ids]).astype(np.int32), int(kept.size)
