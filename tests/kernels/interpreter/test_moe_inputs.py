"""What does not fit is refused before anything is launched, with the field, the value and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from layer_kit import weights_of

from kernels.errors import KernelInputError
from kernels.reference.cases import make_case
from kernels.shapes import MoeShape
from kernels.tile import LayerConfig

SHAPE = MoeShape("small", 2, 2, 64, 32, bias=True)
Change = Callable[[dict[str, Any]], dict[str, Any]]


def arguments() -> dict[str, Any]:
    import torch

    return {**weights_of(make_case(SHAPE, 3, seed=1), torch.bfloat16), "config": LayerConfig()}


def replaced(name: str, by: Callable[[Any], Any]) -> Change:
    return lambda given: {**given, name: by(given[name])}


def last_bytes_of(tensor: Any) -> Any:
    """The same content, 2 bytes behind a multiple of 16."""
    moved = tensor.new_empty(tensor.numel() + 8)[1:][: tensor.numel()].view(tensor.shape)
    return moved.copy_(tensor)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (replaced("x", lambda x: x.float()), r"x is torch.float32 of shape \(3, 64\); must be bfloat16 or float16"),
        (replaced("x", lambda x: x[0]), r"x is torch.bfloat16 of shape \(64,\)"),
        (replaced("x", lambda x: x.t().contiguous().t()), r"x has strides \(1, 3\); must be contiguous"),
        (replaced("x", last_bytes_of), "x starts at an address that is no multiple of 16"),
        (replaced("x", lambda x: x[:, :48].contiguous()), "hidden = 48 must be a multiple of 32"),
        (replaced("w13", lambda w: w[:, :32]), r"w13 is torch.uint8 of shape \(2, 32, 32\); must be torch.uint8 \(2, 64, 32\)"),
        (replaced("w13", lambda w: w.transpose(1, 2).contiguous().transpose(1, 2)), "w13 has strides"),
        (replaced("s2", lambda s: s.float()), r"s2 is torch.float32 of shape .*; must be torch.uint8 \(2, 64, 1\)"),
        (replaced("topk_ids", lambda ids: ids.long()), "topk_ids is torch.int64"),
        (replaced("topk_weights", lambda w: w[:, :1]), r"topk_weights is torch.float32 of shape \(3, 1\)"),
        (replaced("b13", lambda b: b.bfloat16()), r"b13 is torch.bfloat16 .*; must be torch.float32 \(2, 64\)"),
        (replaced("b2", lambda _: None), "b2 is missing: both GEMMs have biases, or neither has"),
        (lambda given: {**given, "out": given["x"].float()}, r"out is torch.float32"),
        (
            lambda given: {**given, "workspace": given["w2"].new_empty(100)},
            r"workspace is torch.uint8 of 100 bytes .* at least 1,280",
        ),
        (lambda given: {**given, "workspace": given["x"].new_empty(4096)}, r"workspace is torch.bfloat16"),
    ],
)
def test_what_does_not_fit_is_refused(change: Change, said: str) -> None:
    from kernels.moe.layer import fused_moe

    with pytest.raises(KernelInputError, match=said):
        fused_moe(**change(arguments()))


def test_scales_are_checked_once_as_they_are_loaded() -> None:
    import torch

    from kernels.moe.layer import check_scales

    scales = torch.full((2, 3, 4), 120, dtype=torch.uint8)
    check_scales("s13", scales, torch.bfloat16)
    scales[0, 0, 0] = 0
    check_scales("s13", scales, torch.bfloat16)
    scales[1, 2, 3] = 200
    check_scales("s13", scales, torch.bfloat16)
    with pytest.raises(
        KernelInputError, match=r"s13: scale code 200 of expert 1, row 2, too large for float16; must be 0\.\.140"
    ):
        check_scales("s13", scales, torch.float16)
    scales[1, 0, 0] = 255
    with pytest.raises(KernelInputError, match=r"s13: scale code 255 of expert 1, row 0, that is NaN; must be 0\.\.252"):
        check_scales("s13", scales, torch.bfloat16)
    scales[1, 0, 0] = 253
    with pytest.raises(KernelInputError, match="code 253 of expert 1, row 0, too large for bfloat16"):
        check_scales("s13", scales, torch.bfloat16)
