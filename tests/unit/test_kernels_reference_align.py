"""Alignment of the reference, against what its docstring promises."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.reference.align import Aligned, align, most_blocks

Ids = npt.NDArray[np.int32]


def check(ids: Ids, block_m: int, experts: int, expert_map: Ids | None = None) -> Aligned:
    """Every post-condition of align, said pair by pair."""
    aligned = align(ids, block_m, experts, expert_map)
    local = np.arange(experts) if expert_map is None else expert_map
    n_valid = ids.size
    expected: list[list[int]] = []  # places of each block
    owners: list[int] = []
    for number in range(int(local.max(initial=-1)) + 1):
        pairs = [pair for pair, expert in enumerate(ids.ravel()) if expert >= 0 and local[expert] == number]
        for start in range(0, len(pairs), block_m):
            block = pairs[start : start + block_m]
            expected.append(block + [n_valid] * (block_m - len(block)))
            owners.append(number)
    blocks = len(aligned.block_experts)
    assert aligned.padded == block_m * len(owners)
    assert len(aligned.sorted_ids) == blocks * block_m
    assert blocks == most_blocks(n_valid, block_m, int((local >= 0).sum())) >= len(owners)
    assert aligned.sorted_ids[: aligned.padded].tolist() == [place for block in expected for place in block]
    assert (aligned.sorted_ids[aligned.padded :] == n_valid).all()
    assert aligned.block_experts.tolist() == owners + [-1] * (blocks - len(owners))
    assert aligned.sorted_ids.dtype == aligned.block_experts.dtype == np.int32
    return aligned


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_routing_is_aligned_as_promised(data: st.DataObject) -> None:
    experts, k = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    m, block_m = data.draw(st.integers(0, 20)), data.draw(st.sampled_from([1, 2, 3, 4, 16]))
    ids = data.draw(st.lists(st.integers(-1, experts - 1), min_size=m * k, max_size=m * k))
    order = data.draw(st.permutations(range(experts)))
    kept = data.draw(st.integers(0, experts))
    expert_map = np.full(experts, -1, np.int32)
    expert_map[list(order[:kept])] = np.arange(kept)
    table = np.array(ids, np.int32).reshape(m, k)
    check(table, block_m, experts)
    check(table, block_m, experts, expert_map)


def test_one_token_takes_one_block_for_each_of_its_experts() -> None:
    aligned = check(np.array([[9, 2, 5, 0]], np.int32), 16, 128)
    assert aligned.padded == 4 * 16
    assert aligned.block_experts.tolist() == [0, 2, 5, 9]


def test_all_tokens_to_one_expert_fill_its_blocks() -> None:
    aligned = check(np.full((33, 1), 7, np.int32), 16, 8)
    assert aligned.padded == 3 * 16
    assert aligned.block_experts[:3].tolist() == [7, 7, 7]


def test_the_bound_on_blocks_is_met_by_the_worst_routing() -> None:
    ids = np.concatenate([np.arange(8), np.zeros(8)]).astype(np.int32)[:, None]  # 9 pairs of expert 0, one of each other
    assert check(ids, 8, 8).padded == 9 * 8
    for pairs in range(1, 30):
        worst = max(sum(-(-n // 4) for n in (first, second, pairs - first - second)) for first in range(pairs + 1)
                    for second in range(pairs - first + 1))  # fmt: skip
        assert worst == most_blocks(pairs, 4, 3)


def test_no_pair_of_this_rank_leaves_every_block_empty() -> None:
    expert_map = np.array([-1, -1, 0, 1], np.int32)
    aligned = check(np.array([[0, 1], [1, 0]], np.int32), 4, 4, expert_map)
    assert aligned.padded == 0
    assert (aligned.block_experts == -1).all()


@pytest.mark.parametrize(
    ("ids", "block_m", "experts", "expert_map", "told"),
    [
        ([[4]], 16, 4, None, r"expert 4; must be in 0\.\.3"),
        ([[-2]], 16, 4, None, "expert -2"),
        ([[0]], 0, 4, None, "block_m = 0"),
        ([0], 16, 4, None, r"must be integers \[M, k\]"),
        ([[0.5]], 16, 4, None, "is float64"),
        ([[0]], 16, 4, [0, 1], r"must be \(4,\)"),
        ([[0]], 16, 4, [0, 2, -1, -1], "without a gap"),
        ([[0]], 16, 4, [0, 0, -1, -1], "without a gap"),
    ],
)
def test_ids_and_maps_that_cannot_be_are_refused_in_words(
    ids: list[object], block_m: int, experts: int, expert_map: list[int] | None, told: str
) -> None:
    with pytest.raises(KernelInputError, match=told):
        align(np.array(ids), block_m, experts, None if expert_map is None else np.array(expert_map))
