"""The layer against the reference in float64, on poisoned memory: layouts, activations, tails, ragged experts, expert
parallelism.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from layer_kit import run, tensor, weights_of

from kernels.reference.cases import RoutingKind, make_case
from kernels.reference.moe import relative_error
from kernels.shapes import GPT_OSS_SWIGLU, Activation, MoeShape
from kernels.tile import LayerConfig, Tile

#: Three roundings on the way (between the GEMMs, of the pairs' results, of the sum) come to less than this.
LIMIT = {"bfloat16": 6e-3, "float16": 1e-3}

GPT_OSS = MoeShape("gpt-oss", 4, 2, 160, 96, gate_up="interleaved", bias=True, activation=GPT_OSS_SWIGLU)
DEEPSEEK = MoeShape("DeepSeek", 4, 2, 160, 96)
CONFIG = LayerConfig(Tile(16, 64, 64), Tile(16, 64, 64))
SMALLEST = replace(DEEPSEEK, hidden=32, intermediate=32)
WIDE = LayerConfig(Tile(16, 256, 256), Tile(16, 128, 128))
LONG = replace(GPT_OSS, experts=1, top_k=1, hidden=2880, intermediate=32)
GROUPED = LayerConfig(Tile(16, 64, 128, 4), Tile(16, 64, 64, 2))


def one(
    name: str,
    shape: MoeShape,
    tokens: int = 5,
    config: LayerConfig = CONFIG,
    dtype: str = "bfloat16",
    routing: RoutingKind = "uniform",
) -> object:
    return pytest.param(shape, tokens, config, dtype, routing, id=name)


@pytest.mark.parametrize(
    ("shape", "tokens", "config", "dtype", "routing"),
    [
        one("gpt-oss: interleaved, biases, clamps; K, N and M tails", GPT_OSS),
        one("DeepSeek: concatenated, no biases, no clamps", DEEPSEEK),
        one("float16", GPT_OSS, dtype="float16"),
        one("float16, concatenated", DEEPSEEK, dtype="float16"),
        one("concatenated with biases and clamps", replace(GPT_OSS, gate_up="concatenated")),
        one("interleaved without biases", replace(GPT_OSS, bias=False)),
        one("clamps of its own", replace(DEEPSEEK, activation=Activation(limit=10.0))),
        one("no tail anywhere", replace(GPT_OSS, hidden=128, intermediate=64), 16),
        one("tiles wider than the layer", SMALLEST, config=WIDE),
        one("a down tile of its own", GPT_OSS, config=LayerConfig(Tile(32, 64, 128), Tile(32, 32, 32))),
        one("2880, the last of 12 steps a quarter full", LONG, 1, LayerConfig(Tile(16, 64, 256), Tile(16, 256, 32))),
        one("one token", GPT_OSS, 1),
        one("all tokens on the same experts, the others empty", replace(GPT_OSS, experts=8), 24, routing="one"),
        one("skewed routing", replace(DEEPSEEK, experts=8), 24, routing="zipf"),
        one("every expert at once", replace(DEEPSEEK, top_k=4), 3),
        one("groups of row blocks that do not fill the last", replace(DEEPSEEK, experts=2, top_k=1), 75, GROUPED),
        one("a rank with a quarter of the experts", replace(GPT_OSS, global_experts=16), 7),
        one("a rank with none of the tokens' experts", replace(DEEPSEEK, experts=1, global_experts=64), 2),
    ],
)  # fmt: skip
def test_layer_agrees_with_the_reference(
    shape: MoeShape, tokens: int, config: LayerConfig, dtype: str, routing: RoutingKind
) -> None:
    ran = run(make_case(shape, tokens, seed=tokens, routing=routing), config, dtype)
    assert ran.error <= LIMIT[dtype]


@pytest.mark.parametrize("shape", [GPT_OSS, DEEPSEEK], ids=["gpt-oss", "DeepSeek"])
def test_weights_of_the_router_can_multiply_the_input(shape: MoeShape) -> None:
    assert run(make_case(shape, 5, seed=3), CONFIG, weights_on_input=True).error <= LIMIT["bfloat16"]


def test_rows_of_absent_experts_are_never_written_and_never_read() -> None:
    case = make_case(replace(DEEPSEEK, global_experts=16), 6, seed=4)
    assert case.expert_map is not None
    away = case.expert_map[case.topk_ids.ravel()] < 0
    assert away.any()
    assert not away.all()
    ran = run(case, CONFIG)
    assert np.isnan(ran.rows.float().numpy()[away]).all()
    assert np.isfinite(ran.rows.float().numpy()[~away]).all()
    assert ran.error <= LIMIT["bfloat16"]


def test_ids_below_zero_are_no_expert() -> None:
    drawn = make_case(DEEPSEEK, 4, seed=5)
    ids = drawn.topk_ids.copy()
    ids[1], ids[2, 0] = -1, -1
    ran = run(replace(drawn, topk_ids=ids), CONFIG)
    assert ran.error <= LIMIT["bfloat16"]
    assert not ran.out[1].any()


def test_no_tokens_are_no_error() -> None:
    import torch

    from kernels.moe.layer import fused_moe

    arguments = weights_of(make_case(GPT_OSS, 1, seed=6), torch.bfloat16)
    for name in ("x", "topk_ids", "topk_weights"):
        arguments[name] = arguments[name][:0]
    assert fused_moe(**arguments, config=CONFIG).shape == (0, 160)


def test_a_nan_of_a_token_stays_one_and_is_of_that_token_only() -> None:
    import torch

    from kernels.moe.layer import fused_moe

    case = make_case(GPT_OSS, 5, seed=7)
    arguments = weights_of(case, torch.bfloat16)
    arguments["x"][2, 33] = float("nan")
    out = fused_moe(**arguments, config=CONFIG).float().numpy()
    assert np.isnan(out[2]).all()  # a clamp that drops NaN would hide it
    others = [0, 1, 3, 4]
    assert relative_error(out[others], case.reference()[others]) <= LIMIT["bfloat16"]


def test_nothing_on_the_host_waits_for_the_device() -> None:
    """Which operations a graph's capture would refuse; the capture itself needs a GPU."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from kernels.moe.layer import fused_moe

    called: set[str] = set()

    class Recording(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
        ) -> object:
            called.add(str(func))
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    arguments = weights_of(make_case(replace(GPT_OSS, global_experts=8), 3, seed=8), torch.bfloat16)
    with Recording():
        fused_moe(**arguments, config=CONFIG)
    assert any(each.startswith("aten.empty") for each in called)  # it does record
    waiting = (
        "aten._local_scalar_dense",
        "aten.nonzero",
        "aten.masked_select",
        "aten.unique",
        "aten.bincount",
        "aten.is_nonzero",
    )
    assert not [each for each in called if each.startswith(waiting)]


