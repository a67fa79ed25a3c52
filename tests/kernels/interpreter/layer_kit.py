"""Layers of random numbers through the kernel and through the reference. Imports torch and triton only when something is run, so
that tests can be collected without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernels.reference.cases import Case
from kernels.reference.moe import relative_error
from kernels.tile import LayerConfig

if TYPE_CHECKING:
    import torch

NAN_BYTE = 0xFF  # two of them are a NaN in bfloat16 and in float16


@dataclass(frozen=True, slots=True)
class Ran:
    error: float
    out: torch.Tensor  # [T, H]
    rows: torch.Tensor  # [T * k, H] of the down GEMM


def tensor(array: npt.NDArray[Any] | None, dtype: torch.dtype | None = None) -> Any:
    import torch

    return None if array is None else torch.from_numpy(np.array(array)).to(dtype)


def weights_of(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of fused_moe that a case decides."""
    return {
        "x": tensor(case.x, dtype),
        "w13": tensor(case.w13), "s13": tensor(case.s13), "w2": tensor(case.w2), "s2": tensor(case.s2),
        "topk_ids": tensor(case.topk_ids), "topk_weights": tensor(case.topk_weights),
        "activation": case.shape.activation, "gate_up": case.shape.gate_up,
        "b13": tensor(case.b13), "b2": tensor(case.b2), "expert_map": tensor(case.expert_map),
    }  # fmt: skip


def run(case: Case, config: LayerConfig, dtype: str = "bfloat16", *, weights_on_input: bool = False) -> Ran:
    """Everything that the layer writes holds NaN before."""
    import torch

    from kernels.moe.layer import fused_moe, workspace_bytes

    kind = getattr(torch, dtype)
    tokens, hidden = case.x.shape
    pairs, intermediate = case.topk_ids.size, case.shape.intermediate
    out = torch.full((tokens, hidden), float("nan"), dtype=kind)
    size = workspace_bytes(tokens, case.shape.top_k, hidden, intermediate)
    workspace = torch.full((size,), NAN_BYTE, dtype=torch.uint8)
    arguments = weights_of(case, kind)
    found = fused_moe(**arguments, config=config, weights_on_input=weights_on_input, out=out, workspace=workspace)
    assert found is out
    begin = size - workspace_bytes(tokens, case.shape.top_k, hidden, 0)
    rows = workspace[begin : begin + pairs * hidden * 2].view(kind).view(pairs, hidden)
    right = case.reference(weights_on_input=weights_on_input)
    return Ran(relative_error(out.float().numpy(), right), out, rows)
