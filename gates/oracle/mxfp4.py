# SPDX-License-Identifier: Apache-2.0
"""MXFP4 of the OCP microscaling format, decoded: E2M1 codes in groups of 32 that share one E8M0 scale."""

import torch

GROUP = 32
# Code bits are sign, two exponent bits (bias 1), one mantissa bit; exponent 0 is subnormal.
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def codes(packed: torch.Tensor) -> torch.Tensor:
    """uint8 codes [..., 2n] of packed bytes [..., n]; the low nibble is the even column."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def scales(bytes_: torch.Tensor) -> torch.Tensor:
    """fp32 `2 ** (byte - 127)` of E8M0 bytes; 255 is NaN, 0 the subnormal 2**-127."""
    return bytes_.view(torch.float8_e8m0fnu).float()


def dequantize(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """fp32 matrix [out, in] of uint8 codes [out, in/2] and uint8 scales [out, in/32].

    Exact but for scale bytes 253 and 254, whose largest codes overflow to infinity.

    Raises:
        ValueError: shapes or dtypes do not belong together.
    """
    if packed.dtype != torch.uint8 or scale.dtype != torch.uint8:
        raise ValueError(f"MXFP4 weight and scale must be uint8, found {packed.dtype} and {scale.dtype}")
    if (packed.shape[0], packed.shape[1] * 2) != (scale.shape[0], scale.shape[1] * GROUP):
        raise ValueError(f"MXFP4 weight {tuple(packed.shape)} and scale {tuple(scale.shape)} do not match")
    table = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)])
    return table[codes(packed).long()] * scales(scale).repeat_interleave(GROUP, dim=-1)
