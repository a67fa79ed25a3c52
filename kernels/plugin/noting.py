"""Where vLLM's own kernel runs although ours was asked for: nothing is changed, but the process that loads layers reports why.

Part of it runs in versions of vLLM that nobody has seen, so it leans on nothing but the class of the configuration.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4Config

from kernels.plugin import device
from kernels.plugin.loaded import this_process

_reason = ""
_LAYERS = ("RoutedExperts", "FusedMoE")


class NotingGptOssMxfp4Config(GptOssMxfp4Config):  # type: ignore[misc]
    """At module level, since it is pickled by name into vLLM's other processes."""

    def get_quant_method(self, layer: Any, *args: Any, **kwargs: Any) -> Any:
        if any(each.__name__ in _LAYERS for each in type(layer).__mro__):
            device.tell(this_process())
            this_process().layer_fell_back(_reason)
        return super().get_quant_method(layer, *args, **kwargs)


def register(reason: str) -> None:
    global _reason
    _reason = reason
    register_quantization_config("gpt_oss_mxfp4")(NotingGptOssMxfp4Config)
