"""What a GEMM of the layer is launched with, as data and without torch or triton: the compiler gate compiles from it just what
`layer` launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, get_args

from kernels.errors import KernelInputError
from kernels.shapes import MXFP4_BLOCK, GateUp, MoeShape
from kernels.tile import Tile

Dtype = Literal["bf16", "fp16"]
Gemm = Literal["gate_up", "down"]
Constant = bool | int | float | str | None

#: Columns of one program of the combine, and its warps.
COMBINE_BLOCK, COMBINE_WARPS = 512, 4
_2_GIB = 2**31


@dataclass(frozen=True, slots=True)
class Launch:
    """Arguments of one jit function: each is either in `signature` (at run time) or in `constants`."""

    function: Literal["moe_gemm", "moe_combine"]
    signature: Mapping[str, str]  # "*bf16", "*u8", "i32"
    constants: Mapping[str, Constant]  # constexprs, and the pointers that are not given (None)
    divisible: tuple[str, ...]  # addresses that are multiples of 16
    within_2gb: tuple[str, ...]  # tensors of at most 2 GiB, which triton reads through buffer instructions on AMD (pointer_range)
    column_blocks: int  # programs per block of rows
    tile: Tile

    def options(self, *, amd: bool) -> dict[str, bool | int]:
        """Of the compiler. Fusion of multiply and add is spelt out, since its default changes with triton 3.10."""
        chosen: dict[str, bool | int] = {
            "num_warps": self.tile.warps,
            "num_stages": self.tile.stages,
            "enable_fp_fusion": True,
        }
        if amd:
            chosen |= {
                "waves_per_eu": self.tile.waves_per_eu,
                "matrix_instr_nonkdim": self.tile.nonkdim,
                "kpack": self.tile.kpack,
            }
        return chosen


@lru_cache(maxsize=1024)
def gemm_arguments(shape: MoeShape, tile: Tile, dtype: Dtype, which: Gemm, *, weights_on_input: bool = False) -> Launch:
    """Of one of a layer's two GEMMs. Activations are taken to be within 2 GiB, as those of a decode step are."""
    if dtype not in get_args(Dtype):
        raise KernelInputError(f"dtype = {dtype!r} must be one of {', '.join(get_args(Dtype))}")
    if which not in get_args(Gemm):
        raise KernelInputError(f"which = {which!r} must be one of {', '.join(get_args(Gemm))}")
    if shape.gate_up not in get_args(GateUp):
        raise KernelInputError(f"gate_up = {shape.gate_up!r} must be one of {', '.join(get_args(GateUp))}")
    if shape.weights != "mxfp4":
        raise KernelInputError(f"weights = {shape.weights!r} of {shape.model}: this kernel is for mxfp4")
    for name, size in (("hidden", shape.hidden), ("intermediate", shape.intermediate)):
        if size < MXFP4_BLOCK or size % MXFP4_BLOCK:
            raise KernelInputError(f"{name} = {size} must be a multiple of {MXFP4_BLOCK}, the block of a scale")
    gated = which == "gate_up"
    n, k = (2 * shape.intermediate, shape.hidden) if gated else (shape.hidden, shape.intermediate)
    if n * (k // 2) >= _2_GIB:
        raise KernelInputError(f"{n} x {k} weights of one expert ({which}): must be below {2 * _2_GIB:,}, 2 GiB")
    interleaved = shape.gate_up == "interleaved"
    signature = {
        "x": f"*{dtype}", "w": "*u8", "scales": "*u8", "bias": "*fp32", "out": f"*{dtype}",
        "sorted_ids": "*i32", "block_experts": "*i32", "padded": "*i32", "router_weights": "*fp32", "pairs": "i32",
    }  # fmt: skip
    constants: dict[str, Constant] = {
        "N": n, "K": k, "TOKEN_PAIRS": shape.top_k if gated else 1, "GATED": gated,
        "PAIR_STRIDE": 2 if interleaved else 1, "HALF_STRIDE": 1 if interleaved else shape.intermediate,
        "ALPHA": float(shape.activation.alpha), "LIMIT": float(shape.activation.limit), "PLUS_ONE": shape.activation.plus_one,
        "FORMAT": dtype,
        "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "GROUP_M": tile.group_m,
    }  # fmt: skip
    if not gated:  # one compilation for all models of these sizes
        constants |= {"PAIR_STRIDE": 1, "HALF_STRIDE": 1, "ALPHA": 1.0, "LIMIT": 0.0, "PLUS_ONE": False}
    absent = {"bias": not shape.bias, "router_weights": not (gated and weights_on_input)}
    for name in (each for each, away in absent.items() if away):
        del signature[name]
        constants[name] = None
    pointers = tuple(name for name, kind in signature.items() if kind.startswith("*"))
    large = () if shape.experts * n * (k // 2) < _2_GIB else ("w",)
    return Launch(
        "moe_gemm",
        MappingProxyType(signature),
        MappingProxyType(constants),
        pointers,
        tuple(name for name in pointers if name not in large),
        -(-n // tile.block_n),
        tile,
    )


@lru_cache(maxsize=64)
def combine_arguments(shape: MoeShape, dtype: Dtype, *, mapped: bool = False, weights_on_input: bool = False) -> Launch:
    """`mapped`: with a map from all experts to those here."""
    signature = {
        "y": f"*{dtype}", "topk_ids": "*i32", "expert_map": "*i32", "router_weights": "*fp32", "out": f"*{dtype}",
        "experts": "i32",
    }  # fmt: skip
    constants: dict[str, Constant] = {"H": shape.hidden, "TOP_K": shape.top_k, "BLOCK_H": COMBINE_BLOCK}
    for name, given in (("expert_map", mapped), ("router_weights", not weights_on_input)):
        if not given:
            del signature[name]
            constants[name] = None
    pointers = tuple(name for name, kind in signature.items() if kind.startswith("*"))
    return Launch(
        "moe_combine",
        MappingProxyType(signature),
        MappingProxyType(constants),
        pointers,
        pointers,
        -(-shape.hidden // COMBINE_BLOCK),
        Tile(warps=COMBINE_WARPS, stages=1),
    )
