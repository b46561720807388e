# SPDX-License-Identifier: Apache-2.0
"""The four norms and the residual gate of Muse Spark, in fp32 with one rounding to the wanted dtype."""

import torch
from torch import nn

RESIDUAL_GATE_FLOOR = 1e-3


def unit_norm(x: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """RMSNorm without a weight over the last dimension, in `dtype`."""
    wide = x.float()
    return (wide * torch.pow(wide.pow(2).mean(-1, keepdim=True) + eps, -0.5)).to(dtype)


class UnitNorm(nn.Module):
    """`unit_norm` as a module, so that it can be watched."""

    def __init__(self, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps, self.dtype = eps, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unit_norm(x, self.eps, self.dtype)


class WeightedNorm(nn.Module):
    """RMSNorm of [..., size] with a stored weight w, giving `dtype`.

    `kind` is `plain` (times w), `centred` (times 1 + w) or `input` (times 1 + w before the norm).
    """

    def __init__(self, size: int, eps: float, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.eps, self.kind, self.dtype = eps, kind, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same in `dtype`."""
        wide, weight = x.float(), self.weight.float()
        if self.kind == "plain":
            return (unit_norm(wide, self.eps, torch.float32) * weight).to(self.dtype)
        if self.kind == "input":
            wide = wide * (1.0 + weight)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide if self.kind == "input" else wide * (1.0 + weight)).to(self.dtype)


class ResidualGate(nn.Module):
    """Blend of residual stream and branch, per channel: `sqrt(1 - b^2) * stream + b * branch`, b = sigmoid(gate / t).

    The first factor has a floor. Stream and result are fp32.
    """

    def __init__(self, size: int, temperature: float) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(size, dtype=torch.float32), requires_grad=False)
        self.temperature = temperature

    def forward(self, residual: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
        """Both [..., size] -> fp32 [..., size]."""
        scaled = self.gate / self.temperature
        beta = torch.sigmoid(scaled)
        alpha = torch.sqrt(torch.clamp(torch.sigmoid(-scaled) * (1.0 + beta), min=RESIDUAL_GATE_FLOOR))
        return alpha * residual + beta * branch
