"""Which vLLM the plugin fits: by version, and by the very names and parameters that it overrides or calls.

vLLM has no interface for MXFP4 kernels from outside, so the plugin subclasses its internals. Those change between releases, and a
wrong guess there serves wrong tokens. So a release that is not known here is refused, and of a known one each name is looked at
before anything is registered: what vLLM calls on our classes must have exactly the parameters that ours have, and what we call
must take ours and demand no others. Imports nothing of vLLM by itself.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

KNOWN = ((0, 32), (0, 33))
_LAYERS = "vllm.model_executor.layers."
_MOE = _LAYERS + "fused_moe."


@dataclass(frozen=True, slots=True)
class Expected:
    """A name of vLLM's, and what it must be for us.

    overridden: vLLM calls ours in its place, so that it must have our parameters and no others.
    called: by us, with these parameters; others must have defaults.
    inherited: vLLM calls it on our class; it must know these parameters.
    there: no more than that.
    """

    module: str
    name: str  # with dots for what is in a class
    how: Literal["overridden", "called", "inherited", "there"] = "there"
    parameters: tuple[str, ...] = ()  # without self


def _overridden(module: str, name: str, *parameters: str) -> Expected:
    return Expected(module, name, "overridden", parameters)


def _called(module: str, name: str, *parameters: str) -> Expected:
    return Expected(module, name, "called", parameters)


def _inherited(module: str, name: str, *parameters: str) -> Expected:
    return Expected(module, name, "inherited", parameters)


_MXFP4 = _LAYERS + "quantization.mxfp4"
_KERNEL = _MOE + "modular_kernel"
_SIZES = ("hidden_size", "intermediate_size_per_partition", "act_dtype", "moe_parallel_config")
_SCHEME = ("weight_key", "activation_key")
EXPECTED: tuple[Expected, ...] = (
    _called(_LAYERS + "quantization", "register_quantization_config", "quantization"),
    _overridden(_MXFP4, "GptOssMxfp4Config._make_moe_method", "moe"),
    _inherited(_MXFP4, "GptOssMxfp4Config.get_quant_method", "layer", "prefix"),
    _overridden(_MXFP4, "GptOssMxfp4MoEMethod.__init__", "moe"),
    _overridden(_MXFP4, "GptOssMxfp4MoEMethod.maybe_roundup_sizes", *_SIZES),
    _inherited(
        _MXFP4, "GptOssMxfp4MoEMethod.create_weights",
        "layer", "num_experts", "hidden_size", "intermediate_size_per_partition", "params_dtype",
    ),
    _overridden(_MXFP4, "GptOssMxfp4MoEMethod.process_weights_after_loading", "layer"),
    _overridden(_MXFP4, "GptOssMxfp4MoEMethod.get_fused_moe_quant_config", "layer"),
    _inherited(_MXFP4, "GptOssMxfp4MoEMethod.apply", "layer", "x", "topk_weights", "topk_ids"),
    _called(_MOE + "fused_moe_method_base", "FusedMoEMethodBase.__init__", "moe"),
    _called(_MOE + "fused_moe_method_base", "FusedMoEMethodBase.maybe_roundup_sizes", *_SIZES),
    Expected(_MOE + "oracle.mxfp4", "Mxfp4MoeBackend.NONE"),
    _called(
        _MOE + "oracle.mxfp4", "make_mxfp4_moe_kernel",
        "moe_quant_config", "moe_config", "experts_cls", "mxfp4_backend", "routing_tables",
    ),
    _called(
        _MOE + "config", "mxfp4_w4a16_moe_quant_config",
        "w1_scale", "w2_scale", "w1_bias", "w2_bias", "gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit",
    ),
    Expected(_MOE + "activation", "MoEActivation.SWIGLUOAI"),
    Expected(_MOE + "topk_weight_and_reduce", "TopKWeightAndReduceNoOP"),
    Expected(_MOE + "routed_experts", "RoutedExperts._expert_routing_tables"),
    Expected(_LAYERS + "quantization.utils.quant_utils", "kMxfp4Static"),
    Expected(_KERNEL, "FusedMoEActivationFormat.Standard"),
    _called(_KERNEL, "FusedMoEExperts.__init__", "moe_config", "quant_config"),
    _called(
        _KERNEL, "FusedMoEExperts.is_supported_config",
        "cls", "moe_config", "weight_key", "activation_key", "activation_format",
    ),
    _overridden(_KERNEL, "FusedMoEExperts.activation_format"),
    _overridden(_KERNEL, "FusedMoEExperts._supports_current_device"),
    _overridden(_KERNEL, "FusedMoEExperts._supports_no_act_and_mul"),
    _overridden(_KERNEL, "FusedMoEExperts._supports_quant_scheme", *_SCHEME),
    _overridden(_KERNEL, "FusedMoEExperts._supports_activation", "activation"),
    _overridden(_KERNEL, "FusedMoEExperts._supports_parallel_config", "moe_parallel_config"),
    _overridden(_KERNEL, "FusedMoEExpertsModular.finalize_weight_and_reduce_impl"),
    _overridden(
        _KERNEL, "FusedMoEExpertsModular.workspace_shapes",
        "M", "N", "K", "topk", "global_num_experts", "local_num_experts", "expert_tokens_meta", "activation",
    ),
    _overridden(
        _KERNEL, "FusedMoEExpertsModular.apply",
        "output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation", "global_num_experts", "expert_map",
        "a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta", "apply_router_weight_on_input",
    ),
)  # fmt: skip


def known() -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in KNOWN)


def refusal(version: str) -> str:
    """Why this vLLM is not served; empty: it is one of the known."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return f"vLLM calls its version {version!r}, which says no release; known to fit: {known()}"
    release = (int(found[1]), int(found[2]))
    if release in KNOWN:
        return ""
    age = "newer" if release > max(KNOWN) else "older" if release < min(KNOWN) else "other"
    return f"vLLM {version} is {age} than what the plugin is known to fit ({known()})"


def differences(
    expected: Sequence[Expected] = EXPECTED, load: Callable[[str], ModuleType] = importlib.import_module
) -> tuple[str, ...]:
    """What vLLM has otherwise than the plugin needs it; none: it fits."""
    return tuple(text for each in expected if (text := _difference(each, load)))


def _difference(expected: Expected, load: Callable[[str], ModuleType]) -> str:
    called = f"{expected.module.removeprefix(_LAYERS)}.{expected.name}"
    try:
        found: Any = load(expected.module)
        for part in expected.name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        return f"{called} is not there ({error})"
    if expected.how == "there":
        return ""
    try:
        parameters = dict(inspect.signature(found).parameters)
    except (TypeError, ValueError) as error:
        return f"{called}: its parameters cannot be told ({error})"
    parameters.pop("self", None)
    return _otherwise(called, expected, parameters)


def _otherwise(called: str, expected: Expected, parameters: dict[str, inspect.Parameter]) -> str:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = {name: each for name, each in parameters.items() if each.kind not in variable}
    if missing := [name for name in expected.parameters if name not in named]:
        return f"{called} has no parameter {', '.join(missing)}"
    others = [name for name in named if name not in expected.parameters]
    if expected.how == "called":
        others = [name for name in others if named[name].default is inspect.Parameter.empty]
    if others and expected.how != "inherited":
        return f"{called} has parameters that the plugin does not know: {', '.join(others)}"
    return ""
