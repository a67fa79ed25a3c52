"""What a tile would take by arithmetic alone: to put tiles into an order, and to skip what cannot win. Never shown as a time.

`least_us` is a bound: bytes that must be read once at full bandwidth, operations on padded tiles at peak. `predicted_gemm_us`
adds guesses at what keeps a kernel from it, so it orders tiles but proves nothing.
"""

from __future__ import annotations

from kernels.accelerators import Accelerator
from kernels.compiling.resources import Resources
from kernels.moe.launch import Gemm
from kernels.roofline import active_experts
from kernels.shapes import BYTES_PER_WEIGHT, MoeShape
from kernels.tile import Tile
from kernels.tuner.space import gemm_size, programs, row_blocks

#: What is read again comes from a cache, which is so many times as fast as memory. Between 2 and 3.3 by data sheets.
CACHE_SPEEDUP = 3.0
#: Bytes in flight that full bandwidth takes are bandwidth x latency: 5.3 MB on MI300X.
MEMORY_LATENCY_US = 1.0


def least_us(shape: MoeShape, m: int, tile: Tile, which: Gemm, on: Accelerator) -> float:
    """No launch of this tile is faster, under uniform routing."""
    return max(
        _first_bytes(shape, m, which) / on.bandwidth_tb_s * 1e-6, _padded_flops(shape, m, tile, which) / on.bf16_tflops * 1e-6
    )


def predicted_gemm_us(
    shape: MoeShape, m: int, tile: Tile, which: Gemm, on: Accelerator, resources: Resources | None = None
) -> float:  # fmt: skip
    """With resources also by how many bytes the programs that fit at once keep in flight, and by the last round of programs. One
    stage loads nothing ahead, so that half of the time nothing is in flight."""
    size = gemm_size(shape, which)
    first = _first_bytes(shape, m, which)
    again = _pairs(shape, m) * size.k * 2 * (-(-size.n // tile.block_n) - 1)
    again += (row_blocks(shape, m, tile.block_m) - active_experts(shape, m)) * size.n * size.k * BYTES_PER_WEIGHT[shape.weights]
    memory_us = (first + again / CACHE_SPEEDUP) / on.bandwidth_tb_s * 1e-6
    operations_us = _padded_flops(shape, m, tile, which) / on.bf16_tflops * 1e-6
    if resources is None:
        return max(memory_us, operations_us)
    slots, count = on.compute_units * max(resources.groups, 1), programs(shape, m, tile, which)
    ahead = tile.block_n * tile.block_k * BYTES_PER_WEIGHT[shape.weights] * (tile.stages - 1 or 0.5)
    in_flight = min(slots, count) * ahead / (on.bandwidth_tb_s * 1e6 * MEMORY_LATENCY_US)
    rounds = max(1.0, count / slots)
    # The last programs run with half of the slots empty on average. Whole rounds would be false precision: routing is random.
    last_round = 1.0 + 0.5 * (1.0 - 1.0 / rounds) / rounds
    return max(memory_us / min(1.0, in_flight), operations_us) * last_round


def _pairs(shape: MoeShape, m: int) -> float:
    return m * shape.top_k * shape.experts / shape.routed_over


def _first_bytes(shape: MoeShape, m: int, which: Gemm) -> float:
    """Each weight, each row of activations and each output once."""
    size, pairs = gemm_size(shape, which), _pairs(shape, m)
    weights = active_experts(shape, m) * size.n * size.k * BYTES_PER_WEIGHT[shape.weights]
    rows = min(m, pairs) if which == "gate_up" else pairs
    return weights + rows * size.k * 2 + pairs * size.out_width * 2


def _padded_flops(shape: MoeShape, m: int, tile: Tile, which: Gemm) -> float:
    size = gemm_size(shape, which)
    rows = row_blocks(shape, m, tile.block_m) * tile.block_m
    return 2.0 * rows * (-(-size.n // tile.block_n) * tile.block_n) * (-(-size.k // tile.block_k) * tile.block_k)
