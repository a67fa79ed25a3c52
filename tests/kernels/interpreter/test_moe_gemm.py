"""The grouped GEMM alone: exact decoding, blocks without an expert, offsets beyond 32 bits, no address outside the tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from layer_kit import tensor

from kernels.moe.launch import Gemm, gemm_arguments
from kernels.reference.mxfp4 import decode
from kernels.shapes import GateUp, MoeShape
from kernels.tile import Tile

if TYPE_CHECKING:
    import torch

    from kernels.moe.align import Alignment


def aligned(sorted_ids: list[int], block_experts: list[int], padded: int) -> Alignment:
    import torch

    from kernels.moe.align import Alignment

    def of(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return Alignment(of(sorted_ids), of(block_experts), of([padded]))


def nans(*size: int) -> torch.Tensor:
    import torch

    return torch.full(size, float("nan"), dtype=torch.bfloat16)


def test_every_pair_of_codes_is_decoded_exactly_under_many_scales() -> None:
    """Rows of the unit matrix read the weights out, which a bfloat16 holds exactly."""
    import torch

    from kernels.moe.layer import run_gemm

    k, n = 64, 256
    codes = (np.arange(n)[:, None] + np.arange(k // 2)[None, :]).astype(np.uint8)[None]  # each byte stands in each column
    scales = (np.arange(n)[:, None] % 250 + np.arange(k // 32)[None, :] * 2 + 1).astype(np.uint8)[None]  # 1 to 252
    shape = MoeShape("units", 1, 1, n, k)
    out = nans(k, n)
    run_gemm(
        gemm_arguments(shape, Tile(64, 128, 64), "bf16", "down"), torch.eye(k, dtype=torch.bfloat16),
        tensor(codes), tensor(scales), None, out, aligned(list(range(k)), [0], 64), torch.empty(k, 1),
    )  # fmt: skip
    assert np.array_equal(out.double().numpy(), decode(codes, scales)[0].T)


def test_scale_code_zero_is_about_zero() -> None:
    import torch

    from kernels.moe.layer import run_gemm

    shape = MoeShape("zeros", 1, 1, 64, 32)
    out = nans(16, 64)
    run_gemm(
        gemm_arguments(shape, Tile(16, 64, 32), "bf16", "down"), torch.ones(16, 32, dtype=torch.bfloat16),
        torch.full((1, 64, 16), 0x77, dtype=torch.uint8), torch.zeros(1, 64, 1, dtype=torch.uint8), None, out,
        aligned(list(range(16)), [0], 16), torch.empty(16, 1),
    )  # fmt: skip
    assert float(out.abs().max()) <= 6 * 32 * 2.0**-126


def test_blocks_without_an_expert_and_those_beyond_the_count_write_nothing() -> None:
    import torch

    from kernels.moe.layer import run_gemm

    shape = MoeShape("blocks", 2, 1, 64, 64)
    random = np.random.default_rng(2)
    codes, scales = random.integers(0, 256, (2, 64, 32), np.uint8), random.integers(120, 127, (2, 64, 2), np.uint8)
    x = tensor(random.standard_normal((64, 64)), torch.bfloat16)
    out = nans(64, 64)
    ids = list(range(48)) + list(range(16))  # the fourth block is junk: beyond `padded`
    run_gemm(
        gemm_arguments(shape, Tile(16, 32, 64), "bf16", "down"), x, tensor(codes), tensor(scales), None, out,
        aligned(ids, [0, -1, 1, 1], 48), torch.empty(64, 1),
    )  # fmt: skip
    assert torch.isnan(out[16:32]).all()
    assert torch.isnan(out[48:]).all()
    for rows, expert in ((slice(0, 16), 0), (slice(32, 48), 1)):
        right = x[rows].double().numpy() @ decode(codes[expert], scales[expert]).T
        np.testing.assert_allclose(out[rows].double().numpy(), right, rtol=2**-8, atol=1e-3)


# Memory that nobody touches takes no room: these tensors have gigabytes of addresses and a few pages.


def test_weights_of_an_expert_may_begin_beyond_32_bits() -> None:
    import torch

    from kernels.moe.layer import run_gemm

    n = k = 2048
    experts = 2**31 // (n * k // 2) + 2
    codes = torch.empty(experts, n, k // 2, dtype=torch.uint8)
    scales = torch.empty(experts, n, k // 32, dtype=torch.uint8)
    codes[-1], scales[-1] = 0x22, 127  # all ones
    out = nans(1, n)
    launch = gemm_arguments(MoeShape("many", experts, 1, n, k), Tile(16, 256, 256), "bf16", "down")
    assert "w" not in launch.within_2gb
    run_gemm(
        launch, torch.ones(1, k, dtype=torch.bfloat16), codes, scales, None, out, aligned([0] + [1] * 15, [experts - 1], 16),
        torch.empty(1, 1),
    )  # fmt: skip
    assert (out == k).all()


def test_rows_of_activations_may_begin_beyond_32_bits() -> None:
    import torch

    from kernels.moe.layer import run_gemm

    n = k = 2048
    rows = 2**31 // k + 8
    x, out = torch.empty(rows, k, dtype=torch.bfloat16), torch.empty(rows, n, dtype=torch.bfloat16)
    last = rows - 1
    x[last] = 1
    run_gemm(
        gemm_arguments(MoeShape("long", 1, 1, n, k), Tile(16, 256, 256), "bf16", "down"), x,
        torch.full((1, n, k // 2), 0x22, dtype=torch.uint8), torch.full((1, n, k // 32), 127, dtype=torch.uint8), None, out,
        aligned([last] + [rows] * 15, [0], 16), torch.empty(rows, 1),
    )  # fmt: skip
    assert (out[last] == k).all()


def test_rows_to_combine_may_begin_beyond_32_bits() -> None:
    import torch

    from kernels.moe.kernel import moe_combine

    width, top_k = 2**28, 9  # one program of the many that a row as wide as this would have
    rows, out = torch.empty(top_k, width, dtype=torch.bfloat16), nans(1, 512)
    rows[:, :512] = torch.arange(top_k, dtype=torch.bfloat16)[:, None]
    ids, weights = torch.arange(top_k, dtype=torch.int32), torch.ones(top_k)
    moe_combine[(1, 1)](rows, ids, None, weights, out, top_k, H=width, TOP_K=top_k, BLOCK_H=512)
    assert (out == sum(range(top_k))).all()


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """First and last address of everything that kernels load and store, as the interpreter is asked for it."""
    from triton.runtime.interpreter import InterpreterBuilder

    found: list[tuple[int, int]] = []

    def watched(name: str, mask_at: int) -> None:
        real = getattr(InterpreterBuilder, name)

        def call(self: object, *args: Any) -> object:
            addresses = args[0].data[args[mask_at].data.astype(bool)]
            if addresses.size:
                width = args[0].dtype.scalar.element_ty.primitive_bitwidth // 8
                found.append((int(addresses.min()), int(addresses.max()) + width - 1))
            return real(self, *args)

        monkeypatch.setattr(InterpreterBuilder, name, call)

    watched("create_masked_load", 1)
    watched("create_masked_store", 2)
    return found


@pytest.mark.parametrize("which", ["gate_up", "down"])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_no_address_outside_the_tensors_is_touched(which: Gemm, layout: GateUp, touched: list[tuple[int, int]]) -> None:
    """Tiles that go beyond the last rows and columns of the last expert's weights, of its biases, of x and of the output."""
    import torch

    from kernels.moe.layer import run_gemm

    shape = MoeShape("edges", 2, 2, 96, 96, gate_up=layout, bias=True)
    launch = gemm_arguments(shape, Tile(16, 128, 64), "bf16", which, weights_on_input=True)
    n, k, width = (192, 96, 96) if which == "gate_up" else (96, 96, 96)
    pairs = 6
    places = aligned([5, 4, 3, *[pairs] * 13, *[pairs] * 16], [1, 1], 16)
    x, out = torch.ones(3 if which == "gate_up" else pairs, k, dtype=torch.bfloat16), nans(pairs, width)
    codes, scales = torch.zeros(2, n, k // 2, dtype=torch.uint8), torch.full((2, n, k // 32), 127, dtype=torch.uint8)
    bias, weights = torch.ones(2, n), torch.ones(3, 2)
    run_gemm(launch, x, codes, scales, bias, out, places, weights)
    assert torch.isfinite(out[3:]).all()
    ranges = [
        (each.data_ptr(), each.data_ptr() + each.numel() * each.element_size() - 1)
        for each in (x, codes, scales, bias, out, weights, places.sorted_ids, places.block_experts, places.padded)
    ]
    assert touched
    outside = [(low, high) for low, high in touched if not any(first <= low and high <= last for first, last in ranges)]
    assert not outside
