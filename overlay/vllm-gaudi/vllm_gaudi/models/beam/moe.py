# SPDX-License-Identifier: Apache-2.0
"""Dense SwiGLU and the mixture of experts."""

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.beam.expert_slices import slice_after_loading
from vllm_gaudi.models.beam.layers import swiglu
from vllm_gaudi.models.beam.rounding import Rounding
from vllm_gaudi.models.beam.router import BeamRouter

try:
    from vllm.model_executor.layers.fused_moe import FusedMoE
except ImportError:  # its name from vLLM 0.27 on, with the same arguments
    from vllm.model_executor.layers.fused_moe import FusedMoEFactory as FusedMoE


class BeamMLP(nn.Module):
    """Dense SwiGLU, sharded over the intermediate size; one all-reduce."""

    def __init__(
        self, config: BeamConfig, rounding: Rounding, quant_config: QuantizationConfig | None, prefix: str
    ) -> None:
        super().__init__()
        _check_split("intermediate_size", config.intermediate_size)
        self.rounding = rounding
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size,
            [config.intermediate_size] * 2,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.gate_up_proj",
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size,
            config.hidden_size,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.down_proj",
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        gate_up, _ = self.gate_up_proj(x)
        return self.down_proj(swiglu(gate_up, self.rounding))[0]


class BeamMoE(nn.Module):
    """Routed experts on vllm-gaudi's fused kernel; one all-reduce, no shared expert.

    The routed scale multiplies the combined and reduced output, in fp32.
    """

    def __init__(
        self, vllm_config: VllmConfig, config: BeamConfig, rounding: Rounding, expert_slices: int, prefix: str
    ) -> None:
        super().__init__()
        if not vllm_config.parallel_config.enable_expert_parallel:
            _check_split("moe_intermediate_size", config.moe_intermediate_size)
        self.rounding, self.routed_scale = rounding, float(config.routed_scaling_factor)
        self.gate = BeamRouter(config, prefix=f"{prefix}.gate")
        self.experts = FusedMoE(
            num_experts=config.num_experts,
            top_k=config.num_experts_per_tok,
            hidden_size=config.hidden_size,
            intermediate_size=config.moe_intermediate_size,
            renormalize=config.norm_topk_prob,
            quant_config=vllm_config.quant_config,
            custom_routing_function=self.gate.select,
            scoring_func="sigmoid",
            router_logits_dtype=torch.float32,
            prefix=f"{prefix}.experts",
        )
        if expert_slices > 1:
            slice_after_loading(self.experts.routed_experts, expert_slices, prefix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]. The kernel takes [T, H], so batch and sequence are one."""
        flat = x.reshape(-1, x.shape[-1])
        logits, _ = self.gate(flat)
        routed = self.experts(hidden_states=flat, router_logits=logits)
        scaled = self.rounding.narrow(self.rounding.widen(routed) * self.routed_scale, x.dtype)
        return scaled.view(x.shape)


def _check_split(name: str, size: int) -> None:
    tp_size = get_tensor_model_parallel_world_size()
    if size % tp_size:
        raise ValueError(f"tensor parallel size {tp_size} does not divide {name} {size}")
