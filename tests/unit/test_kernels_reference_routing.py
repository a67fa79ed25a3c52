"""Routing of the reference: gpt-oss, DeepSeek-V3 and V4, against slow and direct statements of their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.reference.routing import Routing, grouped_sigmoid_topk, softmax_topk, sqrt_softplus_topk

Row = list[float]


def best(scores: Row, k: int, among: list[int] | None = None) -> list[int]:
    """The k largest, the lower id first where they are equal."""
    return sorted(among if among is not None else range(len(scores)), key=lambda expert: (-scores[expert], expert))[:k]


def slow_v3(
    logits: Row, bias: Row | None, k: int, groups: int, kept_groups: int, renormalise: bool, factor: float
) -> tuple[Any, Any]:
    scores = [1 / (1 + math.exp(-logit)) for logit in logits]
    by = scores if bias is None else [score + more for score, more in zip(scores, bias, strict=True)]
    size = len(logits) // groups
    members = [list(range(group * size, (group + 1) * size)) for group in range(groups)]
    of_group = [sum(by[expert] for expert in best(by, 1 if bias is None else 2, experts)) for experts in members]
    among = [expert for group in best(of_group, kept_groups) for expert in members[group]]
    ids = best(by, k, among)
    total = sum(scores[expert] for expert in ids) if renormalise else 1.0
    return ids, [scores[expert] / total * factor for expert in ids]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_grouped_routing_is_what_the_definition_says(data: st.DataObject) -> None:
    groups, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    kept_groups = data.draw(st.integers(1, groups))
    k = data.draw(st.integers(1, kept_groups * size))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))  # no ties: rounding would decide them
    rows = random.normal(0, 3, (data.draw(st.integers(1, 3)), groups * size))
    bias = random.normal(0, 1, groups * size) if data.draw(st.booleans()) else None
    renormalise, factor = data.draw(st.booleans()), data.draw(st.sampled_from([1.0, 2.5]))
    got = grouped_sigmoid_topk(
        rows, k, groups=groups, kept_groups=kept_groups, bias=bias, renormalise=renormalise, routed_scaling_factor=factor,
    )  # fmt: skip
    for row, logits in enumerate(rows.tolist()):
        ids, weights = slow_v3(logits, None if bias is None else bias.tolist(), k, groups, kept_groups, renormalise, factor)
        assert got.weights[row] == pytest.approx(weights, rel=1e-6)
        assert got.ids[row].tolist() == ids


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(-80, 80), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 6))
def test_every_router_gives_each_token_k_experts_and_weights_of_sum_one(rows: list[Row], k: int) -> None:
    logits = np.array(rows)
    for router in (softmax_topk, grouped_sigmoid_topk, sqrt_softplus_topk):
        got: Routing = router(logits, k)
        assert got.ids.shape == got.weights.shape == (len(rows), k)
        assert got.ids.dtype == np.int32
        assert got.weights.dtype == np.float32
        assert (got.weights >= 0).all()
        assert got.weights.sum(axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-5)
        assert all(len(set(ids)) == k for ids in got.ids.tolist())


def test_gpt_oss_takes_the_softmax_of_the_kept_logits_only() -> None:
    got = softmax_topk(np.array([[1.0, 9.0, 3.0, 2.0]]), 2)
    assert got.ids.tolist() == [[1, 2]]
    assert got.weights[0] == pytest.approx([1 / (1 + math.exp(-6)), 1 / (1 + math.exp(6))])
    shifted = softmax_topk(np.array([[1.0, 9.0, 3.0, 2.0]]) + 1e6, 2)
    assert shifted.weights[0] == pytest.approx(got.weights[0])


@pytest.mark.parametrize("router", [softmax_topk, grouped_sigmoid_topk, sqrt_softplus_topk])
def test_of_equal_scores_the_lower_expert_is_chosen(router: Callable[[npt.NDArray[np.float64], int], Routing]) -> None:
    assert router(np.array([[0.0, 2.0, 0.0, 0.0, 2.0]]), 3).ids.tolist() == [[1, 4, 0]]


def test_of_equal_groups_the_lower_is_kept() -> None:
    logits = np.array([[0.0, 0.0, 1.0, 2.0, 2.0, 1.0]])
    for bias in (None, np.zeros(6)):
        assert grouped_sigmoid_topk(logits, 2, groups=3, kept_groups=1, bias=bias).ids.tolist() == [[3, 2]]


def test_v4_chooses_by_the_biased_score_and_weighs_by_the_score() -> None:
    logits, bias = np.array([[0.0, 1.0, 2.0]]), np.array([8.0, 0.0, 0.0])
    got = sqrt_softplus_topk(logits, 2, bias=bias, routed_scaling_factor=1.5)
    scores = [math.sqrt(math.log1p(math.exp(logit))) for logit in (0.0, 1.0, 2.0)]
    assert got.ids.tolist() == [[0, 2]]
    assert got.weights[0] == pytest.approx([1.5 * scores[0] / (scores[0] + scores[2]), 1.5 * scores[2] / (scores[0] + scores[2])])
    raw = sqrt_softplus_topk(logits, 2, bias=bias, renormalise=False)
    assert raw.weights[0] == pytest.approx([scores[0], scores[2]])


def test_v4_takes_experts_from_a_table_where_it_is_given_them() -> None:
    got = sqrt_softplus_topk(np.array([[0.0, 1.0, 2.0]]), 2, ids=np.array([[1, 0]]))
    scores = [math.sqrt(math.log1p(math.exp(logit))) for logit in (1.0, 0.0)]
    assert got.ids.tolist() == [[1, 0]]
    assert got.weights[0] == pytest.approx([score / sum(scores) for score in scores])


def test_no_expert_of_a_group_that_was_dropped_is_chosen_even_if_all_kept_scores_are_negative() -> None:
    got = grouped_sigmoid_topk(np.zeros((1, 4)), 2, groups=2, kept_groups=1, bias=np.array([-5.0, -5.0, -4.0, -9.0]))
    assert got.ids.tolist() == [[0, 1]], "-10 for the first group is more than -13 for the second"
    assert got.weights[0] == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("logits", [np.full((1, 4), -800.0), np.full((1, 4), 800.0)])
def test_extreme_logits_give_finite_weights_without_a_warning(logits: npt.NDArray[np.float64]) -> None:
    with np.errstate(all="raise", under="ignore"):
        for router in (softmax_topk, grouped_sigmoid_topk, sqrt_softplus_topk):
            assert np.isfinite(router(logits, 2).weights).all()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: softmax_topk(np.zeros((2, 4)), 5), r"k = 5 must be in 1\.\.4"),
        (lambda: softmax_topk(np.zeros((2, 4)), 0), "k = 0"),
        (lambda: softmax_topk(np.zeros(4), 1), r"must be \[M, E\]"),
        (lambda: softmax_topk(np.array([[0.0], [np.nan]]), 1), "token 1 have a NaN"),
        (lambda: grouped_sigmoid_topk(np.zeros((2, 4)), 1, groups=3), "groups = 3 must divide 4"),
        (lambda: grouped_sigmoid_topk(np.zeros((2, 4)), 3, groups=2), "kept_groups = 1 .* room for k = 3"),
        (lambda: grouped_sigmoid_topk(np.zeros((2, 4)), 1, bias=np.zeros(3)), r"bias \(3,\): must be \(4,\)"),
        (lambda: sqrt_softplus_topk(np.zeros((2, 4)), 1, ids=np.array([[0], [4]])), r"experts 0\.\.3"),
        (lambda: sqrt_softplus_topk(np.zeros((2, 4)), 1, ids=np.zeros((1, 1), int)), r"must be \[2, 1\]"),
    ],
)
def test_what_cannot_be_routed_is_refused_in_words(call: Callable[[], Routing], told: str) -> None:
    with pytest.raises(KernelInputError, match=told):
        call()
