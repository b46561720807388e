# SPDX-License-Identifier: Apache-2.0
"""Random values for Beam tensors: one generator a tensor, so order and layout do not matter.

The BF16 matrix of a name is the same in every layout of one seed; FP8 is its
per-channel quantisation. Nets with a gain above one are chaotic: a rounding
difference grows layer by layer, so only step-by-step comparisons hold there.
"""

import hashlib
import re
from dataclasses import dataclass

import torch

E4M3_MAX = 448.0


@dataclass(frozen=True)
class Statistics:
    """How the values are drawn.

    `gain` over sqrt(fan-in) is the standard deviation of matrices; `head_gain`
    that of the logits. `branch` scales the norms after attention and MLP, so it
    is the weight of a sublayer beside the residual stream. `own` is what an
    expert does not share with its siblings: with 1 a routing decision that flips
    at a near-tie replaces a random matrix by another. `hostile` adds near-tied router rows (difference 1e-4),
    channels with scales from 2**-12 to 2**6 and one all-zero channel a matrix.
    """

    gain: float = 0.5
    head_gain: float = 2.0
    bias_mean: float = 28.0
    bias_spread: float = 0.01
    branch: float = 1.0
    own: float = 1.0
    hostile: bool = False


SERVED = Statistics(branch=0.5, own=0.3)
GRID = Statistics(gain=1.5, head_gain=1.5)
HOSTILE = Statistics(gain=0.5, bias_spread=1e-5, hostile=True)


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def _normal(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=_generator(seed, name))


def matrix(seed: int, name: str, shape: tuple[int, ...], how: Statistics) -> torch.Tensor:
    """BF16 [out, in]."""
    values = _normal(seed, name, shape)
    if how.own < 1 and ".experts." in name:
        common = _normal(seed, re.sub(r"\.experts\.\d+\.", ".experts.", name), shape)
        values = how.own * values + (1 - how.own**2) ** 0.5 * common
    values *= how.gain / shape[-1] ** 0.5
    if how.hostile:
        spread = torch.linspace(-12, 6, shape[0]).round()
        # Powers of two on a few rows: exact in BF16, and far apart in scale.
        values[::7] *= torch.exp2(spread[::7])[:, None]
        values[-1] = 0.0
    return values.to(torch.bfloat16)


def quantize(values: torch.Tensor, scale_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-channel E4M3 (weight, scale [..., out, 1] in `scale_dtype`) of a BF16 matrix."""
    peak = values.float().abs().amax(dim=-1, keepdim=True)
    scale = torch.where(peak > 0, peak / E4M3_MAX, torch.ones_like(peak)).to(scale_dtype)
    scaled = (values.float() / scale.float()).clamp(-E4M3_MAX, E4M3_MAX)
    return scaled.to(torch.float8_e4m3fn), scale


def vector(seed: int, name: str, kind: str, shape: tuple[int, ...], how: Statistics) -> torch.Tensor:
    """Every tensor that is not a projection, in fp32 (the caller casts)."""
    noise = _normal(seed, name, shape)
    if kind == "norm":
        return (how.branch if ".post_" in name else 1.0) * (1.0 + 0.2 * noise)
    if kind == "router_bias":
        return how.bias_mean + how.bias_spread * noise
    if kind == "gate_bias":
        return 0.5 * noise
    if kind == "router":
        weight = noise * (1.5 / shape[-1] ** 0.5)
        if how.hostile:
            weight[1::2] = weight[0::2] + 1e-4 * noise[1::2]
        return weight
    if kind == "head":
        return noise * (how.head_gain / shape[-1] ** 0.5)
    return noise  # embedding
