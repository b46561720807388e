# SPDX-License-Identifier: Apache-2.0
"""FP8 arithmetic of the device: range, decoding, casts and the scaled GEMM.

Rounding is that of upstream's stored device outputs (tests/unit_tests/ops/data, static FP8 linear), reproduced bit
for bit: the scale is rounded to the dtype of the tensor, the product is rounded to that dtype, then to FP8; the GEMM
accumulates wide, rounds to the output dtype, and is multiplied by the product of both scales rounded to that dtype.
"""

from __future__ import annotations

import torch

from gates.hpusim.ops.define import NotEmulatedError
from gates.hpusim.ops.personality import fp8_max

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
WIDE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_FIRST_SPECIAL = 256.0  # on Gaudi 2 the top exponent of E4M3 means infinity (mantissa 0) or NaN, as in IEEE formats


def decode(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values the device sees in an FP8 tensor, any shape, in `dtype`.

    On Gaudi 2 E4M3 ends at 240: the 14 patterns above it that Python's `float8_e4m3fn` calls 256..448 are infinities
    and NaNs to the hardware. Weights that were not rescaled at load therefore poison what they touch.
    """
    values = tensor.to(dtype)
    if tensor.dtype is torch.float8_e4m3fn and fp8_max(tensor.dtype) < _FIRST_SPECIAL:
        magnitude = values.abs()
        if bool((magnitude >= _FIRST_SPECIAL).any()):
            special = torch.where(magnitude == _FIRST_SPECIAL, torch.inf, torch.nan) * values.sign()
            values = torch.where(magnitude >= _FIRST_SPECIAL, special.to(dtype), values)
    return values


def encode(tensor: torch.Tensor, scale: torch.Tensor | float | None, dtype: torch.dtype) -> torch.Tensor:
    """`tensor * scale` saturated to the device's range and rounded to `dtype` (round half to even).

    Args:
        tensor: bf16, fp16 or fp32, any shape.
        scale: broadcastable to `tensor`; rounded to its dtype first, as the device does.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e5m2`.
    """
    if dtype not in FP8_DTYPES:
        raise NotEmulatedError(f"cast_to_fp8_v2: dtype {dtype} is not an FP8 dtype of the device ({FP8_DTYPES})")
    if tensor.dtype not in WIDE_DTYPES:
        raise NotEmulatedError(f"cast_to_fp8_v2: input is {tensor.dtype}; the device casts {WIDE_DTYPES}")
    if scale is not None:
        factor = (
            scale.to(tensor.dtype)
            if isinstance(scale, torch.Tensor)
            else float(torch.tensor(scale, dtype=tensor.dtype))
        )
        tensor = tensor * factor
    limit = fp8_max(dtype)
    return tensor.float().clamp(-limit, limit).to(dtype)


def largest(tensor: torch.Tensor) -> torch.Tensor:
    """Largest magnitude as an fp32 scalar; 0 of no elements."""
    return tensor.abs().amax().float() if tensor.numel() else tensor.new_zeros((), dtype=torch.float32)


def dynamic_quant(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Per-row quantisation inside an operator: FP8 rows `[.., K]` and their scales `[.., 1]` in the dtype of `tensor`.

    The scale is `(amax + 1e-8) / range` computed in the dtype of the activation, as the plug-in's own quantiser does.
    """
    scale = (tensor.abs().amax(dim=-1, keepdim=True) + 1e-8) / fp8_max(dtype)
    return encode(tensor, 1.0 / scale, dtype), scale


def _factors(scale: torch.Tensor | float | None, count: int, name: str) -> torch.Tensor:
    """fp32 `[1]` or `[count]`; RuntimeError when `scale` holds another number of values."""
    scale = torch.as_tensor(1.0 if scale is None else scale).float().flatten()
    if scale.numel() not in (1, count):
        raise RuntimeError(f"fp8_gemm_v2: {name} holds {scale.numel()} values, expected one or {count}")
    return scale


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    out_dtype: torch.dtype,
    a_scale: torch.Tensor | float | None = None,
    b_scale: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """`(a @ b) * (a_scale * b_scale)` with the device's rounding points.

    Args:
        a: `[.., M, K]` FP8. b: `[.., K, N]` FP8.
        out_dtype: bf16 or fp32, dtype of the result and of both rounding points.
        a_scale: one value or one per row of `a` (M); b_scale: one value or one per column of `b` (N).

    Returns:
        `[.., M, N]` in `out_dtype`.
    """
    product = (decode(a) @ decode(b)).to(out_dtype)
    if a_scale is None and b_scale is None:
        return product
    rows = _factors(a_scale, a.shape[-2], "A_scale_inv").unsqueeze(-1)
    return product * (rows * _factors(b_scale, b.shape[-1], "B_scale_inv")).to(out_dtype)
