"""Leaving out tiles before any is timed: first by rules that need no compiler, then by what the compiler says of the rest.

Each tile that is left out has its reason in words, the kind before the colon; kinds are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from kernels.accelerators import Accelerator
from kernels.compiling.job import Job, gemm_job
from kernels.compiling.pool import Compiled
from kernels.compiling.resources import Resources
from kernels.moe.launch import Dtype, Gemm
from kernels.shapes import MoeShape
from kernels.tile import Tile
from kernels.tuner.predict import predicted_gemm_us
from kernels.tuner.space import blocks_per_expert, gemm_size, programs, tiles, tokens_per_expert

#: Pool.compile, or what does the same.
Compile = Callable[[list[Job]], Iterable[Compiled]]
Rule = Callable[["_Case", Tile], str | None]


@dataclass(frozen=True, slots=True)
class Pruned:
    kept: list[Tile]
    reasons: dict[Tile, str] = field(default_factory=dict)
    resources: dict[Tile, Resources] = field(default_factory=dict)  # of kept tiles, once they were compiled

    @property
    def rejected(self) -> Counter[str]:
        """By kind of reason."""
        return Counter(reason.partition(":")[0] for reason in self.reasons.values())

    def __str__(self) -> str:
        counts = ", ".join(f"{kind} {count}" for kind, count in self.rejected.most_common())
        return f"{len(self.kept)} of {len(self.kept) + len(self.reasons)} tiles kept" + (
            f" (left out: {counts})" if counts else ""
        )


def candidates(shape: MoeShape, m: int, which: Gemm, on: Accelerator, dtype: Dtype, compile_jobs: Compile) -> Pruned:
    """The whole way, the most promising by arithmetic first."""
    return by_compiler(by_rules(tiles(shape, m, on.target, which), shape, m, which, on), shape, m, which, on, dtype, compile_jobs)


def by_rules(of: Iterable[Tile], shape: MoeShape, m: int, which: Gemm, on: Accelerator) -> Pruned:
    """Without a compiler. Ordered by predicted_gemm_us."""
    every = list(of)
    most = max((programs(shape, m, tile, which) for tile in every), default=0.0)
    case = _Case(shape, m, which, on, 0.5 * min(on.compute_units, most))
    reasons = {tile: reason for tile in every if (reason := _first_reason(case, tile)) is not None}
    kept = [tile for tile in every if tile not in reasons]
    return Pruned(sorted(kept, key=lambda tile: (predicted_gemm_us(shape, m, tile, which, on), tile)), reasons)


def by_compiler(
    pruned: Pruned, shape: MoeShape, m: int, which: Gemm, on: Accelerator, dtype: Dtype, compile_jobs: Compile
) -> Pruned:
    """The order of programs (group_m) is left out of what is compiled: it takes no resources to speak of."""
    plain = {tile: gemm_job(on.target, shape, replace(tile, group_m=1), dtype, which) for tile in pruned.kept}
    results = {result.job: result for result in compile_jobs(list(dict.fromkeys(plain.values())))}
    reasons, resources = dict(pruned.reasons), {}
    for tile, job in plain.items():
        result = results[job]
        if found := result.problems:
            reasons[tile] = "; ".join(found)
        elif result.resources is not None:
            resources[tile] = result.resources
    order = sorted(resources, key=lambda tile: (predicted_gemm_us(shape, m, tile, which, on, resources[tile]), tile))
    return Pruned(order, reasons, resources)


@dataclass(frozen=True, slots=True)
class _Case:
    shape: MoeShape
    m: int
    which: Gemm
    on: Accelerator
    least_programs: float


def _first_reason(case: _Case, tile: Tile) -> str | None:
    return next((reason for rule in _RULES if (reason := rule(case, tile)) is not None), None)


def _shared_memory(case: _Case, tile: Tile) -> str | None:
    """A lower bound: the stages ahead hold at least the activations and the packed weights of a step."""
    step = tile.block_m * tile.block_k * 2 + tile.block_n * tile.block_k // 2
    needed, limit = (tile.stages - 1) * step, case.on.shared_kib * 1024
    return (
        None if needed <= limit else f"shared memory: at least {needed:,} bytes, {case.on.target} has {limit:,} for a workgroup"
    )


def _registers(case: _Case, tile: Tile) -> str | None:
    """A thread's share of the accumulator and of a step's weights, converted. With nearly two thirds of its registers in these
    few were met that did not spill."""
    threads = (64 if case.on.is_amd else 32) * tile.warps
    needed = tile.block_m * tile.block_n // threads + tile.block_n * tile.block_k // (2 * threads)
    limit = min(512, 2048 // tile.warps, 512 // max(tile.waves_per_eu, 1)) if case.on.is_amd else 255
    return None if needed <= 0.65 * limit else f"registers: at least {needed} of a thread's {limit} for operands"


def _matrix_tiles(case: _Case, tile: Tile) -> str | None:
    """More warps than matrix tiles compute the same twice."""
    if case.on.is_amd:
        there = (tile.block_m // tile.nonkdim) * (tile.block_n // tile.nonkdim) if tile.nonkdim else tile.warps
    else:  # four warps share an instruction: 64 rows of weights by (as compiled) 16 rows of activations or more
        there = 4 * (tile.block_n // 64) * (tile.block_m // 16)
    return None if tile.warps <= there else f"warps: {tile.warps} for the {there} that its matrix instructions occupy"


def _stages(case: _Case, tile: Tile) -> str | None:
    steps = -(-gemm_size(case.shape, case.which).k // tile.block_k)
    return None if tile.stages <= max(steps, 2) else f"stages: {tile.stages} for {steps} steps along K"


def _grid(case: _Case, tile: Tile) -> str | None:
    count = programs(case.shape, case.m, tile, case.which)
    if count >= case.least_programs:
        return None
    return f"grid: {count:.0f} programs for {case.on.compute_units} compute units"


def _tail(case: _Case, tile: Tile) -> str | None:
    size = gemm_size(case.shape, case.which)
    for name, whole, block in (("N", size.n, tile.block_n), ("K", size.k, tile.block_k)):
        padded = -(-whole // block) * block
        if padded > 1.34 * whole and block > 64:
            return f"tail: {name} = {whole} is padded to {padded}"
    return None


def _rows(case: _Case, tile: Tile) -> str | None:
    """A smaller block that takes (nearly) as many blocks reads weights no oftener and computes half as much."""
    if tile.block_m == 16:
        return None
    share = case.shape.top_k / case.shape.routed_over
    here, half = (blocks_per_expert(case.m, share, each) for each in (tile.block_m, tile.block_m // 2))
    if half > 1.02 * here:
        return None
    return f"rows: {tile.block_m} a block for {tokens_per_expert(case.shape, case.m):.1f} tokens of an expert"


_RULES: tuple[Rule, ...] = (_shared_memory, _registers, _matrix_tiles, _stages, _grid, _tail, _rows)
