"""The offline part for one M: the tiles of both GEMMs that are worth a measurement, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

from kernels.accelerators import Accelerator
from kernels.compiling.pool import Pool
from kernels.moe.launch import Dtype
from kernels.shapes import MoeShape
from kernels.tile import Tile
from kernels.tuner.prune import Pruned
from kernels.tuner.prune import candidates as pruned_candidates
from kernels.tuner.space import GEMMS

Told = Callable[[str, int, int], None]  # which GEMM, how many of its kernels are compiled, of how many


@dataclass(frozen=True, slots=True)
class Candidates:
    """Of both GEMMs, the most promising first."""

    gate_up: tuple[Tile, ...]
    down: tuple[Tile, ...]
    enumerated: int
    rejected: Counter[str]  # by kind of reason; "arithmetic" are those beyond the number asked for

    def json(self) -> dict[str, Any]:
        tiles: dict[str, Any] = {which: [tile.json() for tile in getattr(self, which)] for which in GEMMS}
        return {**tiles, "enumerated": self.enumerated, "rejected": dict(self.rejected)}

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Candidates:
        gate_up, down = (tuple(Tile.of(tile, which) for tile in table[which]) for which in GEMMS)
        return cls(gate_up, down, int(table["enumerated"]), Counter(table["rejected"]))


def candidates(shape: MoeShape, m: int, on: Accelerator, dtype: Dtype, most: int, pool: Pool, told: Told) -> Candidates:
    """At most `most` tiles of each GEMM."""
    done = {
        which: pruned_candidates(shape, m, which, on, dtype, lambda jobs: pool.compile(jobs, partial(told, which)))  # noqa: B023
        for which in GEMMS
    }
    gate_up, down = (tuple(chosen(done[which], most)) for which in GEMMS)
    rejected: Counter[str] = Counter()
    for pruned in done.values():
        rejected += pruned.rejected
        beyond = len(pruned.kept) - most
        if beyond > 0:
            rejected["arithmetic: others promise more"] += beyond
    return Candidates(gate_up, down, sum(len(pruned.kept) + len(pruned.reasons) for pruned in done.values()), rejected)


def chosen(pruned: Pruned, most: int) -> list[Tile]:
    """The first `most` in the order of promise; half of them are the best of each size of block in turn, since the order is made
    of guesses, and since BLOCK_SIZE_M must agree between the two GEMMs."""
    first = dict.fromkeys(in_turn(pruned.kept)[: most // 2])
    for tile in pruned.kept:
        if len(first) >= most:
            break
        first[tile] = None
    return [tile for tile in pruned.kept if tile in first]


def in_turn(tiles: Iterable[Tile]) -> list[Tile]:
    """The best of each size of block, then the second best of each, …"""
    by_size: dict[tuple[int, int, int], list[Tile]] = {}
    for tile in tiles:
        by_size.setdefault((tile.block_m, tile.block_n, tile.block_k), []).append(tile)
    return [tile for layer in zip_longest(*by_size.values()) for tile in layer if tile is not None]
