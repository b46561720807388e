# SPDX-License-Identifier: Apache-2.0
"""Gated grouped-query attention: RoPE and a window, or no positions and a query scale.

The score kernel, the paged cache and the window lists are vllm-gaudi's; what is
Beam's own (QK norm, positions, output gate) is plain torch around them.
"""

import torch
from torch import nn
from vllm.config import CacheConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import ColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.utils import set_weight_attrs

from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.beam.layers import BeamRMSNorm, rotate
from vllm_gaudi.models.beam.rounding import Rounding


def check_parallel(config: BeamConfig, tp_size: int) -> None:
    """Refuse a tensor-parallel size the heads cannot be split over. Raises ValueError."""
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    if heads % tp_size:
        raise ValueError(f"tensor parallel size {tp_size} does not divide num_attention_heads {heads}")
    if kv % tp_size and tp_size % kv:
        raise ValueError(f"tensor parallel size {tp_size} and num_key_value_heads {kv} divide neither way")


class BeamAttention(nn.Module):
    """One attention sublayer.

    Parameters are sharded by head; KV heads are replicated when there are more
    ranks than KV heads. One all-reduce, in `o_proj`.
    """

    def __init__(
        self,
        config: BeamConfig,
        layer: int,
        rounding: Rounding,
        cache_config: CacheConfig | None,
        quant_config: QuantizationConfig | None,
        prefix: str,
    ) -> None:
        super().__init__()
        tp_size = get_tensor_model_parallel_world_size()
        check_parallel(config, tp_size)
        self.rounding, self.full = rounding, config.is_full(layer)
        self.head_dim = config.head_dim
        self.num_heads = config.num_attention_heads // tp_size
        self.num_kv_heads = max(1, config.num_key_value_heads // tp_size)
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            self.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        # Not `gate_proj`: that name would be taken for a shard of `gate_up_proj`.
        self.output_gate_proj = ColumnParallelLinear(
            config.hidden_size,
            config.num_attention_heads * self.head_dim,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.output_gate_proj",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * self.head_dim,
            config.hidden_size,
            bias=False,
            quant_config=quant_config,
            prefix=f"{prefix}.o_proj",
        )
        self.q_norm = BeamRMSNorm(self.head_dim, config.rms_norm_eps, rounding)
        self.k_norm = BeamRMSNorm(self.head_dim, config.rms_norm_eps, rounding)
        self.gate_bias = nn.Parameter(torch.zeros(self.num_heads), requires_grad=False)
        set_weight_attrs(self.gate_bias, {"weight_loader": load_head_shard})
        self.attn = Attention(
            self.num_heads,
            self.head_dim,
            self.head_dim**-0.5,
            num_kv_heads=self.num_kv_heads,
            cache_config=cache_config,
            quant_config=quant_config,
            per_layer_sliding_window=None if self.full else config.sliding_window,
            prefix=f"{prefix}.attn",
        )

    def position(
        self, q: torch.Tensor, k: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normed `q` and `k` [..., heads, d] with positions worked in: RoPE, or the NoPE query scale."""
        cos, sin, query_scale = tables
        if self.full:
            return self.rounding.narrow(self.rounding.widen(q) * query_scale, q.dtype), k
        return rotate(q, cos, sin, self.rounding), rotate(k, cos, sin, self.rounding)

    def gate(self, attended: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """`attended` times the sigmoid of `gate` plus its head's bias, [..., heads, d] each; three roundings."""
        widen, narrow, dtype = self.rounding.widen, self.rounding.narrow, attended.dtype
        logits = narrow(widen(gate) + self.gate_bias.float()[:, None], dtype)
        opened = narrow(torch.sigmoid(widen(logits)), dtype)
        return narrow(widen(attended) * widen(opened), dtype)

    def forward(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Normed hidden states [..., H] -> [..., H], summed over tensor-parallel ranks."""
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        qkv, _ = self.qkv_proj(x)
        gate, _ = self.output_gate_proj(x)
        q, k, v = qkv.split([q_size, kv_size, kv_size], dim=-1)
        q = self.q_norm(q.unflatten(-1, (self.num_heads, self.head_dim)))
        k = self.k_norm(k.unflatten(-1, (self.num_kv_heads, self.head_dim)))
        q, k = self.position(q, k, tables)
        attended = self.attn(q.flatten(-2), k.flatten(-2), v)
        per_head = (self.num_heads, self.head_dim)
        gated = self.gate(attended.unflatten(-1, per_head), gate.unflatten(-1, per_head))
        return self.o_proj(gated.flatten(-2))[0]


def load_head_shard(param: nn.Parameter, loaded: torch.Tensor) -> None:
    """Copy this rank's heads of a per-head vector."""
    start = get_tensor_model_parallel_rank() * param.shape[0]
    param.data.copy_(loaded.narrow(0, start, param.shape[0]))


load_head_shard.shards_rows = True  # tells the planning load format that rank r takes the r-th part of the rows
