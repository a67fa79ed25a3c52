"""Floors of a mixture-of-experts layer: the time below which it cannot be, from bytes and operations.

Uniform routing touches E_act = E (1 - (1 - k/E)^M) experts in expectation, E all experts that the router chooses from. Weights of
experts that no token chose are not read and never counted: figures that count them report impossible bandwidths at small M.
Floor per layer (both GEMMs) = max(weight bytes / bandwidth, operations / peak); activations and routing are not in it. The peak
is that of bf16, and with fp8 weights, whose activations are fp8 in vLLM too, twice that.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.accelerators import Accelerator
from kernels.shapes import BYTES_PER_WEIGHT, MoeShape

_OF_BF16_PEAK = {"fp8": 2.0}  # of matrix instructions with operands of 8 bits, on every target here


@dataclass(frozen=True, slots=True)
class Floor:
    m: int
    active_experts: float  # on this accelerator
    weight_bytes: float
    flops: float
    bytes_us: float
    flops_us: float

    @property
    def us(self) -> float:
        return max(self.bytes_us, self.flops_us)

    @property
    def bound(self) -> str:
        return "bytes" if self.bytes_us >= self.flops_us else "operations"


def active_experts(shape: MoeShape, m: int) -> float:
    """Expected number of this accelerator's experts that M tokens (of all ranks) touch under uniform routing."""
    return shape.experts * (1.0 - (1.0 - shape.top_k / shape.routed_over) ** m)


def floor(shape: MoeShape, m: int, on: Accelerator, experts: float | None = None) -> Floor:
    """`experts`: how many were really touched, where that is known; else the expectation."""
    active = active_experts(shape, m) if experts is None else experts
    weight_bytes = active * shape.parameters * BYTES_PER_WEIGHT[shape.weights]
    flops = 2.0 * m * shape.top_k * shape.experts / shape.routed_over * shape.parameters
    peak_tflops = on.bf16_tflops * _OF_BF16_PEAK.get(shape.weights, 1.0)
    return Floor(m, active, weight_bytes, flops, weight_bytes / on.bandwidth_tb_s * 1e-6, flops / peak_tflops * 1e-6)
