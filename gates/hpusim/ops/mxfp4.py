# SPDX-License-Identifier: Apache-2.0
"""MXFP4 weights (OCP microscaling: E2M1 codes, one E8M0 scale per block) unpacked to bf16, as the MoE kernel does."""

from __future__ import annotations

import torch

# E2M1 code 0..15: sign, two exponent bits, one mantissa bit.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def e8m0(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes to fp32: `2^(byte - 127)`, byte 255 is NaN, byte 0 the subnormal 2^-127."""
    return scale.view(torch.float8_e8m0fnu).float()


def unpack(packed: torch.Tensor, scale: torch.Tensor, block_size: int, columns: int | None = None) -> torch.Tensor:
    """bf16 weights `[rows, columns]` of packed MXFP4.

    Args:
        packed: uint8 `[rows, ceil(columns / 2)]`, even column in the low nibble.
        scale: uint8 E8M0 `[rows, ceil(columns / block_size)]`.
        block_size: columns that share one scale.
        columns: number of real columns; None takes all that are packed.

    Raises:
        RuntimeError: dtype or shapes do not describe one packed matrix.
    """
    for name, tensor in (("weight", packed), ("scale", scale)):
        if tensor.dtype is not torch.uint8 or tensor.dim() != 2:
            raise RuntimeError(
                f"mxfp4 {name} must be a uint8 matrix, got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
    columns = packed.shape[1] * 2 if columns is None else columns
    if packed.shape[0] != scale.shape[0] or packed.shape[1] * 2 < columns or scale.shape[1] * block_size < columns:
        raise RuntimeError(
            f"mxfp4 weight {tuple(packed.shape)} and scale {tuple(scale.shape)} do not hold {columns} columns "
            f"in blocks of {block_size}"
        )
    table = torch.tensor(E2M1, dtype=torch.float32, device=packed.device)
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(1)[:, :columns]
    factors = e8m0(scale).repeat_interleave(block_size, dim=1)[:, :columns]
    return (table[codes.long()] * factors).to(torch.bfloat16)
