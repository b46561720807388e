# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of Muse Spark that Beam does not share, one function a step, in plain torch.

`wide` chooses the served rounding: factors and intermediates in fp32 and one
rounding at the end. Without it every function rounds where the published eager
model rounds, so in bf16 it is bit equal to it and in fp32 nothing is rounded.
Shapes: T tokens, H hidden, L latent, E experts, K routes a token.
"""

import torch
import torch.nn.functional as F

RESIDUAL_GATE_FLOOR = 1e-3
ROUTER_EPSILON = 1e-15


def unit_norm(x: torch.Tensor, eps: float, dtype: torch.dtype | None = None) -> torch.Tensor:
    """RMSNorm without a weight, over the last dimension, in `dtype` (default: of x)."""
    wide = x.float()
    return (wide * torch.pow(wide.pow(2).mean(-1, keepdim=True) + eps, -0.5)).to(dtype or x.dtype)


def final_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """RMSNorm with a plain weight, rounded once."""
    return (unit_norm(x.float(), eps) * weight.float()).to(dtype)


def gain(weight: torch.Tensor, wide: bool) -> torch.Tensor:
    """fp32 gain `1 + weight` of a stored weight centred on zero; the sum is rounded unless `wide`."""
    return 1.0 + weight.float() if wide else (1.0 + weight).float()


def centred_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, wide: bool, dtype: torch.dtype) -> torch.Tensor:
    """RMSNorm, then the gain."""
    value = x.float()
    value = value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + eps)
    return (value * gain(weight, wide)).to(dtype)


def input_scaled_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, wide: bool, dtype: torch.dtype
) -> torch.Tensor:
    """The gain, then RMSNorm; between the two the value is rounded to the dtype of `x` unless `wide`."""
    value = x.float() * gain(weight, wide)
    if not wide:
        value = value.to(x.dtype).float()
    return (value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + eps)).to(dtype)


def residual_coefficients(gate: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 (kept, branch) factors [H] of a gate vector: sqrt(1 - b^2), floored, and b = sigmoid(gate / temperature)."""
    scaled = gate.float() / temperature
    branch = torch.sigmoid(scaled)
    kept = torch.sqrt(torch.clamp(torch.sigmoid(-scaled) * (1.0 + branch), min=RESIDUAL_GATE_FLOOR))
    return kept, branch


def residual_gate(residual: torch.Tensor, branch: torch.Tensor, gate: torch.Tensor, temperature: float) -> torch.Tensor:
    """Gated residual stream, blended in fp32, in the dtype of `residual`."""
    alpha, beta = residual_coefficients(gate, temperature)
    return (alpha * residual + beta * branch).to(residual.dtype)


def gate_output(attended: torch.Tensor, gate: torch.Tensor, wide: bool) -> torch.Tensor:
    """`attended` times sigmoid(`gate`), elementwise."""
    if wide:
        return (attended.float() * torch.sigmoid(gate.float())).to(gate.dtype)
    return attended * torch.sigmoid(gate)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) rounded, times up, rounded: as the published model and the fused expert kernel."""
    return F.silu(gate) * up


def route(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, multiplier: float, top_k: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sigmoid routing in fp32: (logits [T, E], weights [T, K], ids [T, K]) of hidden states [T, H].

    The bias takes part in the choice only; weights are the scores over their sum, times `scale`.
    """
    logits = F.linear(x.float(), weight.float()) * multiplier
    scores = logits.sigmoid()
    ids = torch.topk(scores + bias.float(), k=top_k, dim=-1, sorted=False)[1]
    weights = scores.gather(1, ids)
    return logits, weights / (weights.sum(dim=-1, keepdim=True) + ROUTER_EPSILON) * scale, ids


def transform_logits(logits: torch.Tensor, multiplier: float, cap: float, wide: bool) -> torch.Tensor:
    """fp32 `cap * tanh(logits * multiplier / cap)`; each of the four products is rounded unless `wide`."""
    value = logits.float() if wide else logits
    return (torch.tanh(value * multiplier / cap) * cap).float()
