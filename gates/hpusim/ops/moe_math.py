# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of `mixture_of_experts`, independent of how an overload spells its weights.

Rounding points follow the public decomposition of the operator: every GEMM, the activation, the product of gate and
up and the weighted row are rounded to the activation dtype, and rows are added in that dtype in expert order.
Rows whose experts are all on other cards stay exact zeros: the accumulator starts at zero and is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from gates.hpusim.ops import fp8
from gates.hpusim.ops.define import NotEmulatedError

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}

# (expert index in the local list, rows [R, H] routed to it, their token indices [R]) -> [R, H]
Expert = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


def activation_function(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The activation called `name`; the device knows silu, gelu and relu."""
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise NotEmulatedError(f"mixture_of_experts: activation {name!r} is not one of the device's: {known}")
    return ACTIVATIONS[name]


def check(c: SimpleNamespace, *lists: str) -> None:
    """Refuse a call the device cannot run, naming the argument.

    Args:
        c: arguments of the call: hidden_states `[T, H]`, expert_routing_table `[T, k]` int32 or int64 global ids,
            router_weights `[T, k]`, experts_min and experts_max the inclusive range of global ids held locally.
        lists: names of the per-expert arguments, each with one entry per local expert.
    """
    x, table = c.hidden_states, c.expert_routing_table
    if x.dim() != 2:
        raise RuntimeError(f"mixture_of_experts: hidden_states must be [tokens, hidden], got {tuple(x.shape)}")
    if table.shape != c.router_weights.shape or table.dim() != 2 or table.shape[0] != x.shape[0]:
        raise RuntimeError(
            f"mixture_of_experts: expert_routing_table {tuple(table.shape)} and router_weights "
            f"{tuple(c.router_weights.shape)} must both be [{x.shape[0]}, k]"
        )
    if table.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"mixture_of_experts: expert_routing_table must be int32 or int64, got {table.dtype}")
    if x.dtype not in (*fp8.WIDE_DTYPES, *fp8.FP8_DTYPES):
        raise NotEmulatedError(f"mixture_of_experts: hidden_states are {x.dtype}, which the device does not take")
    local = c.experts_max - c.experts_min + 1
    if c.experts_min < 0 or local < 0:
        raise RuntimeError(f"mixture_of_experts: experts {c.experts_min}..{c.experts_max} is no range of expert ids")
    for name in lists:
        count = len(getattr(c, name))
        if count != local:
            raise RuntimeError(
                f"mixture_of_experts: {name} has {count} entries, experts {c.experts_min}..{c.experts_max} need {local}"
            )


def route(c: SimpleNamespace, out: torch.Tensor, expert: Expert) -> torch.Tensor:
    """Add `router_weight * expert(row)` of every local route of the call `c` onto `out` `[T, H]`; return it."""
    for global_id in c.expert_routing_table.unique().tolist():
        if not c.experts_min <= global_id <= c.experts_max:
            continue
        token, slot = torch.where(c.expert_routing_table == global_id)
        result = expert(global_id - c.experts_min, c.hidden_states[token], token)
        weighted = result * c.router_weights[token, slot].unsqueeze(-1)
        out.index_add_(0, token, weighted.to(out.dtype))
    return out


def gated(rows, gate, up, down, activation) -> torch.Tensor:
    """`(act(rows @ gate) * (rows @ up)) @ down` with rows `[R, H]`, gate and up `[H, I]`, down `[I, H]`."""
    return (activation(rows @ gate) * (rows @ up)) @ down


def clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """`(up + 1) * gate * sigmoid(alpha * gate)` of interleaved columns; gate <= limit, |up| <= limit (GPT-OSS)."""
    gate = gate_up[..., 0::2].clamp(max=limit)
    up = gate_up[..., 1::2].clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))


def requantise(hidden: torch.Tensor, dtype: torch.dtype, static_scale) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 input of the down projection and its dequantisation scale: per token, or `static_scale` when given."""
    if static_scale is None:
        return fp8.dynamic_quant(hidden, dtype)
    scale = torch.as_tensor(static_scale, dtype=torch.float32)
    return fp8.encode(hidden, 1.0 / scale, dtype), scale


def gated_fp8(rows, row_scale, weights, scales, activation, static_scale=None) -> torch.Tensor:
    """One FP8 expert; the input of the down projection is quantised again.

    Args:
        rows: `[R, H]` FP8; row_scale: one value or `[R, 1]`.
        weights: gate and up `[H, I]`, down `[I, H]`, FP8.
        scales: their dequantisation scales, one value or one per output column each.
        static_scale: dequantisation scale of the down projection's input; None quantises per token.

    Returns:
        `[R, H]` bf16.
    """
    gate, up, down = weights
    hidden = activation(fp8.gemm(rows, gate, torch.bfloat16, row_scale, scales[0]))
    hidden = hidden * fp8.gemm(rows, up, torch.bfloat16, row_scale, scales[1])
    quantised, scale = requantise(hidden, rows.dtype, static_scale)
    return fp8.gemm(quantised, down, torch.bfloat16, scale, scales[2])
