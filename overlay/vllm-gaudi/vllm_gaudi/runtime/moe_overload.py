# SPDX-License-Identifier: Apache-2.0
"""FP8 expert calls through an explicit operator overload.

Called through the packet, PyTorch tries the overloads in turn and prints an argument into the message of each
one that does not match; printing a tensor synchronises the lazy graph, once per layer and step.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def kind(value: Any) -> str:
    """Schema type a value is passed as: Tensor, List[Tensor], or the name of a plain Python type."""
    if isinstance(value, torch.Tensor):
        return "Tensor"
    if isinstance(value, list | tuple):
        return f"List[{kind(value[0])}]" if value else "List"
    return type(value).__name__


def matching(packet: Any, call: dict[str, str]) -> Any | None:
    """The one overload of `packet` that takes these keywords with these kinds; None if none or several do."""
    found = []
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = {a.name: a for a in overload._schema.arguments}
        required = {n for n, a in arguments.items() if not a.has_default_value()}
        if not required <= call.keys() <= arguments.keys():
            continue
        if all(str(arguments[n].type) in (k, f"Optional[{k}]") for n, k in call.items()):
            found.append(overload)
    return found[0] if len(found) == 1 else None


@functools.cache
def _resolve(call: tuple[tuple[str, str], ...]) -> Any | None:
    packet = getattr(torch.ops.hpu, "mixture_of_experts", None)
    return None if packet is None else matching(packet, dict(call))


def fp8_moe(
    op: Any,
    x: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    permuted_weights: bool,
    activation: str,
    kwargs: dict[str, Any],
) -> torch.Tensor | None:
    """Dynamic-activation FP8 experts of `op` (per-channel weights); None when upstream should call.

    Args:
        op: VllmMixtureOfExpertsOpFP8PerChannel with its weight views cached.
        x: [tokens, hidden]; topk_ids, topk_weights: [tokens, k].
    """
    from vllm_gaudi.runtime import settings

    if op.w13_input_scale is not None or settings.current().moe_overload == "off":
        return None
    fixed = {
        "w12": op._cached_w13_views,
        "w3": op._cached_w2_views,
        "d_scale_w12": op._cached_w13_scale_views,
        "d_scale_w3": op._cached_w2_scale_views,
        "permuted_weights": permuted_weights,
        "activation": activation,
        "experts_min": op.experts_min,
        "experts_max": op.experts_max,
        **kwargs,
    }
    call = {name: kind(value) for name, value in fixed.items()}
    tensors = ("hidden_states", "expert_routing_table", "router_weights", "d_scale_hidden_states")
    call |= dict.fromkeys(tensors, "Tensor")
    overload = _resolve(tuple(call.items()))
    if overload is None:
        return None
    from vllm_gaudi.extension.ops import dynamic_quant

    x_fp8, x_scale = dynamic_quant(x)
    return overload(
        hidden_states=x_fp8,
        expert_routing_table=topk_ids.to(torch.int64),
        router_weights=topk_weights.to(x.dtype),
        d_scale_hidden_states=x_scale,
        **fixed,
    )
