"""Alignment on the device against the reference's, place by place."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from layer_kit import tensor

from kernels.errors import KernelInputError
from kernels.reference.align import align


def drawn(tokens: int, top_k: int, experts: int, *, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, experts, (tokens, top_k)).astype(np.int32)


MAP = np.array([-1, 1, -1, 0, 2, -1, -1, -1], np.int32)


@pytest.mark.parametrize(
    ("ids", "block_m", "experts", "expert_map"),
    [
        pytest.param(drawn(1, 4, 8), 16, 8, None, id="one token"),
        pytest.param(drawn(33, 2, 5), 16, 5, None, id="an odd number of experts"),
        pytest.param(drawn(700, 3, 4), 64, 4, None, id="more pairs than a step of the loops takes"),
        pytest.param(np.full((40, 1), 2, np.int32), 16, 4, None, id="all on one, three empty"),
        pytest.param(np.full((2100, 8), 1, np.int32), 16, 2, None, id="more blocks of one expert than a step of the loops takes"),
        pytest.param(drawn(20, 4, 8), 32, 8, MAP, id="three of eight experts are here"),
        pytest.param(np.array([[0, 2], [5, 7]], np.int32), 16, 8, MAP, id="no pair is here"),
        pytest.param(np.array([[0, -1], [-1, -1], [2, 1]], np.int32), 16, 3, None, id="no expert chosen"),
        pytest.param(np.array([[3, -1], [-1, 1]], np.int32), 16, 8, MAP, id="no expert chosen, mapped"),
    ],
)
def test_alignment_is_the_reference_s(
    ids: npt.NDArray[np.int32], block_m: int, experts: int, expert_map: npt.NDArray[np.int32] | None
) -> None:
    from kernels.moe.align import moe_align

    here = experts if expert_map is None else int((expert_map >= 0).sum())
    right = align(ids, block_m, experts, expert_map)
    found = moe_align(tensor(ids), block_m, here, tensor(expert_map))
    assert int(found.padded) == right.padded
    assert found.sorted_ids.numel() == right.sorted_ids.size
    assert found.block_experts.numel() == right.block_experts.size
    blocks = right.padded // block_m
    assert np.array_equal(found.sorted_ids.numpy()[: right.padded], right.sorted_ids[: right.padded])
    assert np.array_equal(found.block_experts.numpy()[:blocks], right.block_experts[:blocks])


def test_all_parts_start_at_multiples_of_16_bytes() -> None:
    from kernels.moe.align import moe_align

    for pairs in (1, 5):
        found = moe_align(tensor(np.zeros((pairs, 1), np.int32)), 16, 3)
        assert not [part for part in (found.sorted_ids, found.block_experts, found.padded) if part.data_ptr() % 16]


def test_no_pairs_are_no_blocks() -> None:
    from kernels.moe.align import moe_align

    found = moe_align(tensor(np.empty((0, 4), np.int32)), 16, 8)
    assert int(found.padded) == 0
    assert found.block_experts.numel() == 0


def test_ids_of_another_type_are_refused() -> None:
    from kernels.moe.align import moe_align

    with pytest.raises(KernelInputError, match="must be int32"):
        moe_align(tensor(np.zeros((2, 2), np.int64)), 16, 4)
