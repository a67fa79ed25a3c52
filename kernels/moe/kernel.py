"""Device code of the MXFP4 mixture-of-experts layer: the grouped GEMM (both of a layer's) and the combine.

Sizes and strides are constexprs: a fleet serves one model, and the compiler then knows the alignment of every row (a row of 2880
values has 90 bytes of scales, which nothing at run time would tell it), drops the bounds checks that cannot fail and finds that
offsets into one expert's weights fit 32 bits. What changes from step to step is read from memory, so that a captured graph holds.

The hash of this file names the kernel in every measured table (kernels/identity.py), so nothing else belongs here.
"""
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pairs"])
def moe_gemm(
    x,  # [rows, K] 16-bit
    w,  # [E, N, K/2] two E2M1 codes a byte, the low one first
    scales,  # [E, N, K/32] E8M0
    bias,  # [E, N] f32, or None
    out,  # [pairs, N] or, gated, [pairs, N/2], in x's type
    sorted_ids,  # pairs (token, choice) by expert, each expert's padded to BLOCK_M with ids >= pairs
    block_experts,  # expert of each block of BLOCK_M ids; < 0: none here
    padded,  # [1] how many of sorted_ids count
    router_weights,  # [pairs] f32 that multiply x, or None
    pairs,  # tokens * top-k
    N: tl.constexpr,
    K: tl.constexpr,
    TOKEN_PAIRS: tl.constexpr,  # pairs to a row of x: top-k where x has tokens, 1 where it has pairs
    GATED: tl.constexpr,  # rows of w are gate and up, and out is their activation
    PAIR_STRIDE: tl.constexpr,  # row of w for pair p and half h (0 gate, 1 up) = p * PAIR_STRIDE + h * HALF_STRIDE
    HALF_STRIDE: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,  # 0: none
    PLUS_ONE: tl.constexpr,
    FORMAT: tl.constexpr,  # "bf16" or "fp16", as x
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # rows of w
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    tl.static_assert(N * (K // 2) < 2**31, "offsets within one expert's weights are 32 bits wide")
    column_blocks: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    out_width: tl.constexpr = N // 2 if GATED else N
    row_blocks = tl.load(padded) // BLOCK_M
    program = tl.program_id(0)
    # The grid is sized for the worst routing; programs in use come first, whatever the grid.
    if program >= row_blocks * column_blocks:
        return
    # Groups of GROUP_M row blocks go through the columns together: blocks of one expert then share its weights in the cache.
    group = program // (GROUP_M * column_blocks)
    group_rows = tl.minimum(row_blocks - group * GROUP_M, GROUP_M)
    within = program % (GROUP_M * column_blocks)
    row_block = group * GROUP_M + within % group_rows
    column_block = within // group_rows

    expert = tl.load(block_experts + row_block).to(tl.int64)
    if expert < 0:
        return
    ids = tl.load(sorted_ids + row_block * BLOCK_M + tl.arange(0, BLOCK_M))
    present = ids < pairs
    x_row = x + (ids // TOKEN_PAIRS).to(tl.int64)[:, None] * K

    # A tile beyond the last row reads that row again, which costs nothing in the loop; what comes of it is not stored.
    column = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    w_row = tl.minimum(column, N - 1)
    # Gate and up of a pair are neighbours in the tile in both layouts, so one product has both. Two products of half the rows
    # each were tried: at 16x64x256 they take 254 registers and lose wgmma on sm_90 (one: 165), 146 on gfx942 (one: 118).
    if GATED:
        w_row = w_row // 2 * PAIR_STRIDE + w_row % 2 * HALF_STRIDE
    w_tile = w + expert * (N * (K // 2)) + w_row[:, None] * (K // 2)
    scale_tile = scales + expert * (N * (K // 32)) + w_row[:, None] * (K // 32)

    k_x = tl.arange(0, BLOCK_K)[None, :]
    k_w = tl.arange(0, BLOCK_K // 2)[None, :]
    k_scale = tl.arange(0, BLOCK_K // 32)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # Masks in every step of the loop, not in a last step of its own, which takes 174 registers on gfx942 instead of 118.
    for k in range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            x_block = tl.load(x_row + (k + k_x), mask=present[:, None], other=0.0)
            w_block = tl.load(w_tile + (k // 2 + k_w))
            scale_block = tl.load(scale_tile + (k // 32 + k_scale))
        else:
            x_block = tl.load(x_row + (k + k_x), mask=present[:, None] & (k + k_x < K), other=0.0)
            w_block = tl.load(w_tile + (k // 2 + k_w), mask=k // 2 + k_w < K // 2, other=0)
            scale_block = tl.load(scale_tile + (k // 32 + k_scale), mask=k // 32 + k_scale < K // 32, other=0)
        acc = tl.dot_scaled(x_block, None, FORMAT, tl.trans(w_block), scale_block, "e2m1", acc=acc, fast_math=True)

    if router_weights is not None:
        acc *= tl.load(router_weights + ids, mask=present, other=0.0)[:, None]
    if bias is not None:
        acc += tl.load(bias + expert * N + w_row)[None, :]
    if GATED:
        gate, up = tl.split(tl.reshape(acc, (BLOCK_M, BLOCK_N // 2, 2)))
        if LIMIT > 0:  # comparisons that keep a NaN, which a minimum may drop
            gate = tl.where(gate > LIMIT, LIMIT, gate)
            up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up))
        if PLUS_ONE:
            up += 1.0
        # e^-z as a power of two that stays finite: at 2^126 the sigmoid is zero anyway.
        power = tl.minimum(gate * (-ALPHA * 1.4426950408889634), 126.0)
        result = gate * up / (1.0 + tl.exp2(power))
        out_column = column_block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    else:
        result = acc
        out_column = column
    target = out + ids.to(tl.int64)[:, None] * out_width + out_column[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=present[:, None] & (out_column < out_width)[None, :])


@triton.jit(do_not_specialize=["experts"])
def moe_combine(
    y,  # [tokens * TOP_K, H] 16-bit
    topk_ids,  # [tokens, TOP_K]
    expert_map,  # [experts] number of an expert here, < 0: not here; or None
    router_weights,  # [tokens, TOP_K] f32, or None
    out,  # [tokens, H]
    experts,
    H: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        pair = token * TOP_K + choice
        expert = tl.load(topk_ids + pair)
        here = (expert >= 0) & (expert < experts)
        if expert_map is not None:
            here = tl.load(expert_map + expert, mask=here, other=-1) >= 0
        # The load is masked, not the product: nothing was written for an absent expert, and zero times a NaN is a NaN.
        part = tl.load(y + pair * H + column, mask=column < tl.where(here, H, 0), other=0.0).to(tl.float32)
        if router_weights is not None:
            part *= tl.load(router_weights + pair, mask=here, other=0.0)
        total += part
    tl.store(out + token * H + column, total.to(out.dtype.element_ty), mask=column < H)
