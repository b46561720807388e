# SPDX-License-Identifier: Apache-2.0
"""Gated grouped-query attention. Whether a layer has a window and whether it rotates are two separate facts.

The score kernel, the paged cache and the window lists are vllm-gaudi's; QK norm, positions, output norm and gate are
plain torch around them. The query scale is part of the score scale.
"""

import torch
from torch import nn
from vllm.config import CacheConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear

from vllm_gaudi.models.beam.attention import check_parallel
from vllm_gaudi.models.beam.layers import rotate
from vllm_gaudi.models.beam.rounding import Rounding
from vllm_gaudi.models.muse_spark.config import MuseSparkTextConfig
from vllm_gaudi.models.muse_spark.norms import unit_norm


class MuseAttention(nn.Module):
    """One attention sublayer, sharded by head; one all-reduce, in `o_proj`."""

    def __init__(self, config: MuseSparkTextConfig, layer: int, cache_config: CacheConfig | None, prefix: str) -> None:
        super().__init__()
        world = get_tensor_model_parallel_world_size()
        check_parallel(config, world)
        self.head_dim, self.eps, self.rope = config.head_dim, config.rms_norm_eps, config.has_rope(layer)
        self.num_heads = config.num_attention_heads // world
        self.num_kv_heads = max(1, config.num_key_value_heads // world)
        hidden, width = config.hidden_size, config.num_attention_heads * self.head_dim
        self.qkv_proj = QKVParallelLinear(
            hidden,
            self.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=False,
            prefix=f"{prefix}.qkv_proj",
        )
        # Not `gate_proj`: that name would be taken for a shard of `gate_up_proj`.
        self.output_gate_proj = ColumnParallelLinear(hidden, width, bias=False, prefix=f"{prefix}.output_gate_proj")
        self.o_proj = RowParallelLinear(width, hidden, bias=False, prefix=f"{prefix}.o_proj")
        self.rounding = Rounding()
        self.attn = Attention(
            self.num_heads,
            self.head_dim,
            config.qk_scale_factor * self.head_dim**-0.5,
            num_kv_heads=self.num_kv_heads,
            cache_config=cache_config,
            per_layer_sliding_window=config.window(layer),
            prefix=f"{prefix}.attn",
        )

    def forward(self, x: torch.Tensor, tables: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Normed hidden states [..., H], cos and sin [..., 1, d/2] -> [..., H], summed over ranks."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        q, k, v = self.qkv_proj(x)[0].split([q_size, kv_size, kv_size], dim=-1)
        gate = self.output_gate_proj(x)[0]
        q, k = (unit_norm(value.unflatten(-1, (-1, self.head_dim)), self.eps, x.dtype) for value in (q, k))
        if self.rope:
            cos, sin = tables[:2]
            q, k = rotate(q, cos, sin, self.rounding), rotate(k, cos, sin, self.rounding)
        attended = self.attn(q.flatten(-2), k.flatten(-2), v)
        normed = unit_norm(attended.unflatten(-1, (-1, self.head_dim)), self.eps, torch.float32).flatten(-2)
        return self.o_proj((normed * torch.sigmoid(gate.float())).to(x.dtype))[0]
