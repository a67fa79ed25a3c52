"""The mixture-of-experts layer in float64: gate/up GEMM, SwiGLU, down GEMM, combination by the router's weights.

Nothing is rounded on the way: that a kernel keeps the activations between its two GEMMs in 16 bits is part of its error.
One expert is decoded at a time, so memory is that of one expert and of the pairs' rows, not of the layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.errors import KernelInputError
from kernels.reference.align import I32, local_experts
from kernels.reference.mxfp4 import F64, U8, decode
from kernels.shapes import Activation

Floats = npt.NDArray[Any]


def moe(
    x: Floats,
    w13: U8,
    s13: U8,
    w2: U8,
    s2: U8,
    ids: npt.NDArray[Any],
    weights: Floats,
    *,
    b13: Floats | None,
    b2: Floats | None,
    activation: Activation,
    interleaved: bool,
    expert_map: npt.NDArray[Any] | None = None,
    weights_on_input: bool = False,
) -> F64:
    """x [M, H], weights of the E experts here, ids and weights [M, k] → out [M, H] = sum over k of

        weight * (down(swiglu(gate_up(x) + b13)) + b2)        or, with weights_on_input,
        down(swiglu(gate_up(weight * x) + b13)) + b2

    Pairs whose expert is not here (expert_map says -1, or the id is -1) contribute nothing, whatever their weight.
    """
    m, hidden = _matrix("x", x)
    if np.shape(ids) != np.shape(weights) or np.ndim(ids) != 2 or len(ids) != m:
        raise KernelInputError(
            f"ids {np.shape(ids)} and weights {np.shape(weights)}: both must be [{m}, k] beside x [{m}, {hidden}]"
        )
    ids = np.asarray(ids)
    experts = len(w13) if expert_map is None else len(expert_map)
    here, local = local_experts(ids, experts, expert_map)
    for name, array in (("w13", w13), ("w2", w2)):
        if array.ndim != 3 or len(array) != local:
            raise KernelInputError(f"{name} {array.shape}: must be [E, rows, columns / 2] with E = {local}, the experts here")
    pair_experts = here.ravel()
    factors = np.where(here >= 0, np.asarray(weights, np.float64), 0.0)
    rows = np.repeat(np.asarray(x, np.float64), ids.shape[1], axis=0)
    if weights_on_input:
        rows *= factors.reshape(-1, 1)
        factors = (here >= 0).astype(np.float64)
    inner = swiglu(grouped_gemm(rows, pair_experts, w13, s13, b13), activation, interleaved=interleaved)
    return combine(grouped_gemm(inner, pair_experts, w2, s2, b2), factors)


def grouped_gemm(rows: Floats, experts: I32, codes: U8, scales: U8, bias: Floats | None = None) -> F64:
    """rows [P, K] times each row's expert's weights [E, N, K] transposed, plus its bias [E, N] → [P, N]; zeros where the expert
    is -1."""
    _, inner = _matrix("rows", rows)
    if codes.ndim != 3 or 2 * codes.shape[2] != inner:
        raise KernelInputError(f"codes {codes.shape}: must be [E, N, {inner} / 2] beside rows {rows.shape}")
    if bias is not None and bias.shape != codes.shape[:2]:
        raise KernelInputError(f"bias {bias.shape}: must be {codes.shape[:2]} beside codes {codes.shape}")
    wide = np.asarray(rows, np.float64)
    out = np.zeros((len(rows), codes.shape[1]))
    for expert in np.unique(experts[experts >= 0]):
        of_it = np.flatnonzero(experts == expert)
        product = wide[of_it] @ decode(codes[expert], scales[expert]).T
        out[of_it] = product if bias is None else product + np.asarray(bias[expert], np.float64)
    return out


def swiglu(gate_up: F64, activation: Activation, *, interleaved: bool) -> F64:
    """[P, 2I] → [P, I]; gate and up are columns 0::2 and 1::2, or the first and the second half."""
    _, wide = _matrix("gate_up", gate_up)
    if wide % 2:
        raise KernelInputError(f"gate_up {gate_up.shape}: its columns, gates and ups, must be even in number")
    gate, up = (gate_up[:, 0::2], gate_up[:, 1::2]) if interleaved else (gate_up[:, : wide // 2], gate_up[:, wide // 2 :])
    if activation.limit:
        gate, up = np.minimum(gate, activation.limit), np.clip(up, -activation.limit, activation.limit)
    sigmoid = np.exp(-np.logaddexp(0.0, -activation.alpha * gate))  # neither overflows nor cancels
    return np.asarray(gate * sigmoid * (up + float(activation.plus_one)), np.float64)


def combine(rows: F64, weights: Floats) -> F64:
    """Rows of pairs [M * k, H] and weights [M, k] → [M, H]."""
    m, k = weights.shape
    return np.asarray(np.einsum("mk,mkh->mh", np.asarray(weights, np.float64), rows.reshape(m, k, -1)), np.float64)


def relative_error(a: Floats, b: Floats) -> float:
    """||a - b|| / ||b|| in the Frobenius norm: free of scale, so that no tolerance can be too wide for small numbers.
    Infinite if either has anything that is not finite; b is the truth."""
    wide, truth = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if wide.shape != truth.shape:
        raise KernelInputError(f"shapes {wide.shape} and {truth.shape} must be the same to be compared")
    if not (np.isfinite(wide).all() and np.isfinite(truth).all()):
        return float("inf")
    off, size = float(np.linalg.norm(wide - truth)), float(np.linalg.norm(truth))
    if size == 0:
        return float("inf") if off else 0.0
    return off / size


def _matrix(name: str, array: Floats) -> tuple[int, int]:
    if array.ndim != 2:
        raise KernelInputError(f"{name} {array.shape}: must have two axes")
    return int(array.shape[0]), int(array.shape[1])
