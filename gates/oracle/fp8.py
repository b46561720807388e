# SPDX-License-Identifier: Apache-2.0
"""FP8 arithmetic of a Gaudi 2 card on the CPU: weights, activations, GEMM.

Gaudi 2 holds E4M3 values up to 240, the checkpoint format (e4m3fn) goes to 448.
Weights are therefore halved and their scales doubled, and activations are
scaled per token to 240. Products of E4M3 values are exact in fp32, so a fp32
GEMM on the decoded values is the reference for the card's fp32 accumulator.
"""

import torch
import torch.nn.functional as F

GAUDI2_E4M3_MAX = 240.0
E4M3 = torch.float8_e4m3fn


def halve(weight: torch.Tensor) -> torch.Tensor:
    """E4M3 `weight` times 0.5, rounded to nearest even (inexact only for subnormals), dtype kept."""
    return (weight.float() * 0.5).to(E4M3)


def gaudi2_weight(weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(halved E4M3 weight, doubled scale in its own dtype) of a per-channel quantised matrix."""
    return halve(weight), scale * 2.0


def dequantize(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp32 matrix [out, in] of an E4M3 weight and its [out, 1] scale."""
    return weight.float() * scale.float()


def quantize_tokens(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-token dynamic quantisation of `x` [..., K].

    The scale `(max|x| + 1e-8) / 240`, its reciprocal and the scaled values are
    taken in the dtype of `x` (bf16 when serving): the plug-in computes the first
    two so, and the cast instruction rounds the product before it rounds to E4M3.
    Returns (E4M3 values, fp32 scale [..., 1]).
    """
    scale = ((x.abs().amax(dim=-1, keepdim=True)) + 1e-8) / GAUDI2_E4M3_MAX
    scaled = (x * (1.0 / scale)).float()
    return scaled.clamp(-GAUDI2_E4M3_MAX, GAUDI2_E4M3_MAX).to(E4M3), scale.float()


def w8a8_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`x` [..., K] times a Gaudi 2 weight [N, K] with scale [N, 1], in `out_dtype` (default: of x).

    Rounding points of the card's scaled GEMM: the wide sum is rounded to the
    output dtype, then multiplied by the product of both scales in that dtype.
    """
    out_dtype = out_dtype or x.dtype
    quantized, token_scale = quantize_tokens(x)
    product = F.linear(quantized.float(), weight.float()).to(out_dtype)
    return product * (token_scale * scale.float().reshape(-1)).to(out_dtype)
