"""Tuning vLLM's own fused_moe (bf16, fp8, int4 weights): its space of configurations, and its kernel as a subject to measure.

The space and the names need neither torch nor vLLM. What is measured is `fused_experts` of the vLLM that is installed, under
`override_config`, as its tables later configure it: one tile for both GEMMs.

vLLM's kernels mask the tail of K, so BLOCK_SIZE_K need not divide it (2880 has no power of two above 64 in it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from kernels.accelerators import Accelerator
from kernels.errors import KernelInputError, NotHere
from kernels.shapes import BYTES_PER_WEIGHT, GPT_OSS_SWIGLU, SILU, MoeShape

if TYPE_CHECKING:
    import torch

    from kernels.tuner.measure import Call

#: In the names of vLLM's tables.
TABLE_DTYPE: Final[dict[str, str]] = {"bf16": "bf16", "fp8": "fp8_w8a8", "int4": "int4_w4a16"}
FP8_BLOCK: Final = 128  # weights and activations have a scale a block of so many
INT4_GROUP: Final = 128
#: fp8 rounds activations to three bits of mantissa, 2.6e-2 each time, before both GEMMs: by that alone the result is 5e-2 off.
ERROR_LIMIT: Final = {"bf16": 1e-2, "fp8": 8e-2, "int4": 1e-2}


def block_shape(weights: str) -> tuple[int, int] | None:
    """As in the table's name."""
    return (FP8_BLOCK, FP8_BLOCK) if weights == "fp8" else None


def refuse(shape: MoeShape) -> None:
    """KernelInputError for a layer that vLLM's fused_moe cannot compute with these weights."""
    if shape.weights == "int4" and (shape.hidden % INT4_GROUP or shape.intermediate % INT4_GROUP):
        raise KernelInputError(
            f"weights = int4: hidden {shape.hidden} and intermediate {shape.intermediate} of {shape.model} must be multiples of "
            f"{INT4_GROUP}, the group of a scale"
        )
    if (shape.activation, shape.gate_up) not in ((SILU, "concatenated"), (GPT_OSS_SWIGLU, "interleaved")):
        raise KernelInputError(f"{shape.model}: vLLM's fused_moe has no activation as this model's ({shape.activation})")


# --- the space ----------------------------------------------------------------------------------------------


def space(shape: MoeShape, m: int, on: Accelerator) -> list[dict[str, int]]:
    """Configurations that fit the accelerator's shared memory, in vLLM's fields."""
    return [config for config in _all(shape, m, on) if _shared_bytes(config, shape, on) <= on.shared_kib * 1024]


def least_us(config: Mapping[str, int], shape: MoeShape, m: int, on: Accelerator) -> float:
    """No configuration of this tile is faster: bytes of touched experts, operations of padded tiles. A bound, no prediction."""
    from kernels.roofline import floor

    expected = floor(shape, m, on)
    pairs = m * shape.top_k * shape.experts / shape.routed_over
    rows = max(pairs, expected.active_experts * config["BLOCK_SIZE_M"])
    return max(expected.bytes_us, expected.flops_us * rows / pairs)


def _all(shape: MoeShape, m: int, on: Accelerator) -> Iterator[dict[str, int]]:
    per_expert = m * shape.top_k / shape.routed_over
    block_m = [size for size in (16, 32, 64, 128, 256) if size == 16 or size <= 4 * per_expert]
    block_k = [size for size in (64, 128, 256) if shape.weights != "fp8" or size <= FP8_BLOCK]
    group_m = (1,) if per_expert <= 16 else (1, 8, 32)
    warps, stages = ((2, 4, 8), (2,)) if on.is_amd else ((4, 8), (2, 3, 4, 5))
    extras: list[dict[str, int]] = [{}]
    if on.is_amd:
        extras = [{"waves_per_eu": waves, "matrix_instr_nonkdim": 16, "kpack": 1} for waves in (0, 2)]
    if shape.weights == "int4":  # its kernel has this argument, and vLLM passes it from the table only
        extras = [extra | {"SPLIT_K": 1} for extra in extras]
    for m_size, n_size, k_size, group, warp, stage, extra in product(
        block_m, (32, 64, 128, 256), block_k, group_m, warps, stages, extras
    ):
        yield {
            "BLOCK_SIZE_M": m_size, "BLOCK_SIZE_N": n_size, "BLOCK_SIZE_K": k_size, "GROUP_SIZE_M": group,
            "num_warps": warp, "num_stages": stage, **extra,
        }  # fmt: skip


def _shared_bytes(config: Mapping[str, int], shape: MoeShape, on: Accelerator) -> float:
    """Of the tiles that a pipeline holds at once; AMD keeps one less in shared memory than it has stages."""
    of_x = 1.0 if shape.weights == "fp8" else 2.0
    of_w = 0.5 if shape.weights == "int4" else BYTES_PER_WEIGHT[shape.weights]
    tile = config["BLOCK_SIZE_K"] * (config["BLOCK_SIZE_M"] * of_x + config["BLOCK_SIZE_N"] * of_w)
    return tile * max(1, config["num_stages"] - (1 if on.is_amd else 0))


# --- the subject --------------------------------------------------------------------------------------------


