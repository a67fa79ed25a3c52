"""vLLM's method for the experts of gpt-oss, with our kernel: weights stay as the checkpoint has them, without padding or swizzle.

Whether a layer is ours is decided when it is made, before it has weights: what the kernel does not cover, and any failure to get
it ready, leaves the layer to vLLM's own method, with a message and the reason in the report. Later there is no way back, since
vLLM's methods want weights of other sizes: scales that are no numbers, say, then end the engine.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.config import mxfp4_w4a16_moe_quant_config
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import Mxfp4MoeBackend, make_mxfp4_moe_kernel
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config, GptOssMxfp4MoEMethod

from kernels.errors import KernelInputError, NotHere
from kernels.plugin import device
from kernels.plugin.cover import uncovered
from kernels.plugin.loaded import this_process
from kernels.shapes import GPT_OSS_SWIGLU, MXFP4_BLOCK

log = logging.getLogger("vllm.paceline_moe")
_said: set[str] = set()


class PacelineGptOssMxfp4Config(GptOssMxfp4Config):  # type: ignore[misc]
    """At module level, since it is pickled by name into vLLM's other processes."""

    def _make_moe_method(self, moe: Any) -> Any:
        loaded = this_process()
        device.tell(loaded)
        method, reason = _ours(moe)
        if method is not None:
            loaded.layer_made()
            return method
        say_once(f"vLLM's own MoE kernel runs, not Paceline's: {reason}")
        loaded.layer_fell_back(reason)
        return super()._make_moe_method(moe)


def _ours(moe: Any) -> tuple[PacelineMxfp4MoEMethod | None, str]:
    """Or the reason why not."""
    try:
        reason = uncovered(moe)
        return (None, reason) if reason else (PacelineMxfp4MoEMethod(moe), "")
    except (KernelInputError, NotHere) as error:
        return None, str(error)
    except Exception as error:
        log.exception("the MoE kernel of Paceline could not be made ready")
        return None, f"{type(error).__name__}: {error}"


class PacelineMxfp4MoEMethod(GptOssMxfp4MoEMethod):  # type: ignore[misc]
    """Creates weights and is applied as vLLM's is; is otherwise prepared. `__init__` of the parent would choose a backend."""

    def __init__(self, moe: Any) -> None:
        FusedMoEMethodBase.__init__(self, moe)
        from kernels.plugin.choice import choose  # needs triton
        from kernels.plugin.experts import PacelineMxfp4Experts, shape_of

        self.weight_dtype = "gpt_oss_mxfp4"  # by which the model's loader knows packed weights
        self.mxfp4_backend = Mxfp4MoeBackend.NONE
        self.experts_cls = PacelineMxfp4Experts
        hidden, intermediate = self.maybe_roundup_sizes(
            moe.hidden_dim, moe.intermediate_size_per_partition, moe.in_dtype, moe.moe_parallel_config
        )
        found = choose(shape_of(moe, hidden, intermediate))
        of = found.note if found.table is None else f"{found.table.path}; {found.note}".removesuffix("; ")
        say_once(f"the MoE kernel of Paceline runs, its configuration: {found.how} ({of})", logging.INFO)

    def maybe_roundup_sizes(
        self, hidden_size: int, intermediate_size_per_partition: int, act_dtype: Any, moe_parallel_config: Any
    ) -> tuple[int, int]:
        """To whole blocks of a scale only, as the loader splits checkpoints; the hidden size where the all-to-all asks for it."""
        hidden, intermediate = FusedMoEMethodBase.maybe_roundup_sizes(
            self, hidden_size, intermediate_size_per_partition, act_dtype, moe_parallel_config
        )
        return hidden, -(-intermediate // MXFP4_BLOCK) * MXFP4_BLOCK

    def process_weights_after_loading(self, layer: Any) -> None:
        from kernels.moe.layer import check_scales

        for name in ("w13_weight_scale", "w2_weight_scale"):
            check_scales(f"{layer.layer_name}.{name}", getattr(layer, name).data, self.moe.in_dtype)
        for name in ("w13_bias", "w2_bias"):
            if (bias := getattr(layer, name, None)) is not None:
                bias.data = bias.data.to(torch.float32)
        self.moe_quant_config = self.get_fused_moe_quant_config(layer)
        self.moe_kernel = make_mxfp4_moe_kernel(
            moe_quant_config=self.moe_quant_config,
            moe_config=self.moe,
            experts_cls=self.experts_cls,
            mxfp4_backend=self.mxfp4_backend,
            routing_tables=layer._expert_routing_tables(),
        )
        this_process().layer_ready()

    def get_fused_moe_quant_config(self, layer: Any) -> Any:
        return mxfp4_w4a16_moe_quant_config(
            w1_scale=layer.w13_weight_scale,
            w2_scale=layer.w2_weight_scale,
            w1_bias=getattr(layer, "w13_bias", None),
            w2_bias=getattr(layer, "w2_bias", None),
            gemm1_alpha=GPT_OSS_SWIGLU.alpha,
            gemm1_beta=1.0,
            gemm1_clamp_limit=GPT_OSS_SWIGLU.limit,
        )


def say_once(text: str, level: int = logging.WARNING) -> None:
    """Layers are many and alike."""
    if text not in _said:
        _said.add(text)
        log.log(level, text)


def register() -> None:
    register_quantization_config("gpt_oss_mxfp4")(PacelineGptOssMxfp4Config)
