"""Layers of random numbers for tests, the tuner's check of correctness and the benchmark: the same for the same seed.

Codes are any, scale codes 118 to 127. x is drawn so that what enters the activation has a spread near 3: some of it is clamped
where a model clamps, most is not. x and the biases are float32 that bfloat16 can hold, so that a kernel is given the same
numbers as the reference. A layer costs its own bytes: 1.7 GB for all of gpt-oss-120b, nothing for the shapes of tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from kernels.errors import KernelInputError
from kernels.reference.align import I32
from kernels.reference.moe import moe
from kernels.reference.mxfp4 import F64, U8
from kernels.shapes import MXFP4_BLOCK, MoeShape

F32 = npt.NDArray[np.float32]
RoutingKind = Literal["uniform", "zipf", "one"]
#: uniform: k of the experts at random; zipf: the r-th most popular is drawn with weight 1 / r; one: all tokens choose the same k.
ROUTINGS: tuple[RoutingKind, ...] = get_args(RoutingKind)

_SCALE_CODES = (118, 127)  # both included
_SPREAD_OF_WEIGHTS = 1.07  # of random codes under such scales
_SPREAD_OF_GATE_UP = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """Arrays as the kernel takes them. Ids are of all experts that the router chooses from; where they are not all here
    (`shape.global_experts`), the last ones are and expert_map says so."""

    shape: MoeShape
    x: F32  # [T, H]
    w13: U8
    s13: U8
    w2: U8
    s2: U8
    b13: F32 | None
    b2: F32 | None
    topk_ids: I32  # [T, k]
    topk_weights: F32  # [T, k]
    expert_map: I32 | None  # [global experts]

    def reference(self, *, weights_on_input: bool = False) -> F64:
        return moe(
            self.x, self.w13, self.s13, self.w2, self.s2, self.topk_ids, self.topk_weights,
            b13=self.b13, b2=self.b2, activation=self.shape.activation, interleaved=self.shape.gate_up == "interleaved",
            expert_map=self.expert_map, weights_on_input=weights_on_input,
        )  # fmt: skip


def make_case(shape: MoeShape, tokens: int, seed: int, *, routing: RoutingKind = "uniform") -> Case:
    _require(shape, tokens, routing)
    random = np.random.default_rng(seed)
    e, h, i = shape.experts, shape.hidden, shape.intermediate
    x = random.standard_normal((tokens, h), np.float32) * np.float32(_SPREAD_OF_GATE_UP / (_SPREAD_OF_WEIGHTS * math.sqrt(h)))
    ids, weights = make_routing(shape, tokens, random, routing)
    return Case(
        shape,
        to_bf16(x),
        random.integers(0, 256, (e, 2 * i, h // 2), np.uint8),
        random.integers(*_SCALE_CODES, (e, 2 * i, h // MXFP4_BLOCK), np.uint8, endpoint=True),
        random.integers(0, 256, (e, h, i // 2), np.uint8),
        random.integers(*_SCALE_CODES, (e, h, i // MXFP4_BLOCK), np.uint8, endpoint=True),
        to_bf16(random.standard_normal((e, 2 * i), np.float32)) if shape.bias else None,
        to_bf16(random.standard_normal((e, h), np.float32)) if shape.bias else None,
        ids,
        weights,
        last_experts(shape),
    )


def make_routing(shape: MoeShape, tokens: int, random: np.random.Generator, routing: RoutingKind) -> tuple[I32, F32]:
    """Ids [T, k], a token's all different, and positive weights [T, k] whose sum is 1 for each token."""
    _require(shape, tokens, routing)
    rows = 1 if routing == "one" else tokens
    preference = random.gumbel(size=(rows, shape.routed_over))  # the largest k of it are k draws without replacement
    if routing == "zipf":
        preference -= np.log(1.0 + random.permutation(shape.routed_over))
    ids = np.argsort(-preference, axis=1, kind="stable")[:, : shape.top_k].astype(np.int32)
    weights = np.exp(random.standard_normal((tokens, shape.top_k)))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.ascontiguousarray(np.broadcast_to(ids, (tokens, shape.top_k))), weights.astype(np.float32)


def last_experts(shape: MoeShape) -> I32 | None:
    """The map of the last of shape.routed_over / shape.experts ranks, whose numbers differ from everyone's; None for one rank."""
    if shape.routed_over == shape.experts:
        return None
    elsewhere = shape.routed_over - shape.experts
    return np.concatenate([np.full(elsewhere, -1, np.int32), np.arange(shape.experts, dtype=np.int32)])


def to_bf16(values: npt.NDArray[Any]) -> F32:
    """Finite values rounded to bfloat16, ties to even, and held as float32: numpy has no bfloat16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return np.asarray((rounded & np.uint32(0xFFFF0000)).view(np.float32))


def _require(shape: MoeShape, tokens: int, routing: str) -> None:
    if routing not in ROUTINGS:
        raise KernelInputError(f"routing = {routing!r} must be one of {', '.join(ROUTINGS)}")
    if tokens < 1:
        raise KernelInputError(f"tokens = {tokens} must be at least 1")
    if not 1 <= shape.top_k <= shape.routed_over:
        raise KernelInputError(f"top_k = {shape.top_k} of {shape.model} must be in 1..{shape.routed_over}, its experts")
    if shape.weights != "mxfp4":
        raise KernelInputError(f"{shape.model} has {shape.weights} weights; a case must be of a layer with mxfp4 weights")
    for name, size in (("hidden", shape.hidden), ("intermediate", shape.intermediate)):
        if size < 1 or size % MXFP4_BLOCK:
            raise KernelInputError(f"{name} = {size} of {shape.model} must be a multiple of {MXFP4_BLOCK}, the block of a scale")
