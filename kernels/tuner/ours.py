"""Our MXFP4 kernel as a subject to measure: random weights, launches of the layer and of each GEMM alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from kernels.moe.align import Alignment, moe_align
from kernels.moe.launch import gemm_arguments
from kernels.moe.layer import DTYPES as DTYPES_OF
from kernels.moe.layer import fused_moe, run_gemm, workspace_bytes
from kernels.shapes import BYTES_PER_WEIGHT, MXFP4_BLOCK, MoeShape
from kernels.tile import LayerConfig, Tile
from kernels.tuner.measure import ERROR_LIMIT, Call, expert_map, sets_that_fit

_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def dequantise(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[N, K/2] and [N, K/32] → float32 [N, K]."""
    table = torch.tensor(_E2M1, dtype=torch.float32, device=codes.device)
    values = table[torch.stack((codes & 15, codes >> 4), dim=-1).reshape(codes.shape[0], -1).long()]
    powers = torch.exp2(scales.float() - 127.0).repeat_interleave(MXFP4_BLOCK, dim=-1)
    return values * powers


@dataclass(slots=True)
class Mxfp4Weights:
    w13: torch.Tensor
    s13: torch.Tensor
    w2: torch.Tensor
    s2: torch.Tensor
    b13: torch.Tensor | None
    b2: torch.Tensor | None

    @classmethod
    def random(cls, shape: MoeShape, generator: torch.Generator) -> Mxfp4Weights:
        e, h, i, device = shape.experts, shape.hidden, shape.intermediate, generator.device

        def whole(low: int, high: int, *size: int) -> torch.Tensor:
            return torch.randint(low, high, size, dtype=torch.uint8, generator=generator, device=device)

        def bias(*size: int) -> torch.Tensor | None:
            return torch.randn(size, generator=generator, device=device) * 0.1 if shape.bias else None

        return cls(
            whole(0, 256, e, 2 * i, h // 2), whole(118, 124, e, 2 * i, h // MXFP4_BLOCK),
            whole(0, 256, e, h, i // 2), whole(118, 124, e, h, i // MXFP4_BLOCK), bias(e, 2 * i), bias(e, h),
        )  # fmt: skip


class Mxfp4Subject:
    """Our kernel. A single GEMM is launched on tokens that are aligned already and, for the down GEMM, on random activations."""

    error_limit = ERROR_LIMIT

    def __init__(self, shape: MoeShape, dtype: torch.dtype, weights: list[Mxfp4Weights], generator: torch.Generator) -> None:
        self.shape, self.sets, self.weights = shape, len(weights), weights
        self._dtype, self._generator, self._map = dtype, generator, expert_map(shape, generator.device)
        self._workspace = torch.empty(0, dtype=torch.uint8, device=generator.device)
        self._aligned: dict[tuple[int, int], tuple[Call, Alignment]] = {}
        self._inner: dict[int, torch.Tensor] = {}

    @classmethod
    def made(cls, shape: MoeShape, dtype: torch.dtype, device: torch.device, seed: int, *, rehearse: bool) -> Mxfp4Subject:
        generator = torch.Generator(device).manual_seed(seed)
        sets = sets_that_fit(shape.experts * shape.parameters * BYTES_PER_WEIGHT["mxfp4"], device, rehearse=rehearse)
        return cls(shape, dtype, [Mxfp4Weights.random(shape, generator) for _ in range(sets)], generator)

    def run(self, call: Call, what: str, config: Mapping[str, Any], out: torch.Tensor) -> torch.Tensor:
        weights, shape = self.weights[call.weight_set], self.shape
        if what == "layer":
            return fused_moe(
                call.x, weights.w13, weights.s13, weights.w2, weights.s2, call.ids, call.weights, config=LayerConfig.of(config),
                activation=shape.activation, gate_up=shape.gate_up, b13=weights.b13, b2=weights.b2, expert_map=self._map,
                out=out, workspace=self._room(call),
            )  # fmt: skip
        tile, dtype, pairs = Tile.of(config), DTYPES_OF[self._dtype], call.ids.numel()
        aligned, room = self._alignment(call, tile.block_m), self._room(call)
        if what == "gate_up":
            inner = room[: pairs * shape.intermediate * 2].view(self._dtype).view(pairs, -1)
            run_gemm(
                gemm_arguments(shape, tile, dtype, what),
                call.x,
                weights.w13,
                weights.s13,
                weights.b13,
                inner,
                aligned,
                call.weights,
            )
            return inner
        assert what == "down", what
        rows = room[: pairs * shape.hidden * 2].view(self._dtype).view(pairs, -1)
        inner = self._activations(pairs)
        run_gemm(gemm_arguments(shape, tile, dtype, what), inner, weights.w2, weights.s2, weights.b2, rows, aligned, call.weights)
        return rows

    def poison(self) -> None:
        self._workspace.fill_(0xFF)  # NaN in either type

    def matrices(
        self, weight_set: int, expert: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        of = self.weights[weight_set]
        return (
            dequantise(of.w13[expert], of.s13[expert]), dequantise(of.w2[expert], of.s2[expert]),
            None if of.b13 is None else of.b13[expert], None if of.b2 is None else of.b2[expert],
        )  # fmt: skip

    def layer(self, what: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """What the gate runs for a tile of one GEMM: the layer of it and a plain tile with the same BLOCK_SIZE_M."""
        if what == "layer":
            return dict(config)
        tile = Tile.of(config)
        plain = Tile(block_m=tile.block_m)
        return LayerConfig(tile, plain).json() if what == "gate_up" else LayerConfig(plain, tile).json()

    def _room(self, call: Call) -> torch.Tensor:
        needed = workspace_bytes(call.x.shape[0], self.shape.top_k, self.shape.hidden, self.shape.intermediate)
        if self._workspace.numel() < needed:
            self._workspace = torch.full((needed,), 0xFF, dtype=torch.uint8, device=call.x.device)
        return self._workspace

    def _alignment(self, call: Call, block_m: int) -> Alignment:
        key = (id(call), block_m)
        if key not in self._aligned:
            self._aligned[key] = call, moe_align(call.ids, block_m, self.shape.experts, self._map)
        return self._aligned[key][1]

    def _activations(self, pairs: int) -> torch.Tensor:
        if pairs not in self._inner:
            self._inner = {
                pairs: torch.randn(pairs, self.shape.intermediate, generator=self._generator, device=self._generator.device).to(
                    self._dtype
                )
            }
        return self._inner[pairs]
