"""Proof that the kernel works in this very process, with this device, driver, torch and triton: one tiny layer against numpy.

Once a process for each configuration that may be chosen, before the first layer is taken from vLLM: what a compiler gets wrong
here would otherwise be found in the tokens.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from kernels.errors import NotHere
from kernels.moe.layer import fused_moe
from kernels.reference.cases import make_case
from kernels.reference.moe import relative_error
from kernels.shapes import GPT_OSS_SWIGLU, MoeShape
from kernels.tile import LayerConfig

ERROR_LIMIT = 1e-2
#: Neither size fills its last tile, one rank of several has it, and not every expert has a token.
SHAPE = MoeShape(
    "proof", experts=4, top_k=2, hidden=160, intermediate=96,
    gate_up="interleaved", bias=True, activation=GPT_OSS_SWIGLU, global_experts=6,
)  # fmt: skip
_TOKENS, _SEED = 3, 8


@lru_cache(maxsize=64)
def of_kernel(config: LayerConfig, device: torch.device) -> float:
    """The relative error. NotHere where it is too large, or anything fails."""
    tiles = f"{config.gate_up} and {config.down}"
    case = make_case(SHAPE, _TOKENS, _SEED)

    def on_device(array: object, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.tensor(array).to(device=device, dtype=dtype)  # a copy: torch warns of arrays that are not to be written

    try:
        result = fused_moe(
            on_device(case.x, torch.bfloat16), on_device(case.w13), on_device(case.s13), on_device(case.w2), on_device(case.s2),
            on_device(case.topk_ids), on_device(case.topk_weights),
            config=config, activation=SHAPE.activation, gate_up=SHAPE.gate_up,
            b13=on_device(case.b13), b2=on_device(case.b2), expert_map=on_device(case.expert_map),
        )  # fmt: skip
        error = relative_error(result.to(torch.float32).cpu().numpy(), case.reference())
    except Exception as failure:  # of any layer below: the compiler, the driver
        said = str(failure).strip().splitlines()
        raise NotHere(
            f"the kernel does not run here with {tiles}: {type(failure).__name__}: {said[0] if said else ''}"
        ) from failure
    if not error <= ERROR_LIMIT:
        raise NotHere(
            f"the kernel computes wrong numbers here with {tiles}: relative error {error:.3g}, at most {ERROR_LIMIT:g} is right"
        )
    return error
