# SPDX-License-Identifier: Apache-2.0
"""Norms, residuals, activation, positions and softcap of Beam.

All arithmetic is on fp32 tensors with one rounding to the activation dtype at
the end, because a Python scalar times a bf16 tensor may become bf16 on the
device, and because the published model multiplies norm weights before rounding.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from vllm_gaudi.models.beam.rounding import Rounding

NOPE_ANCHOR = 2048.0  # tokens; queries of full layers scale with (1 + (p + 1) / 2048) ** 0.1
NOPE_EXPONENT = 0.1


class BeamRMSNorm(nn.Module):
    """RMSNorm over the last dimension, weight applied in fp32 before the rounding."""

    def __init__(self, size: int, eps: float, rounding: Rounding) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size), requires_grad=False)
        self.eps, self.rounding = eps, rounding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., size] -> same shape and dtype."""
        wide = self.rounding.widen(x)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.rounding.narrow(self.weight.float() * wide, x.dtype)


def residual_coefficients(layer: int, sublayer: int) -> tuple[float, float]:
    """(branch, residual) factors of the add after sublayer 0 (attention) or 1 (MLP) of 0-based `layer`.

    n = 2 (layer + 1) + sublayer; the factors are 1/sqrt(n) and sqrt((n - 1)/n).
    """
    n = 2 * (layer + 1) + sublayer
    return 1.0 / math.sqrt(n), math.sqrt((n - 1) / n)


class DepthScaledAdd(nn.Module):
    """Residual add whose branch shrinks with depth; both products are rounded before the sum."""

    def __init__(self, layer: int, sublayer: int, rounding: Rounding) -> None:
        super().__init__()
        self.branch_scale, self.residual_scale = residual_coefficients(layer, sublayer)
        self.rounding = rounding

    def forward(self, branch: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Both [..., H] of one dtype -> the new residual stream."""
        widen, narrow, dtype = self.rounding.widen, self.rounding.narrow, residual.dtype
        scaled = narrow(widen(branch) * self.branch_scale, dtype)
        kept = narrow(widen(residual) * self.residual_scale, dtype)
        return narrow(widen(scaled) + widen(kept), dtype)


def swiglu(gate_up: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """`gate_up` [..., 2I], gate rows first -> silu(gate) * up in fp32, rounded once, [..., I]."""
    gate, up = rounding.widen(gate_up).chunk(2, dim=-1)
    return rounding.narrow(F.silu(gate) * up, gate_up.dtype)


def softcap(logits: torch.Tensor, cap: float | None, rounding: Rounding) -> torch.Tensor:
    """fp32 `cap * tanh(logits / cap)` of the head's output; None returns the fp32 logits."""
    wide = rounding.widen(logits)
    return wide if cap is None else torch.tanh(wide / cap) * cap


class Positions(nn.Module):
    """fp32 tables over absolute positions, built on the host.

    cos and sin [N, d/2] of the one RoPE, and the NoPE query scale [N]; the
    device's own transcendentals differ for large angles. N rows cover what is
    served, not the model's maximum.
    """

    def __init__(self, rows: int, head_dim: int, theta: float) -> None:
        super().__init__()
        with torch.device("cpu"):
            inverse = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
            place = torch.arange(rows, dtype=torch.float32)
            angles = place[:, None] * inverse
            scale = torch.exp(NOPE_EXPONENT * torch.log1p((place + 1) / NOPE_ANCHOR))
            tables = {"cos": angles.cos(), "sin": angles.sin(), "query_scale": scale}
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Integer `positions` [...] -> cos and sin [..., 1, d/2], scale [..., 1, 1].

        Padding positions (-1) read row 0: their output is never used.
        """
        index = positions.clamp(min=0).flatten()
        shape = (*positions.shape, 1, -1)
        return tuple(table.index_select(0, index).view(shape) for table in (self.cos, self.sin, self.query_scale))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Half-split RoPE of `x` [..., heads, d] in fp32, rounded once."""
    first, second = rounding.widen(x).chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rounding.narrow(turned, x.dtype)
