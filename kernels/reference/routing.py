"""From a router's logits to experts and their weights, as three families of models do it.

Of experts with equal scores the one with the lower id is chosen first; ids stand in descending order of the score that they
were chosen by. All is computed in float64, the weights are rounded to float32 at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.errors import KernelInputError
from kernels.reference.align import I32
from kernels.reference.mxfp4 import F64

Floats = npt.NDArray[Any]

_LEAST_SUM = 1e-20  # weights are divided by no less: scores may all be zero


@dataclass(frozen=True, slots=True)
class Routing:
    ids: I32  # [M, k]
    weights: npt.NDArray[np.float32]  # [M, k]


def softmax_topk(logits: Floats, k: int) -> Routing:
    """gpt-oss: the k largest logits [M, E], then softmax over those kept."""
    scores = _logits(logits, k)
    ids = _largest(scores, k)
    kept = np.take_along_axis(scores, ids, axis=1)
    weights = np.exp(kept - kept.max(axis=1, keepdims=True))
    return _routing(ids, weights / weights.sum(axis=1, keepdims=True))


def grouped_sigmoid_topk(
    logits: Floats,
    k: int,
    *,
    groups: int = 1,
    kept_groups: int = 1,
    bias: Floats | None = None,
    renormalise: bool = True,
    routed_scaling_factor: float = 1.0,
) -> Routing:
    """DeepSeek-V3. Scores are sigmoid(logits [M, E]). The choice is by score + bias [E], and only from the `kept_groups` of
    the `groups` equal runs of experts whose two best such sums are largest together (without a bias: whose best score is
    largest). Weights are the scores without the bias, divided by their sum if `renormalise`, times the scaling factor."""
    scores = np.exp(-np.logaddexp(0.0, -_logits(logits, k)))
    m, experts = scores.shape
    if groups < 1 or experts % groups:
        raise KernelInputError(f"groups = {groups} must divide {experts}, the experts")
    if not 1 <= kept_groups <= groups or kept_groups * (experts // groups) < k:
        raise KernelInputError(f"kept_groups = {kept_groups} must be in 1..{groups} and have room for k = {k} experts")
    by = _with_bias(scores, bias)
    each = by.reshape(m, groups, experts // groups)
    best = np.sort(each, axis=2)[:, :, -2:].sum(axis=2) if bias is not None else each.max(axis=2)
    kept = np.zeros((m, groups), bool)
    np.put_along_axis(kept, _largest(best, kept_groups), True, axis=1)
    ids = _largest(np.where(kept[:, :, None], each, -np.inf).reshape(m, experts), k)
    return _routing(ids, _weights(scores, ids, renormalise, routed_scaling_factor))


def sqrt_softplus_topk(
    logits: Floats,
    k: int,
    *,
    bias: Floats | None = None,
    renormalise: bool = True,
    routed_scaling_factor: float = 1.0,
    ids: npt.NDArray[Any] | None = None,
) -> Routing:
    """DeepSeek-V4. Scores are sqrt(log(1 + exp(logits [M, E]))), the choice is by score + bias [E], weights are the scores
    without the bias, divided by their sum if `renormalise`, times the scaling factor. `ids` [M, k]: of the first layers, whose
    experts come from a table of token ids instead; only the weights are by score then."""
    scores = np.sqrt(np.logaddexp(0.0, _logits(logits, k)))
    chosen = _largest(_with_bias(scores, bias), k) if ids is None else _given(ids, len(scores), k, scores.shape[1])
    return _routing(chosen, _weights(scores, chosen, renormalise, routed_scaling_factor))


def _largest(scores: F64, k: int) -> npt.NDArray[np.intp]:
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def _weights(scores: F64, ids: npt.NDArray[np.intp], renormalise: bool, factor: float) -> F64:
    weights = np.take_along_axis(scores, ids, axis=1)
    if renormalise:
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), _LEAST_SUM)
    return np.asarray(weights * factor, np.float64)


def _routing(ids: npt.NDArray[np.intp], weights: F64) -> Routing:
    return Routing(ids.astype(np.int32), weights.astype(np.float32))


def _logits(logits: Floats, k: int) -> F64:
    wide = np.asarray(logits, np.float64)
    if wide.ndim != 2:
        raise KernelInputError(f"logits {wide.shape}: must be [M, E]")
    if not 1 <= k <= wide.shape[1]:
        raise KernelInputError(f"k = {k} must be in 1..{wide.shape[1]}, the experts")
    if not np.isfinite(wide).all():
        token = int(np.argwhere(~np.isfinite(wide))[0, 0])
        raise KernelInputError(f"logits of token {token} have a NaN or an infinity; all must be finite")
    return wide


def _with_bias(scores: F64, bias: Floats | None) -> F64:
    if bias is None:
        return scores
    if np.shape(bias) != scores.shape[1:]:
        raise KernelInputError(f"bias {np.shape(bias)}: must be {scores.shape[1:]}, one for each expert")
    return scores + np.asarray(bias, np.float64)


def _given(ids: npt.NDArray[Any], m: int, k: int, experts: int) -> npt.NDArray[np.intp]:
    if ids.shape != (m, k) or (ids.size and not 0 <= ids.min() <= ids.max() < experts):
        raise KernelInputError(f"ids {ids.shape}: must be [{m}, {k}] with experts 0..{experts - 1}")
    return ids.astype(np.intp)