def test_layer_without_a_workspace_or_an_output_allocates_them() -> None:
    import torch

    from kernels.moe.layer import fused_moe

    case = make_case(DEEPSEEK, 3, seed=9)
    out = fused_moe(**weights_of(case, torch.bfloat16), config=CONFIG)
    assert torch.equal(out, run(case, CONFIG).out)


def test_interpreter_rounds_to_nearest_as_devices_do() -> None:
    """Ties to even, carries into the exponent and NaN included; else the limits here would judge the interpreter."""
    import torch
    import triton
    import triton.language as tl

    import kernels.moe.layer  # noqa: F401 - which makes it do so

    @triton.jit  # type: ignore[untyped-decorator]
    def narrow(x: object, out: object, COUNT: tl.constexpr) -> None:
        at = tl.arange(0, COUNT)
        tl.store(out + at, tl.load(x + at).to(tl.bfloat16))

    assert os.environ["TRITON_INTERPRET"] == "1"
    random = np.random.default_rng(1).standard_normal(1018).astype(np.float32) * np.float32(1e3)
    edges = np.array([1.99999, 1.00390625, 1.01171875, np.nan, np.inf, -0.0], np.float32)
    x = tensor(np.concatenate([random, edges]))
    out = torch.empty(1024, dtype=torch.bfloat16)
    narrow[(1,)](x, out, COUNT=1024)
    assert torch.equal(out.nan_to_num(7.0), x.to(torch.bfloat16).nan_to_num(7.0))
