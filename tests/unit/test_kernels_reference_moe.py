"""The layer of the reference against a statement of it token by token, and the cases that tests of kernels are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import deserialize

from harness.engines.tinymodel import EXPERTS, HIDDEN, write_tiny_model
from kernels.errors import KernelInputError
from kernels.reference.cases import ROUTINGS, Case, RoutingKind, make_case, to_bf16
from kernels.reference.moe import grouped_gemm, moe, relative_error, swiglu
from kernels.reference.mxfp4 import decode, encode
from kernels.shapes import GPT_OSS_SWIGLU, SILU, Activation, MoeShape, model

F64 = npt.NDArray[np.float64]

GPT_OSS = MoeShape("small gpt-oss", 6, 3, 96, 64, gate_up="interleaved", bias=True, activation=GPT_OSS_SWIGLU)
DEEPSEEK = MoeShape("small DeepSeek", 8, 2, 64, 96, activation=SILU)
both_layouts = pytest.mark.parametrize("shape", [GPT_OSS, DEEPSEEK], ids=["interleaved", "concatenated"])


def slow_activation(gate: float, up: float, activation: Activation) -> float:
    if activation.limit:
        gate, up = min(gate, activation.limit), max(-activation.limit, min(up, activation.limit))
    return gate / (1 + math.exp(-activation.alpha * gate)) * (up + (1 if activation.plus_one else 0))


def slow(case: Case, *, weights_on_input: bool = False) -> F64:
    """A token, an expert and a row of weights at a time."""
    out = np.zeros(case.x.shape)
    inner = case.shape.intermediate
    for token, x in enumerate(case.x.astype(float)):
        for expert, weight in zip(case.topk_ids[token].tolist(), case.topk_weights[token].tolist(), strict=True):
            local = expert if case.expert_map is None else int(case.expert_map[expert])
            if local < 0:
                continue
            both = decode(case.w13[local], case.s13[local]) @ (x * weight if weights_on_input else x)
            both += 0.0 if case.b13 is None else case.b13[local]
            pairs = [(2 * i, 2 * i + 1) if case.shape.gate_up == "interleaved" else (i, inner + i) for i in range(inner)]
            hidden = [slow_activation(both[gate], both[up], case.shape.activation) for gate, up in pairs]
            down = decode(case.w2[local], case.s2[local]) @ np.array(hidden)
            down += 0.0 if case.b2 is None else case.b2[local]
            out[token] += down if weights_on_input else weight * down
    return out


@both_layouts
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("weights_on_input", [False, True], ids=["weights last", "weights first"])
def test_the_layer_is_what_its_formula_says(shape: MoeShape, routing: RoutingKind, tokens: int, weights_on_input: bool) -> None:
    case = make_case(shape, tokens, 5, routing=routing)
    assert (
        relative_error(case.reference(weights_on_input=weights_on_input), slow(case, weights_on_input=weights_on_input)) < 1e-13
    )


def test_the_parts_of_all_ranks_sum_to_the_whole_layer() -> None:
    whole = make_case(GPT_OSS, 9, 3)
    total = np.zeros(whole.x.shape)
    for rank in range(3):
        mine = slice(2 * rank, 2 * rank + 2)
        expert_map = np.full(6, -1, np.int32)
        expert_map[mine] = [0, 1]
        assert whole.b13 is not None
        assert whole.b2 is not None
        part = replace(
            whole, w13=whole.w13[mine], s13=whole.s13[mine], w2=whole.w2[mine], s2=whole.s2[mine],
            b13=whole.b13[mine], b2=whole.b2[mine], expert_map=expert_map,
        )  # fmt: skip
        assert relative_error(part.reference(), slow(part)) < 1e-13
        total += part.reference()
    assert relative_error(total, whole.reference()) < 1e-13


def test_an_expert_that_is_not_here_adds_nothing_whatever_its_weight() -> None:
    case = make_case(DEEPSEEK.split(ep=4), 12, 0)
    weights = case.topk_weights.copy()
    assert case.expert_map is not None
    absent = case.expert_map[case.topk_ids] < 0
    assert absent.any()
    assert not absent.all()
    weights[absent] = np.nan
    ids = np.where(absent, -1, case.topk_ids)
    for changed in (replace(case, topk_weights=weights), replace(case, topk_weights=weights, topk_ids=ids)):
        assert np.array_equal(changed.reference(), case.reference())
    nobody = np.flatnonzero(absent.all(axis=1))
    assert not case.reference()[nobody].any()


def test_the_clamp_of_gpt_oss_is_one_sided_for_gates_and_two_sided_for_ups() -> None:
    gates, ups = np.array([[100.0, 7.0, -100.0, 1.0]]), np.array([[100.0, 7.0, 0.0, -100.0]])
    got = swiglu(np.concatenate([gates, ups], axis=1), GPT_OSS_SWIGLU, interleaved=False)[0]
    assert got[0] == got[1] == pytest.approx(7 * 8 / (1 + math.exp(-1.702 * 7)))
    assert got[2] == pytest.approx(-100 * math.exp(-170.2), rel=1e-9), "not clamped to -7"
    assert got[3] == pytest.approx(-6 / (1 + math.exp(-1.702)))


def test_activation_of_huge_numbers_is_finite_and_silent_and_both_layouts_agree() -> None:
    gate_up = np.array([[-1e5, 2.0, 1e5, 3.0], [0.0, -0.0, 1.0, -4.0]])
    with np.errstate(all="raise", under="ignore"):
        interleaved = swiglu(gate_up, SILU, interleaved=True)
        concatenated = swiglu(gate_up[:, [0, 2, 1, 3]], SILU, interleaved=False)
    assert np.array_equal(interleaved, concatenated)
    assert interleaved.tolist() == [[0.0, 3e5], [0.0, pytest.approx(-4 / (1 + math.exp(-1)))]]


def test_a_nan_scale_reaches_exactly_the_tokens_of_its_expert() -> None:
    case = make_case(GPT_OSS, 10, 1)
    case.s2[4, 7, 0] = 255
    got = case.reference()
    chose = (case.topk_ids == 4).any(axis=1)
    assert 0 < chose.sum() < 10
    assert np.isnan(got[chose][:, 7]).all()
    assert np.isnan(got).sum() == chose.sum()


def test_relative_error_is_free_of_scale_and_infinite_for_nan() -> None:
    truth = np.array([[3.0, 4.0]])
    assert relative_error(truth, truth) == 0.0
    assert relative_error(truth * 1.5, truth) == pytest.approx(0.5)
    assert relative_error(truth * 1.5e-9, truth * 1e-9) == pytest.approx(0.5)
    assert relative_error(np.array([[np.nan, 4.0]]), truth) == math.inf
    assert relative_error(truth, np.array([[np.inf, 4.0]])) == math.inf
    assert relative_error(truth, np.zeros((1, 2))) == math.inf
    assert relative_error(np.zeros((1, 2)), np.zeros((1, 2))) == 0.0
    with pytest.raises(KernelInputError, match=r"\(1, 2\) and \(2,\)"):
        relative_error(truth, truth[0])


# --- cases ---------------------------------------------------------------------------------------------------


@both_layouts
def test_a_case_is_the_same_for_the_same_seed_only(shape: MoeShape) -> None:
    first, same, other = (make_case(shape, 5, seed) for seed in (1, 1, 2))
    for name in (field.name for field in fields(Case)):
        if isinstance(array := getattr(first, name), np.ndarray):
            assert np.array_equal(array, getattr(same, name)), name
            assert not np.array_equal(array, getattr(other, name)), name


@pytest.mark.parametrize("routing", ROUTINGS)
def test_tokens_choose_different_experts_with_weights_of_sum_one(routing: RoutingKind) -> None:
    case = make_case(DEEPSEEK, 200, 3, routing=routing)
    assert case.topk_ids.shape == (200, 2)
    assert (case.topk_ids[:, 0] != case.topk_ids[:, 1]).all()
    assert case.topk_weights.sum(axis=1) == pytest.approx(np.ones(200), abs=1e-6)
    share = np.bincount(case.topk_ids.ravel(), minlength=8).max() / 400
    low, high = {"uniform": (0.12, 0.18), "zipf": (0.25, 0.45), "one": (0.5, 0.5)}[routing]
    assert low <= share <= high
    assert np.unique(case.topk_ids).size == (2 if routing == "one" else 8)


def test_numbers_of_a_case_are_held_by_bfloat16_and_some_but_not_most_are_clamped() -> None:
    case = make_case(GPT_OSS, 50, 0)
    for array in (case.x, case.b13, case.b2):
        assert array is not None
        assert not (array.view(np.uint32) & 0xFFFF).any()
    assert (case.s13.min(), case.s13.max(), case.s2.min(), case.s2.max()) == (118, 127, 118, 127)
    rows = np.repeat(case.x, 3, axis=0)
    gate = grouped_gemm(rows, case.topk_ids.ravel(), case.w13, case.s13, case.b13)[:, 0::2]
    assert 0.001 < (gate > GPT_OSS_SWIGLU.limit).mean() < 0.1


def test_rounding_to_bfloat16_is_to_the_nearest_even() -> None:
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    assert to_bf16(ties).view(np.uint32).tolist() == [0x3F800000, 0x3F820000, 0x3F810000]


def test_a_rank_of_several_is_the_last() -> None:
    case = make_case(DEEPSEEK.split(ep=2), 1, 0, routing="one")
    assert case.expert_map is not None
    assert case.expert_map.tolist() == [-1, -1, -1, -1, 0, 1, 2, 3]
    assert len(case.w13) == 4
    assert make_case(DEEPSEEK.split(tp=3), 1, 0).expert_map is None


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: make_case(DEEPSEEK, 0, 0), "tokens = 0"),
        (lambda: make_case(replace(DEEPSEEK, top_k=9), 1, 0), r"top_k = 9 .* 1\.\.8"),
        (lambda: make_case(replace(DEEPSEEK, hidden=80), 1, 0), "hidden = 80 .* multiple of 32"),
        (lambda: make_case(model("DeepSeek-R1"), 1, 0), "DeepSeek-R1 has fp8 weights"),
        (lambda: make_case(DEEPSEEK, 1, 0, routing="even"), "routing = 'even' must be one of uniform, zipf, one"),  # type: ignore[arg-type]
        (lambda: replace(make_case(DEEPSEEK, 2, 0), x=np.zeros((3, 64), np.float32)).reference(), r"both must be \[3, k\]"),
        (lambda: replace(make_case(DEEPSEEK, 2, 0), x=np.zeros((2, 32), np.float32)).reference(), r"must be \[E, N, 32 / 2\]"),
        (
            lambda: replace(make_case(DEEPSEEK, 2, 0), b2=np.zeros((8, 1), np.float32)).reference(),
            r"bias \(8, 1\): must be \(8, 64\)",
        ),
        (lambda: replace(make_case(DEEPSEEK, 2, 0), w2=np.zeros((7, 64, 48), np.uint8)).reference(), "E = 8, the experts here"),
        (lambda: swiglu(np.zeros((1, 3)), SILU, interleaved=True), "even in number"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(call: Callable[[], object], told: str) -> None:
    with pytest.raises(KernelInputError, match=told):
        call()


# --- a model's own weights -----------------------------------------------------------------------------------


def from_bf16(tensor: dict[str, Any]) -> F64:
    bits = np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64).reshape(tensor["shape"])


def test_the_tiny_models_experts_in_mxfp4_give_nearly_the_layer_of_its_own_weights(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "gpt-oss")
    tensors = dict(deserialize((tmp_path / "model.safetensors").read_bytes()))  # type: ignore[no-untyped-call]
    arrays = {
        name: from_bf16(tensors[f"model.layers.0.mlp.experts.{name}"])
        for name in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
    }
    gate_up, down = arrays["gate_up_proj"].transpose(0, 2, 1), arrays["down_proj"].transpose(0, 2, 1)  # K last
    random = np.random.default_rng(0)
    x, ids = random.standard_normal((8, HIDDEN)), np.stack([random.permutation(EXPERTS)[:2] for _ in range(8)])
    weights = np.full((8, 2), 0.5)
    (w13, s13), (w2, s2) = encode(gate_up), encode(down)
    got = moe(
        x, w13, s13, w2, s2, ids, weights, b13=arrays["gate_up_proj_bias"], b2=arrays["down_proj_bias"],
        activation=GPT_OSS_SWIGLU, interleaved=True,
    )  # fmt: skip
    exact = np.zeros_like(got)
    for token in range(8):
        for expert in ids[token]:
            both = x[token] @ gate_up[expert].T + arrays["gate_up_proj_bias"][expert]
            hidden = swiglu(both[None], GPT_OSS_SWIGLU, interleaved=True)[0]
            exact[token] += 0.5 * (hidden @ down[expert].T + arrays["down_proj_bias"][expert])
    assert 0.05 < relative_error(got, exact) < 0.3, "four bits a weight are felt, and no more than four bits explain"
