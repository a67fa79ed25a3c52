"""What the tables ship compiles for its target within all limits, with no accelerator here; and what would spill is refused.

The compiling is done by children of this Python, which must have triton.
"""

from __future__ import annotations

import re

import pytest

from kernels.accelerators import TARGETS
from kernels.compiling.job import Job, combine_job, gemm_job
from kernels.compiling.pool import Compiled, Pool, triton_version
from kernels.compiling.resources import Resources
from kernels.errors import NotHere
from kernels.identity import kernel_hash
from kernels.moe.launch import Gemm
from kernels.shapes import MoeShape, model
from kernels.store.files import read_table
from kernels.store.lookup import DECODE_DEFAULT, PREFILL_DEFAULT
from kernels.tile import Tile
from kernels.tuner.space import GEMMS
from kernels.tuner.untimed import TABLES

try:
    triton_version()
except NotHere as error:
    pytest.skip(str(error), allow_module_level=True)

GPT_OSS = model("gpt-oss-120b")


def _shipped() -> dict[tuple[str, Gemm, Tile], MoeShape]:
    """Each tile of each target and GEMM, with the first shape that a table has it for."""
    found: dict[tuple[str, Gemm, Tile], MoeShape] = {}
    for path in sorted(TABLES.glob("*/*.json")):
        if path.name.endswith(".about.json"):
            continue
        table = read_table(path)
        for config in table.configs.values():
            found.setdefault((table.about.target, "gate_up", config.gate_up), table.about.shape)
            found.setdefault((table.about.target, "down", config.down), table.about.shape)
    for target in TARGETS:  # and what is taken without a table
        for config in (DECODE_DEFAULT, PREFILL_DEFAULT):
            found.setdefault((target, "gate_up", config.gate_up), GPT_OSS)
            found.setdefault((target, "down", config.down), GPT_OSS)
    return found


SHIPPED = {key: gemm_job(key[0], shape, key[2], "bf16", key[1]) for key, shape in _shipped().items()}
HALF = {(target, which): gemm_job(target, GPT_OSS, Tile(16, 64, 256), "fp16", which) for target in TARGETS for which in GEMMS}
COMBINE = {target: combine_job(target, GPT_OSS, "bf16") for target in TARGETS}
#: Among them what another kernel's table falls back to (256x256x64).
SPILLING = {
    "128x256x128": gemm_job("gfx942", GPT_OSS, Tile(128, 256, 128, warps=8), "bf16", "gate_up"),
    "256x256x64": gemm_job("gfx942", GPT_OSS, Tile(256, 256, 64, warps=8), "bf16", "gate_up"),
    "16x64x512": gemm_job("sm_90", GPT_OSS, Tile(16, 64, 512), "bf16", "gate_up"),
}
TOO_LARGE = gemm_job("gfx942", GPT_OSS, Tile(64, 64, 256, stages=3), "bf16", "down")
LEAST = {target: gemm_job(target, GPT_OSS, Tile(16, 64, 128), "bf16", "gate_up") for target in TARGETS}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[Job, Compiled]:
    """All at once, on all cores: 0.3 to 1 s of one core each, the spilling ones 3."""
    pool = Pool(tmp_path_factory.mktemp("compiled"), deadline_s=120.0)
    every = [*SPILLING.values(), *SHIPPED.values(), *HALF.values(), *COMBINE.values(), *LEAST.values(), TOO_LARGE]
    return {each.job: each for each in pool.compile(every)}


def _resources(compiled: dict[Job, Compiled], job: Job) -> Resources:
    result = compiled[job]
    assert result.resources is not None, result.error
    return result.resources


def test_the_tables_are_of_this_kernel_and_of_every_target() -> None:
    abouts = [read_table(path).about for path in TABLES.glob("*/*.json") if not path.name.endswith(".about.json")]
    stale = {about.kernel_hash for about in abouts} - {kernel_hash()}
    assert not stale, f"tables are of kernel {stale}, not {kernel_hash()}: run python -m kernels.tuner.untimed"
    assert {about.target for about in abouts} == set(TARGETS)
    assert {about.origin for about in abouts} <= {"untimed", "measured"}


@pytest.mark.parametrize("key", SHIPPED, ids=lambda key: f"{key[0]}-{key[1]}-{str(key[2]).replace(' ', '-')}")
def test_each_shipped_tile_keeps_within_the_limits(compiled: dict[Job, Compiled], key: tuple[str, Gemm, Tile]) -> None:
    assert compiled[SHIPPED[key]].problems == []
    if key[0] == "sm_90":
        assert _resources(compiled, SHIPPED[key]).wgmma > 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("which", GEMMS)
def test_halves_keep_within_the_limits_too(compiled: dict[Job, Compiled], target: str, which: Gemm) -> None:
    assert compiled[HALF[target, which]].problems == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_combine_needs_next_to_nothing(compiled: dict[Job, Compiled], target: str) -> None:
    assert compiled[COMBINE[target]].problems == []
    assert _resources(compiled, COMBINE[target]).groups >= 8


@pytest.mark.parametrize("name", SPILLING)
def test_a_tile_that_spills_is_refused_with_its_reason(compiled: dict[Job, Compiled], name: str) -> None:
    (reason,) = compiled[SPILLING[name]].problems
    assert re.fullmatch(r"spills: \d+ (registers \(\d+ bytes of scratch\)|bytes of stack), none may be", reason)


def test_a_tile_beyond_lds_is_refused_with_its_reason(compiled: dict[Job, Compiled]) -> None:
    (reason,) = compiled[TOO_LARGE].problems
    assert re.fullmatch(r"LDS: \d\d,\d{3} bytes, gfx942 has 65,536 for a workgroup", reason)


def test_blocks_of_16_rows_use_wgmma(compiled: dict[Job, Compiled]) -> None:
    """The product is computed transposed: 64 rows of weights by 16 of activations, 16 along K, is one instruction."""
    found = _resources(compiled, LEAST["sm_90"])
    assert found.wgmma == found.matrix_ops == 128 // 16
    assert found.async_copies > 0


def test_gfx950_converts_in_hardware_and_copies_into_lds(compiled: dict[Job, Compiled]) -> None:
    found = _resources(compiled, LEAST["gfx950"])
    assert found.fp4_conversions > 0
    assert found.async_copies > 0
    assert _resources(compiled, LEAST["gfx942"]).fp4_conversions == 0


def test_the_rules_before_compiling_refuse_nothing_that_fits(compiled: dict[Job, Compiled]) -> None:
    """Shared memory is estimated from below."""
    for (target, which, tile), job in SHIPPED.items():
        step = tile.block_m * tile.block_k * 2 + tile.block_n * tile.block_k // 2
        assert _resources(compiled, job).shared_bytes >= (tile.stages - 1) * step, (target, which, str(tile))