def symbols() -> dict[str, Any]:
    """What is used of vLLM. NotHere, with the name, where an installed version has it no more."""
    try:
        from vllm.model_executor.layers.fused_moe import override_config
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation
        from vllm.model_executor.layers.fused_moe.config import (
            FUSED_MOE_UNQUANTIZED_CONFIG,
            fp8_w8a8_moe_quant_config,
            int4_w4a16_moe_quant_config,
        )
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts, get_config_file_name
        from vllm.platforms import current_platform
    except ImportError as error:
        raise NotHere(
            f"vLLM's fused_moe cannot be had from this Python: {error}; --python names one with vLLM 0.32 or 0.33"
        ) from error
    return {
        "override_config": override_config, "MoEActivation": MoEActivation, "bf16": FUSED_MOE_UNQUANTIZED_CONFIG,
        "fp8": fp8_w8a8_moe_quant_config, "int4": int4_w4a16_moe_quant_config, "fused_experts": fused_experts,
        "get_config_file_name": get_config_file_name, "current_platform": current_platform,
    }  # fmt: skip


def subject_of(shape: MoeShape, dtype: str, device: torch.device, seed: int) -> VllmSubject:
    import torch

    from kernels.tuner.measure import sets_that_fit

    vllm = symbols()
    sets = sets_that_fit(shape.experts * shape.parameters * BYTES_PER_WEIGHT[shape.weights], device, rehearse=False)
    generator = torch.Generator(device).manual_seed(seed)
    return VllmSubject(shape, dtype, device, vllm, [_Weights(shape, dtype, vllm, generator) for _ in range(sets)])


class VllmSubject:
    def __init__(
        self, shape: MoeShape, dtype: str, device: torch.device, vllm: Mapping[str, Any], weights: list[_Weights]
    ) -> None:
        from kernels.tuner.measure import expert_map

        self.shape, self.sets, self.error_limit = shape, len(weights), ERROR_LIMIT[shape.weights]
        self._vllm, self._weights = vllm, weights
        self._map = expert_map(shape, device)
        kinds = vllm["MoEActivation"]
        self._activation = kinds.SWIGLUOAI if shape.activation == GPT_OSS_SWIGLU else kinds.SILU

    def run(self, call: Call, what: str, config: Mapping[str, Any], out: torch.Tensor) -> torch.Tensor:
        """vLLM allocates its result itself."""
        weights = self._weights[call.weight_set]
        with self._vllm["override_config"](dict(config)):
            result: torch.Tensor = self._vllm["fused_experts"](
                call.x, weights.w13, weights.w2, call.weights, call.ids, activation=self._activation,
                global_num_experts=self.shape.routed_over, expert_map=self._map, quant_config=weights.quant,
            )  # fmt: skip
        return result

    def layer(self, what: str, config: Mapping[str, Any]) -> dict[str, Any]:
        return dict(config)

    def poison(self) -> None:
        """vLLM allocates what it keeps in between at each call: what can be poisoned is the allocator's free memory."""
        import torch

        if torch.cuda.is_available():
            free = torch.full((64 * 2**20,), float("nan"), dtype=torch.float32, device="cuda")
            del free

    def matrices(self, weight_set: int, expert: int) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        weights = self._weights[weight_set]
        return weights.plain(weights.w13, weights.s13, expert), weights.plain(weights.w2, weights.s2, expert), None, None


class _Weights:
    """Random, made expert by expert: a whole layer in float32 would not fit beside them."""

    def __init__(self, shape: MoeShape, dtype: str, vllm: Mapping[str, Any], generator: torch.Generator) -> None:
        import torch

        self._kind, self._generator = shape.weights, generator
        self._type = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        self._fp8 = vllm["current_platform"].fp8_dtype() if self._kind == "fp8" else None
        self.w13, self.s13 = self._made(shape.experts, 2 * shape.intermediate, shape.hidden)
        self.w2, self.s2 = self._made(shape.experts, shape.hidden, shape.intermediate)
        if self._kind == "fp8":
            self.quant = vllm["fp8"](w1_scale=self.s13, w2_scale=self.s2, block_shape=[FP8_BLOCK, FP8_BLOCK])
        elif self._kind == "int4":
            self.quant = vllm["int4"](w1_scale=self.s13, w2_scale=self.s2, block_shape=[0, INT4_GROUP])
        else:
            self.quant = vllm["bf16"]

    def plain(self, codes: torch.Tensor, scales: torch.Tensor | None, expert: int) -> torch.Tensor:
        import torch

        of = codes[expert]
        if scales is None:
            return of.float()
        if self._kind == "fp8":
            wide = scales[expert].repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
            return of.float() * wide[: of.shape[0], : of.shape[1]]
        nibbles = torch.stack((of & 15, of >> 4), dim=-1).reshape(of.shape[0], -1).float() - 8.0
        return nibbles * scales[expert].float().repeat_interleave(INT4_GROUP, 1)

    def _made(self, experts: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        import torch

        device, generator, std = self._generator.device, self._generator, columns**-0.5
        if self._kind == "int4":
            codes = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8, generator=generator, device=device)
            spread = torch.rand(experts, rows, columns // INT4_GROUP, generator=generator, device=device) + 0.5
            return codes, (spread * std / 4.0).to(self._type)
        weights = torch.empty(experts, rows, columns, dtype=self._fp8 or self._type, device=device)
        for expert in range(experts):
            values = torch.randn(rows, columns, generator=generator, device=device)
            weights[expert] = (values if self._kind == "fp8" else values * std).to(weights.dtype)
        if self._kind != "fp8":
            return weights, None
        blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        return weights, (torch.rand(experts, *blocks, generator=generator, device=device) + 0.5) * std
