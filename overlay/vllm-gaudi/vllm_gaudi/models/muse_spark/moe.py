# SPDX-License-Identifier: Apache-2.0
"""Feed-forward sublayers: the latent mixture of experts, and the dense SwiGLU."""

import torch
import torch.nn.functional as F
from torch import nn
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, ReplicatedLinear, RowParallelLinear

from vllm_gaudi.models.muse_spark.config import MuseSparkTextConfig
from vllm_gaudi.models.muse_spark.expert_ops import OPERATORS
from vllm_gaudi.models.muse_spark.experts import MuseExperts
from vllm_gaudi.models.muse_spark.norms import WeightedNorm
from vllm_gaudi.models.muse_spark.placement import Placement
from vllm_gaudi.models.muse_spark.settings import MuseSettings

EPSILON = 1e-15


class MuseRouter(nn.Module):
    """Sigmoid router on the hidden states before pooling, fp32 from the stored weight to the routing weights."""

    def __init__(self, config: MuseSparkTextConfig) -> None:
        super().__init__()
        shape = (config.num_local_experts, config.hidden_size)
        self.weight = nn.Parameter(torch.zeros(shape, dtype=torch.float32), requires_grad=False)
        self.e_score_correction_bias = nn.Parameter(torch.zeros(shape[0], dtype=torch.float32), requires_grad=False)
        self.multiplier, self.top_k = config.output_multiplier, config.num_experts_per_tok
        self.scale = config.routed_scaling_factor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, H] -> (weights [T, k] fp32, ids [T, k] int64). The bias takes part in the choice only."""
        scores = torch.sigmoid(F.linear(x.float(), self.weight) * self.multiplier)
        ids = torch.topk(scores + self.e_score_correction_bias, self.top_k, dim=-1, sorted=False).indices
        weights = scores.gather(-1, ids)
        return weights / (weights.sum(dim=-1, keepdim=True) + EPSILON) * self.scale, ids


class MuseMoE(nn.Module):
    """Pool, norm, experts, unpool. Everything but the experts is replicated; one fp32 all-reduce a token chunk."""

    def __init__(
        self, config: MuseSparkTextConfig, packed: bool, settings: MuseSettings, dtype: torch.dtype, prefix: str
    ) -> None:
        super().__init__()
        latent = config.moe_hidden_size
        placement = Placement(
            get_tensor_model_parallel_rank(),
            get_tensor_model_parallel_world_size(),
            settings.expert_groups,
            config.num_local_experts,
            latent,
            config.moe_intermediate_size,
        )
        self.gate = MuseRouter(config)
        self.pre_expert_proj = ReplicatedLinear(
            config.hidden_size, latent, bias=False, prefix=f"{prefix}.pre_expert_proj"
        )
        self.pre_expert_norm = WeightedNorm(latent, config.rms_norm_eps, "centred", dtype)
        operator = OPERATORS[settings.expert_op]()
        self.experts = MuseExperts(placement, packed, config.post_norm_eps, operator, settings.chunk_bytes, dtype)
        self.post_expert_proj = ReplicatedLinear(
            latent, config.hidden_size, bias=False, prefix=f"{prefix}.post_expert_proj"
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normed hidden states [..., H] -> [..., H]."""
        flat = x.reshape(-1, x.shape[-1])
        weights, ids = self.gate(flat)
        latent = self.pre_expert_norm(self.pre_expert_proj(flat)[0])
        return self.post_expert_proj(self.experts(latent, weights, ids))[0].view(x.shape)


class MuseMLP(nn.Module):
    """Dense SwiGLU, sharded over the intermediate size; one all-reduce."""

    def __init__(self, config: MuseSparkTextConfig, prefix: str) -> None:
        super().__init__()
        world = get_tensor_model_parallel_world_size()
        inner = config.intermediate_size
        if inner % world:
            raise ValueError(f"tensor parallel size {world} does not divide intermediate_size {inner}")
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, [inner] * 2, bias=False, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(inner, config.hidden_size, bias=False, prefix=f"{prefix}.down_proj")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., H] -> [..., H]."""
        gate, up = self.gate_up_proj(x)[0].chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)[0]
