"""The space of tiles and what is left out of it before anything is compiled or timed. Needs no triton."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.accelerators import Accelerator, accelerator, accelerators
from kernels.compiling.job import Job
from kernels.compiling.pool import Compiled
from kernels.compiling.resources import Resources
from kernels.moe.launch import Gemm
from kernels.roofline import floor
from kernels.shapes import MoeShape, model
from kernels.tile import Tile
from kernels.tuner.predict import least_us, predicted_gemm_us
from kernels.tuner.prune import by_compiler, by_rules, candidates
from kernels.tuner.space import GEMMS, block_ms, blocks_per_expert, gemm_size, row_blocks, tiles
from kernels.tuner.untimed import MS, PALETTE, choose, shapes

GPT_OSS = model("gpt-oss-120b")
V4_TP8 = model("DeepSeek-V4-Flash").split(tp=8)
MI300X, MI355X, H200 = (accelerator(name) for name in ("MI300X", "MI355X", "H200"))
GOOD = Resources(
    "gfx942", 4, 16896, 118, 0, 34, 0, 0, 7484, waves=4, groups=3, matrix_ops=32, wgmma=0, fp4_conversions=0, async_copies=0
)


@pytest.mark.parametrize("on", list(accelerators().values()), ids=lambda on: on.name)
@pytest.mark.parametrize("shape", shapes(), ids=lambda shape: f"{shape.model}-{shape.experts}x{shape.intermediate}")
@pytest.mark.parametrize("which", GEMMS)
def test_the_space_is_bounded_ordered_and_never_pruned_to_nothing(on: Accelerator, shape: MoeShape, which: Gemm) -> None:
    for m in (1, 16, 256, 1024):
        every = tiles(shape, m, on.target, which)
        assert every == tiles(shape, m, on.target, which)
        assert len(set(every)) == len(every) <= 5000
        pruned = by_rules(every, shape, m, which, on)
        assert pruned.kept
        assert set(pruned.kept) | set(pruned.reasons) == set(every)
        assert sum(pruned.rejected.values()) == len(every) - len(pruned.kept)


def test_blocks_of_k_need_not_divide_k() -> None:
    """K = 2880 is 45 x 64: a space of divisors would end there."""
    kept = by_rules(tiles(GPT_OSS, 16, "gfx942", "down"), GPT_OSS, 16, "down", MI300X).kept
    assert {128, 256} <= {tile.block_k for tile in kept}


def test_a_block_of_k_is_no_larger_than_k_rounded_up() -> None:
    assert max(tile.block_k for tile in tiles(V4_TP8, 16, "gfx950", "down")) == gemm_size(V4_TP8, "down").k == 256


def test_rows_of_a_block_follow_the_tokens_of_an_expert() -> None:
    assert block_ms(GPT_OSS, 1) == [16]
    assert block_ms(GPT_OSS, 1024) == [16, 32, 64]  # 32 tokens
    assert block_ms(GPT_OSS, 100_000) == [128]


@given(m=st.integers(1, 300), share=st.floats(0.001, 1.0), block_m=st.sampled_from([16, 32, 64]))
@settings(max_examples=60, deadline=None)
def test_expected_blocks_lie_between_their_bounds(m: int, share: float, block_m: int) -> None:
    blocks, touched = blocks_per_expert(m, share, block_m), 1.0 - (1.0 - share) ** m
    assert max(touched, m * share / block_m) <= blocks * (1 + 1e-6) + 1e-9
    assert blocks <= touched + m * share / block_m + 1e-6


def test_one_block_per_expert_that_is_touched_while_tokens_are_few() -> None:
    assert row_blocks(GPT_OSS, 1, 16) == pytest.approx(4.0)
    assert row_blocks(GPT_OSS, 16, 16) == pytest.approx(51.0, abs=0.2)  # as the active experts


@pytest.mark.parametrize(
    ("tile", "m", "which", "on", "reason"),
    [
        (Tile(64, 64, 256, warps=4, stages=3), 1024, "gate_up", MI300X, "shared memory: at least 81,920 bytes, gfx942 has"),
        (Tile(64, 256, 64, warps=2), 1024, "gate_up", MI300X, None),
        (Tile(128, 256, 64, warps=1), 4096, "gate_up", MI300X, "registers: at least 640 of a thread's 512"),
        (Tile(16, 32, 64, warps=4), 16, "gate_up", MI355X, "warps: 4 for the 2 that its matrix instructions occupy"),
        (Tile(16, 64, 64, warps=8), 16, "gate_up", H200, "warps: 8 for the 4 that its matrix instructions occupy"),
        (Tile(16, 64, 256, stages=3), 16, "down", H200, None),
    ],
)  # fmt: skip
def test_each_rule_says_what_is_wrong(tile: Tile, m: int, which: Gemm, on: Accelerator, reason: str | None) -> None:
    found = by_rules([tile], GPT_OSS, m, which, on).reasons.get(tile)
    assert (found is None) if reason is None else (found or "").startswith(reason)


def test_stages_beyond_the_steps_along_k_are_left_out() -> None:
    tile = Tile(16, 64, 256, stages=3)
    assert by_rules([tile], V4_TP8, 16, "down", MI355X).reasons[tile] == "stages: 3 for 1 steps along K"


def test_tiles_of_too_few_programs_are_left_out_only_where_others_have_more() -> None:
    wide, narrow = Tile(16, 256, 64), Tile(16, 32, 64, warps=2)
    pruned = by_rules([wide, narrow], V4_TP8, 1, "gate_up", MI300X)  # 6 experts of 512 rows
    assert pruned.reasons[wide] == "grid: 12 programs for 304 compute units"
    assert pruned.kept == [narrow]
    assert by_rules([wide], V4_TP8, 1, "gate_up", MI300X).kept == [wide]


def test_larger_blocks_of_rows_that_save_no_block_are_left_out() -> None:
    tile = Tile(64, 64, 128)
    assert by_rules([tile], GPT_OSS, 64, "gate_up", MI300X).reasons[tile].startswith("rows: 64 a block for 2.")


@pytest.mark.parametrize("m", MS)
@pytest.mark.parametrize("which", GEMMS)
def test_the_bound_of_a_gemm_is_never_below_its_share_of_the_layers_floor(m: int, which: Gemm) -> None:
    share = 2 / 3 if which == "gate_up" else 1 / 3
    for tile in PALETTE["gfx942"]:
        bound = least_us(GPT_OSS, m, tile, which, MI300X)
        assert bound >= floor(GPT_OSS, m, MI300X).us * share * 0.999
        assert predicted_gemm_us(GPT_OSS, m, tile, which, MI300X) >= bound * 0.999


def test_programs_that_fit_more_often_are_predicted_no_slower() -> None:
    tile = Tile(16, 64, 128)
    few, many = (predicted_gemm_us(GPT_OSS, 64, tile, "gate_up", MI300X, replace(GOOD, groups=groups)) for groups in (1, 5))
    assert many < few


def _scripted(jobs: list[Job]) -> Iterable[Compiled]:
    """No compiler: tiles of 64 along K are fine, all others are refused, by kind."""
    for job in reversed(jobs):
        block_k = dict(job.constants)["BLOCK_K"]
        if block_k == 64:
            yield Compiled(job, GOOD)
        elif block_k == 128:
            yield Compiled(job, replace(GOOD, spills=77, scratch_bytes=228))
        else:
            yield Compiled(job, None, "compiler lost: no answer in 5 s")


def test_what_the_compiler_says_is_counted_by_kind_and_the_rest_ordered() -> None:
    pruned = candidates(GPT_OSS, 16, "gate_up", MI300X, "bf16", _scripted)
    assert pruned.kept
    assert {tile.block_k for tile in pruned.kept} == {64} == {tile.block_k for tile in pruned.resources}
    assert pruned.rejected["spills"] > 0
    assert pruned.rejected["compiler lost"] > 0
    times = [predicted_gemm_us(GPT_OSS, 16, tile, "gate_up", MI300X, GOOD) for tile in pruned.kept]
    assert times == sorted(times)
    assert str(pruned).startswith(f"{len(pruned.kept)} of {len(pruned.kept) + len(pruned.reasons)} tiles kept (left out: ")


def test_orders_of_programs_are_compiled_once() -> None:
    asked: list[Job] = []

    def compiled(jobs: list[Job]) -> Iterable[Compiled]:
        asked.extend(jobs)
        return _scripted(jobs)

    both = by_rules([Tile(16, 64, 64), Tile(16, 64, 64, group_m=8)], GPT_OSS, 256, "gate_up", MI300X)
    assert len(by_compiler(both, GPT_OSS, 256, "gate_up", MI300X, "bf16", compiled).kept) == 2
    assert len(asked) == 1


def test_every_shape_and_m_finds_tiles_in_the_palette() -> None:
    for on in accelerators().values():
        for shape in shapes():
            measures = {(which, tile): replace(GOOD, target=on.target) for which in GEMMS for tile in PALETTE[on.target]}
            for m in MS:
                assert choose(shape, m, on, measures).gate_up in PALETTE[on.target]
