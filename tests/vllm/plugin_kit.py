"""Processes of vLLM with the kernels' plugin, for test_moe_plugin.py; each prints one JSON object as its last line.

    plugin_kit.py generate MODEL RANKS    logprobs of a prompt from a real engine; with several ranks each has some of the experts
    plugin_kit.py decide                  what the plugin does with what it does not cover, with vLLM's own classes, no engine

Entry points are read from the metadata of distributions, and a checkout has none: `entry_point` writes some.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

PROMPT_TOKENS = 40


def entry_point(folder: Path) -> Path:
    """A folder for PYTHONPATH."""
    about = folder / "paceline_kernels-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline-kernels\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\npaceline_moe = kernels.plugin:register\n")
    return folder


class Probe:
    """Extends vLLM's worker: compares what the experts of its rank compute with float64."""

    def record(self) -> None:
        from kernels.plugin.experts import PacelineMxfp4Experts

        plain, self.calls = PacelineMxfp4Experts.apply, []  # type: ignore[var-annotated]

        def recorded(experts: Any, **given: Any) -> None:
            given["output"].fill_(float("nan"))
            given["workspace2"].fill_(float("nan"))
            plain(experts, **given)
            self.calls.append((experts, {name: _copy(value) for name, value in given.items()}))

        mock.patch.object(PacelineMxfp4Experts, "apply", recorded).start()

    def errors(self) -> list[tuple[int, bool, float]]:
        """Of each call: tokens, whether it had a map of experts, relative error."""
        from kernels.reference.moe import moe, relative_error
        from kernels.shapes import GPT_OSS_SWIGLU

        found = []
        for experts, call in self.calls:
            mapped = call["expert_map"]
            right = moe(
                call["hidden_states"].float().numpy(), call["w1"].numpy(), experts.w1_scale.numpy(), call["w2"].numpy(),
                experts.w2_scale.numpy(), call["topk_ids"].numpy(), call["topk_weights"].float().numpy(),
                b13=experts.w1_bias.numpy(), b2=experts.w2_bias.numpy(), activation=GPT_OSS_SWIGLU, interleaved=True,
                expert_map=None if mapped is None else mapped.numpy(),
            )  # fmt: skip
            found.append((len(right), mapped is not None, relative_error(call["output"].float().numpy(), right)))
        return found


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def generate(model: str, ranks: int) -> dict[str, Any]:
    import numpy as np
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.model_executor.layers.quantization import _CUSTOMIZED_METHOD_TO_QUANT_CONFIG as customised

    on = os.environ.get("PACELINE_MOE") == "paceline"
    llm = LLM(
        model, dtype="bfloat16", enforce_eager=True, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=64,
        kv_cache_memory_bytes=64 * 2**20, enable_prefix_caching=False, tensor_parallel_size=ranks,
        enable_expert_parallel=ranks > 1, worker_extension_cls="plugin_kit.Probe" if on else "",
    )  # fmt: skip
    if on:
        llm.collective_rpc("record")
    tokens = np.random.default_rng(3).integers(10, 500, PROMPT_TOKENS).tolist()
    said = llm.generate([TokensPrompt(prompt_token_ids=tokens)], SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0))
    logprobs = [next(iter(each.values())).logprob for each in said[0].prompt_logprobs[1:]]
    errors = llm.collective_rpc("errors") if on else []
    return {"pid": os.getpid(), "logprobs": logprobs, "errors": errors, "registered": sorted(customised)}


# --- without an engine ---------------------------------------------------------------------------------------


def decide() -> dict[str, Any]:
    import vllm.model_executor.layers.fused_moe.modular_kernel as mk
    from vllm.model_executor.layers.quantization import _CUSTOMIZED_METHOD_TO_QUANT_CONFIG as customised
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.plugins import load_general_plugins

    import kernels.plugin
    from kernels.plugin import loaded

    def asked_for(**changes: Any) -> dict[str, Any]:
        """Registered, and a layer made: whose method it gets, and what the report says."""
        customised.clear()
        kernels.plugin.register()
        loaded._loaded.clear()
        layer, config = _layer(**changes), get_quantization_config("gpt_oss_mxfp4")()
        try:
            method = type(config.get_quant_method(layer, "experts")).__name__
        except Exception as error:  # vLLM's own looks for an engine's configuration, and for a kernel for this CPU
            method = f"vLLM's own: {type(error).__name__}"
        path = Path(os.environ[loaded.FOLDER]) / f"{os.getpid()}.json"
        report = json.loads(path.read_text()) if path.exists() else None
        path.unlink(missing_ok=True)
        return {"config": type(config).__name__, "method": method, "report": report}

    load_general_plugins()  # by the entry point
    found: dict[str, Any] = {"by_entry_point": [each.__name__ for each in customised.values()]}
    found["ours"] = asked_for()
    found["lora"] = asked_for(is_lora_enabled=True)
    found["other backend"] = asked_for(moe_backend="marlin")
    found["eplb"] = asked_for(enable_eplb=True)
    found["batched"] = asked_for(use_ep=True, dp_size=2, all2all_backend="deepep_low_latency")
    with _changed(os.environ, "PACELINE_KERNEL_STORE", "/nowhere"):
        found["store away"] = asked_for(hidden_dim=160)  # other sizes than before, which are looked up anew
    with _set(sys.modules["vllm"], "__version__", "0.99.0"):
        found["too new"] = asked_for()
    with _set(mk.FusedMoEExpertsModular, "apply", lambda self, output, everything: None):
        found["other signature"] = asked_for()
    with _changed(os.environ, "PACELINE_MOE", ""):
        customised.clear()
        kernels.plugin.register()
        found["off"] = sorted(customised)
        with _changed(os.environ, "PACELINE_KERNEL_STORE", sys.argv[2]):
            kernels.plugin.register()
            found["tables"] = os.environ.pop("VLLM_TUNED_CONFIG_FOLDER", "")
    return found


def _layer(**changes: Any) -> Any:
    """As far made as RoutedExperts is when it asks for its method."""
    import torch
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig, RoutingMethodType
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    parallel = FusedMoEParallelConfig.make_no_parallel()
    for name in [each for each in changes if each in inspect.signature(FusedMoEParallelConfig).parameters]:
        setattr(parallel, name, changes.pop(name))
    config = FusedMoEConfig(
        num_experts=4, experts_per_token=2, hidden_dim=changes.pop("hidden_dim", 128), intermediate_size=128,
        num_local_experts=4, num_logical_experts=4, activation=MoEActivation.SWIGLUOAI, device="cpu",
        routing_method=RoutingMethodType.Renormalize, moe_parallel_config=parallel, in_dtype=torch.bfloat16, has_bias=True,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(config, name, value)
    layer = RoutedExperts.__new__(RoutedExperts)
    torch.nn.Module.__init__(layer)
    layer.moe_config = config
    return layer


@contextmanager
def _changed(mapping: Any, key: str, value: str) -> Iterator[None]:
    before = mapping.get(key)
    mapping[key] = value
    yield
    if before is None:
        del mapping[key]
    else:
        mapping[key] = before


@contextmanager
def _set(of: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(of, name)
    setattr(of, name, value)
    yield
    setattr(of, name, before)


if __name__ == "__main__":
    done = generate(sys.argv[2], int(sys.argv[3])) if sys.argv[1] == "generate" else decide()
    print(json.dumps(done))
