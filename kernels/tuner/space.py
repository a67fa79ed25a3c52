"""Which tiles there are to try, for one of a layer's two GEMMs, at M tokens, on one target. Neither compiles nor times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kernels.moe.launch import Gemm
from kernels.shapes import MoeShape
from kernels.tile import Tile

GEMMS: tuple[Gemm, Gemm] = ("gate_up", "down")

_BLOCK_M = (16, 32, 64, 128)
_BLOCK_K = (64, 128, 256, 512)
_WARPS = {"gfx942": (2, 4, 8), "gfx950": (2, 4, 8), "sm_90": (4, 8)}
#: 1 leaves loading to the hardware's overlap of programs. NVIDIA copies asynchronously and may be further ahead.
_STAGES = {"gfx942": (1, 2, 3), "gfx950": (1, 2, 3), "sm_90": (2, 3, 4, 5)}
#: waves_per_eu, nonkdim, kpack: one step away from the default each, since all their combinations would be most of the space.
_EXTRAS = {
    "gfx942": ((0, 16, 1), (2, 16, 1), (0, 16, 2), (0, 32, 1)),
    "gfx950": ((0, 16, 1), (2, 16, 1), (0, 32, 1)),
    "sm_90": ((0, 16, 1),),
}


@dataclass(frozen=True, slots=True)
class GemmSize:
    """[rows of pairs, k] x [experts, n, k]: n counts rows of weights."""

    n: int
    k: int
    out_width: int


def gemm_size(shape: MoeShape, which: Gemm) -> GemmSize:
    if which == "gate_up":
        return GemmSize(2 * shape.intermediate, shape.hidden, shape.intermediate)
    return GemmSize(shape.hidden, shape.intermediate, shape.hidden)


@lru_cache(maxsize=4096)
def blocks_per_expert(m: int, share: float, block_m: int) -> float:
    """Expected blocks of block_m rows of one expert, when each of M tokens chooses it with probability `share`.

    Exact: the count of its tokens is binomial. An expert that nobody chose has no block.
    """
    if share >= 1.0:
        return float(-(-m // block_m))
    log_yes, log_no = math.log(share), math.log1p(-share)
    total = 0.0
    for n in range(1, m + 1):
        log_p = math.lgamma(m + 1) - math.lgamma(n + 1) - math.lgamma(m - n + 1) + n * log_yes + (m - n) * log_no
        if log_p > -60.0:
            total += math.exp(log_p) * -(-n // block_m)
    return total


def row_blocks(shape: MoeShape, m: int, block_m: int) -> float:
    """Expected blocks of rows of all experts here, under uniform routing."""
    return shape.experts * blocks_per_expert(m, shape.top_k / shape.routed_over, block_m)


def programs(shape: MoeShape, m: int, tile: Tile, which: Gemm) -> float:
    return row_blocks(shape, m, tile.block_m) * -(-gemm_size(shape, which).n // tile.block_n)


def tokens_per_expert(shape: MoeShape, m: int) -> float:
    """Of an expert that has any, under uniform routing."""
    share = shape.top_k / shape.routed_over
    return m * share / (1.0 - (1.0 - share) ** m)


def block_ms(shape: MoeShape, m: int) -> list[int]:
    """Around the tokens of an expert: half as many rows read its weights twice, more than twice as many are mostly padding."""
    tokens = tokens_per_expert(shape, m)
    nearest = 2.0 ** round(math.log2(tokens))
    return [each for each in _BLOCK_M if nearest / 2 <= each <= nearest * 2] or [
        _BLOCK_M[0] if nearest < _BLOCK_M[0] else _BLOCK_M[-1]
    ]


def tiles(shape: MoeShape, m: int, target: str, which: Gemm) -> list[Tile]:
    """In one fixed order, without doubles. A block of K need not divide K (the kernel masks the tail), but is no larger than the
    next power of two."""
    return list(dict.fromkeys(_tiles(shape, m, target, which)))


def _tiles(shape: MoeShape, m: int, target: str, which: Gemm) -> Iterator[Tile]:
    size = gemm_size(shape, which)
    whole_k = 2 ** math.ceil(math.log2(size.k))
    for block_m in block_ms(shape, m):
        shared = blocks_per_expert(m, shape.top_k / shape.routed_over, block_m) > 1.0
        for block_n in _block_ns(size.n, target):
            for block_k in (each for each in _BLOCK_K if each <= max(whole_k, _BLOCK_K[0])):
                for warps in _WARPS[target]:
                    for stages in _STAGES[target]:
                        for waves_per_eu, nonkdim, kpack in _EXTRAS[target]:
                            if nonkdim > block_m:
                                continue
                            for group_m in (1, 8) if shared else (1,):
                                yield Tile(
                                    block_m, block_n, block_k, group_m, warps, stages, waves_per_eu, nonkdim, kpack
                                )  # fmt: skip


def _block_ns(n: int, target: str) -> list[int]:
    smallest = 64 if target == "sm_90" else 32  # wgmma takes 64 rows of weights
    return [each for each in (32, 64, 128, 256) if smallest <= each <= max(smallest, 2 ** math.ceil(math.log2(n)))]
