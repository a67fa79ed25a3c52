"""Makes kernels/tables: configurations for the accelerators and models that are known, chosen without any being timed.

    python -m kernels.tuner.untimed --python PATH    where PATH has triton; again after every change of kernels/moe/kernel.py

A few tiles of each target (PALETTE) are compiled for every shape and must keep within all limits; of these each M takes the one
that arithmetic (predict.py) likes best. That is no substitute for `kernels tune`: the tables have no times, and say "untimed".
The same kernel, triton and palette write the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from kernels.accelerators import Accelerator, accelerators
from kernels.compiling.job import gemm_job
from kernels.compiling.pool import Pool
from kernels.compiling.resources import Resources
from kernels.errors import KernelInputError, NotHere
from kernels.identity import kernel_hash
from kernels.moe.launch import Dtype, Gemm
from kernels.roofline import floor
from kernels.shapes import MoeShape, model
from kernels.store.about import About, KeyFacts
from kernels.store.files import class_folder, write_table
from kernels.store.nodeclass import of_accelerator
from kernels.tile import LayerConfig, Tile
from kernels.tuner.predict import predicted_gemm_us
from kernels.tuner.prune import by_rules
from kernels.tuner.space import GEMMS, block_ms

TABLES = Path(__file__).resolve().parent.parent / "tables"
MS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DTYPE: Dtype = "bf16"

#: Chosen from some 100 a target that were compiled: nothing spilled, as many bytes of weights in flight on a compute unit as full
#: bandwidth takes (17 KB on MI300X, 31 KB on MI355X, 36 KB on H200, at a latency of a microsecond; 64 rows have fewer and are
#: bound by operations), and some for small grids. The first wins where arithmetic sees no difference.
PALETTE: dict[str, tuple[Tile, ...]] = {
    "gfx942": (
        Tile(16, 64, 256, warps=4, stages=2),
        Tile(16, 128, 128, warps=4, stages=2),
        Tile(16, 64, 128, warps=4, stages=2),
        Tile(16, 32, 256, warps=2, stages=2),
        Tile(32, 64, 128, warps=4, stages=2),
        Tile(32, 128, 128, warps=4, stages=2),
        Tile(64, 128, 128, warps=8, stages=2),  # 64 along K do not compile with triton 3.6
    ),
    "gfx950": (
        Tile(16, 64, 256, warps=4, stages=2),
        Tile(16, 128, 128, warps=4, stages=2),
        Tile(16, 64, 128, warps=4, stages=3),
        Tile(16, 32, 256, warps=2, stages=3),
        Tile(32, 64, 128, warps=4, stages=3),
        Tile(32, 128, 128, warps=4, stages=2),
        Tile(64, 128, 64, warps=4, stages=3),
    ),
    "sm_90": (
        Tile(16, 64, 256, warps=4, stages=3),
        Tile(16, 128, 128, warps=4, stages=3),
        Tile(16, 64, 128, warps=4, stages=4),
        Tile(16, 64, 128, warps=4, stages=2),  # for I = 256, which has no third step
        Tile(32, 64, 128, warps=4, stages=3),
        Tile(32, 64, 128, warps=4, stages=2),
        Tile(32, 128, 128, warps=8, stages=3),
        Tile(64, 128, 128, warps=8, stages=3),
    ),
}

Measures = Mapping[tuple[Gemm, Tile], Resources]


def shapes() -> list[MoeShape]:
    return [
        model("gpt-oss-120b"),
        model("gpt-oss-20b"),
        model("DeepSeek-R1-MXFP4").split(ep=8),
        model("DeepSeek-V4-Flash"),
        model("DeepSeek-V4-Flash").split(tp=8),
    ]


def make(into: Path, python: str, cache: Path) -> list[Path]:
    """All tables, or none where a tile of the palette breaks a limit."""
    pool = Pool(cache, python=python)
    compiled = _compile_palette(pool)
    written = []
    for on in accelerators().values():
        for shape in shapes():
            measures = compiled[on.target, shape]
            configs = {m: choose(shape, m, on, measures) for m in MS}
            written.append(
                write_table(class_folder(into, of_accelerator(on)), configs, _about(shape, on, configs, measures, pool))
            )
    return written


def choose(shape: MoeShape, m: int, on: Accelerator, measures: Measures) -> LayerConfig:
    """Both GEMMs have the rows of a block in common, so the sum of both decides them."""
    best: tuple[float, LayerConfig] | None = None
    for block_m in block_ms(shape, m):
        picks = [_best(shape, m, which, on, block_m, measures) for which in GEMMS]
        if any(pick is None for pick in picks):
            continue
        (gate_up_us, gate_up), (down_us, down) = (pick for pick in picks if pick is not None)
        if best is None or gate_up_us + down_us < best[0]:
            best = (gate_up_us + down_us, LayerConfig(gate_up, down))
    if best is None:
        raise KernelInputError(f"{shape.model} at M = {m} on {on.name}: no tile of the palette for {on.target} suits; add one")
    return best[1]


def _best(shape: MoeShape, m: int, which: Gemm, on: Accelerator, block_m: int, measures: Measures) -> tuple[float, Tile] | None:
    of_block = [tile for tile in PALETTE[on.target] if tile.block_m == block_m]
    kept = set(by_rules(of_block, shape, m, which, on).kept)
    ranked = [(predicted_gemm_us(shape, m, tile, which, on, measures[which, tile]), tile) for tile in of_block if tile in kept]
    return min(ranked, key=lambda each: each[0], default=None)  # the first of equals


def _compile_palette(pool: Pool) -> dict[tuple[str, MoeShape], dict[tuple[Gemm, Tile], Resources]]:
    jobs = {
        (target, shape, which, tile): gemm_job(target, shape, tile, DTYPE, which)
        for target, palette in PALETTE.items()
        for shape in shapes()
        for which in GEMMS
        for tile in palette
    }
    results = {result.job: result for result in pool.compile(jobs.values(), _progress)}
    compiled: dict[tuple[str, MoeShape], dict[tuple[Gemm, Tile], Resources]] = {}
    for (target, shape, which, tile), job in jobs.items():
        result = results[job]
        if result.resources is None or result.problems:
            raise KernelInputError(f"{target}: {job.label}: {'; '.join(result.problems)}; take the tile out of the palette")
        compiled.setdefault((target, shape), {})[which, tile] = result.resources
    return compiled


def _about(shape: MoeShape, on: Accelerator, configs: Mapping[int, LayerConfig], measures: Measures, pool: Pool) -> About:
    used: dict[Gemm, set[Tile]] = {
        "gate_up": {config.gate_up for config in configs.values()},
        "down": {config.down for config in configs.values()},
    }
    by_gemm = {which: {str(tile): _told(measures[which, tile]) for tile in sorted(used[which])} for which in GEMMS}
    return About(
        shape,
        on.target,
        on.compute_units,
        on.memory_gb,
        on.device_names[0],
        "untimed",
        kernel_hash(),
        triton=pool.triton_version,
        keys={m: KeyFacts(floor_us=round(floor(shape, m, on).us, 2)) for m in configs},
        more={"compiled": by_gemm},
    )


def _told(resources: Resources) -> dict[str, object]:
    """What differs between tiles; the rest is zero or the same."""
    every = asdict(resources)
    return {name: every[name] for name in ("registers", "shared_bytes", "spills", "groups", "matrix_ops", "fp4_conversions")}


def _progress(done: int, of: int) -> None:
    if done % 20 == 0 or done == of:
        print(f"compiled {done} of {of}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.tuner.untimed", description="Write kernels/tables again")
    parser.add_argument("--python", default=sys.executable, help="a Python that has triton")
    parser.add_argument("--into", type=Path, default=TABLES, help="the folder of the tables")
    parser.add_argument("--cache", type=Path, help="keeps what was compiled; else nothing is kept")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-tables-") as aside:
            written = make(given.into, given.python, given.cache or Path(aside))
    except (KernelInputError, NotHere) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(written)} tables in {given.into}, kernel {kernel_hash()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
