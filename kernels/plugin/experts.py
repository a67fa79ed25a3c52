"""Our kernel as experts of vLLM's modular kernel, which brings tokens of other ranks to them and takes results back."""

from __future__ import annotations

from typing import Any

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.quantization.utils.quant_utils import kMxfp4Static

from kernels.moe.layer import fused_moe, workspace_bytes
from kernels.plugin.choice import choose, gpt_oss_shape
from kernels.plugin.cover import takes_tokens_of
from kernels.shapes import GPT_OSS_SWIGLU, MoeShape
from kernels.tile import LayerConfig

_ITEM_BYTES = 2  # of both types of activations


class PacelineMxfp4Experts(mk.FusedMoEExpertsModular):  # type: ignore[misc]
    """Takes activations as they are (16 bits), multiplies by the router's weights and sums over a token's experts."""

    def __init__(self, moe_config: Any, quant_config: Any) -> None:
        super().__init__(moe_config, quant_config)
        self._found = choose(shape_of(moe_config, moe_config.hidden_dim, moe_config.intermediate_size_per_partition))
        self._configs: dict[int, LayerConfig] = {}

    @property
    def expects_unquantized_inputs(self) -> bool:
        return True

    @staticmethod
    def activation_format() -> Any:
        return mk.FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device() -> bool:
        return True  # kernels.plugin.choice has tried it by then

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return bool(weight_key == kMxfp4Static and activation_key is None)

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return bool(activation == MoEActivation.SWIGLUOAI)

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return not moe_parallel_config.enable_eplb and takes_tokens_of(moe_parallel_config)

    def finalize_weight_and_reduce_impl(self) -> Any:
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(
        self, M: int, N: int, K: int, topk: int, global_num_experts: int, local_num_experts: int,
        expert_tokens_meta: Any, activation: Any,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:  # fmt: skip
        """All in the second: vLLM lays the first over the output, which is written while the second is read."""
        items = workspace_bytes(M, topk, K, N // 2, _ITEM_BYTES) // _ITEM_BYTES
        return (0,), (M, -(-items // M)), (M, K)

    def apply(
        self, output: torch.Tensor, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor,
        topk_weights: torch.Tensor, topk_ids: torch.Tensor, activation: Any, global_num_experts: int,
        expert_map: torch.Tensor | None, a1q_scale: torch.Tensor | None, a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor, workspace2: torch.Tensor, expert_tokens_meta: Any, apply_router_weight_on_input: bool,
    ) -> None:  # fmt: skip
        if apply_router_weight_on_input or activation != MoEActivation.SWIGLUOAI:
            raise NotImplementedError(
                f"activation {activation} with apply_router_weight_on_input = {apply_router_weight_on_input}: "
                "not gpt-oss's layer; unset PACELINE_MOE"
            )
        fused_moe(
            hidden_states, w1, self.w1_scale, w2, self.w2_scale,
            topk_ids.to(torch.int32).contiguous(), topk_weights.to(torch.float32).contiguous(),
            config=self._config(hidden_states.shape[0]), activation=GPT_OSS_SWIGLU, gate_up="interleaved",
            b13=self.w1_bias, b2=self.w2_bias, expert_map=expert_map, out=output, workspace=workspace2.view(torch.uint8),
        )  # fmt: skip

    def _config(self, tokens: int) -> LayerConfig:
        config = self._configs.get(tokens)
        if config is None:
            config = self._configs[tokens] = self._found.config(tokens).config
        return config


def shape_of(moe: Any, hidden: int, intermediate: int) -> MoeShape:
    return gpt_oss_shape(moe.num_local_experts, moe.experts_per_token, hidden, intermediate, moe.has_bias, moe.num_experts)
