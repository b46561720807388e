# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of Beam-1.0, one function a step, in plain torch.

Shapes: T tokens, H hidden, h heads, k key/value heads, d head width, E experts,
K routes a token. `dtype` of the activations decides the mode: float32 has no
intermediate rounding, bfloat16 rounds wherever the published model does in
eager mode. Products with Python scalars are taken in fp32 and rounded once.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm with the weight multiplied in fp32, before the single rounding."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight.float() * wide).to(x.dtype)


def residual_coefficients(layer: int, sublayer: int) -> tuple[float, float]:
    """(branch, residual) coefficients of layer `layer` (0-based), sublayer 0 = attention, 1 = MLP.

    With n the 1-based number of this add plus one: 1/sqrt(n) and sqrt((n-1)/n).
    """
    adds = 2 * (layer + 1) + sublayer
    return 1.0 / math.sqrt(adds), math.sqrt((adds - 1) / adds)


def residual_add(branch: torch.Tensor, residual: torch.Tensor, coefficients: tuple[float, float]) -> torch.Tensor:
    """Depth-scaled residual: each product is rounded, then the sum."""
    return branch * coefficients[0] + residual * coefficients[1]


def rope_tables(positions: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 cos and sin [T, d] for 0-based `positions` [T] (half-split layout, both halves equal)."""
    inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))
    angles = positions[:, None].float() * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `x` [T, heads, d] in fp32, one rounding at the end."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cos[:, None] + turned * sin[:, None]).to(x.dtype)


def nope_query_scale(positions: torch.Tensor) -> torch.Tensor:
    """fp32 factor [T] of the queries of full-attention layers: (1 + (p + 1) / 2048) ** 0.1."""
    return torch.exp(0.1 * torch.log1p((positions.float() + 1) / 2048))


def scale_query(q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """`q` [T, h, d] times the NoPE scale of its position, one rounding."""
    return (q.float() * nope_query_scale(positions)[:, None, None]).to(q.dtype)


def causal_mask(queries: torch.Tensor, keys: torch.Tensor, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [q, kv] from positions: key visible iff q - window < key <= q (window counts the token itself)."""
    visible = keys[None, :] <= queries[:, None]
    if window is not None:
        visible &= keys[None, :] > queries[:, None] - window
    mask = torch.zeros(visible.shape, dtype=dtype)
    return mask.masked_fill(~visible, torch.finfo(dtype).min)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    window: int | None,
    tile: int | None,
    scale: float | None = None,
) -> torch.Tensor:
    """Eager attention: q [T, h, d], k and v [T, kv, d] -> [T, h, d]; scores rounded as in eager mode.

    `tile` bounds memory to `tile` query rows at a time; None keeps one GEMM for
    all rows, which is what bit equality with the published model needs.
    `scale` multiplies the scores; None is 1/sqrt(d).
    """
    group = q.shape[1] // k.shape[1]
    key = k.transpose(0, 1).repeat_interleave(group, dim=0)[None]
    value = v.transpose(0, 1).repeat_interleave(group, dim=0)[None]
    query = q.transpose(0, 1)[None]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    rows = []
    for start in range(0, q.shape[0], tile or q.shape[0]):
        part = slice(start, start + (tile or q.shape[0]))
        scores = torch.matmul(query[:, :, part], key.transpose(2, 3)) * scale
        scores = scores + causal_mask(positions[part], positions, window, q.dtype)
        probabilities = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        rows.append(torch.matmul(probabilities, value)[0].transpose(0, 1))
    return torch.cat(rows).contiguous()


def gate_output(attended: torch.Tensor, gate: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Sigmoid output gate: `attended` and `gate` [T, h, d], one `bias` a head [h]."""
    return attended * torch.sigmoid(gate + bias[None, :, None])


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up in fp32, rounded once."""
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def router_logits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """fp32 logits [T, E] of normed hidden states [T, H] (fp32 weight, fp32 GEMM)."""
    return F.linear(x.float(), weight.float())


def route(
    logits: torch.Tensor, bias: torch.Tensor, groups: int, kept_groups: int, top_k: int, normalize: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Group-limited sigmoid routing, all in fp32.

    The correction bias [E] takes part in the choice only. A group's score is the
    sum of its two best corrected scores. Returns (weights [T, K] fp32, ids
    [T, K] int64 by falling corrected score).
    """
    scores = logits.sigmoid()
    choice = scores + bias.float()
    grouped = choice.view(-1, groups, choice.shape[-1] // groups)
    best = torch.topk(grouped.topk(2, dim=-1)[0].sum(dim=-1), k=kept_groups, dim=-1)[1]
    keep = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, best, True)
    choice = grouped.masked_fill(~keep[:, :, None], float("-inf")).flatten(1)
    ids = torch.topk(choice, k=top_k, dim=-1)[1]
    weights = scores.gather(1, ids)
    if normalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights, ids


def softcap(logits: torch.Tensor, cap: float | None) -> torch.Tensor:
    """fp32 `cap * tanh(logits / cap)`; None leaves the logits as they are."""
    if cap is None:
        return logits
    return torch.tanh(logits.float() / cap) * cap
