"""Device code of `align`: one program an expert, which finds where its blocks begin and writes them."""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def _local(topk_ids, expert_map, pair, pairs, all_experts, EXPERTS: tl.constexpr):
    """Numbers here of the experts of these pairs; EXPERTS for what is not here."""
    expert = tl.load(topk_ids + pair, mask=pair < pairs, other=-1)
    if expert_map is not None:
        expert = tl.load(expert_map + expert, mask=(expert >= 0) & (expert < all_experts), other=-1)
    return tl.where((expert >= 0) & (expert < EXPERTS), expert, EXPERTS)


@triton.jit(do_not_specialize=["pairs", "all_experts"])
def moe_align_pairs(
    topk_ids,  # [pairs]
    expert_map,  # [all_experts], or None
    sorted_ids,  # [blocks * BLOCK_M]
    block_experts,  # [blocks]
    padded,  # [1]
    pairs,
    all_experts,
    EXPERTS: tl.constexpr,  # here; as many programs
    BINS: tl.constexpr,  # a power of two above EXPERTS
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # Every program counts all pairs again: with an expert a program that is less than waiting for another launch.
    own = tl.program_id(0)
    bins = tl.arange(0, BINS)
    offset = tl.arange(0, CHUNK)
    counts = tl.zeros((BINS,), dtype=tl.int32)
    for start in range(0, pairs, CHUNK):
        counts += tl.histogram(_local(topk_ids, expert_map, start + offset, pairs, all_experts, EXPERTS), BINS)
    blocks = tl.where(bins < EXPERTS, (counts + BLOCK_M - 1) // BLOCK_M, 0)
    if own == 0:
        tl.store(padded, tl.sum(blocks) * BLOCK_M)
    first_block = tl.sum(tl.where(bins < own, blocks, 0))
    own_blocks = tl.sum(tl.where(bins == own, blocks, 0))
    own_pairs = tl.sum(tl.where(bins == own, counts, 0))

    places = sorted_ids + first_block * BLOCK_M
    seen = 0
    for start in range(0, pairs, CHUNK):
        mine = (_local(topk_ids, expert_map, start + offset, pairs, all_experts, EXPERTS) == own).to(tl.int32)
        tl.store(places + (seen + tl.cumsum(mine, 0) - 1), start + offset, mask=mine > 0)
        seen += tl.sum(mine)
    tail = own_pairs + tl.arange(0, BLOCK_M)
    tl.store(places + tail, tl.full((BLOCK_M,), 0, tl.int32) + pairs, mask=tail < own_blocks * BLOCK_M)
    for start in range(0, own_blocks, CHUNK):
        block = start + offset
        tl.store(block_experts + first_block + block, tl.full((CHUNK,), 0, tl.int32) + own, mask=block < own_blocks)
