# SPDX-License-Identifier: Apache-2.0
"""BF16 rounding points, plain or such that a graph compiler cannot drop them.

A compiler that fuses bf16 -> fp32 -> bf16 may keep fp32 across a rounding the
model relies on. In exact mode each crossing rounds the fp32 bits by integer
arithmetic instead; the final cast is then lossless.
"""

import torch


def round_to_bf16(x: torch.Tensor) -> torch.Tensor:
    """fp32 `x` rounded to the nearest BF16 value, ties to even, still in fp32.

    Equal to `x.to(torch.bfloat16).float()` on every finite value and infinity;
    NaN stays NaN.
    """
    bits = x.contiguous().view(torch.int32)
    # Half of the dropped 16 bits, plus the lowest kept bit to break ties to even.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return torch.where(torch.isnan(x), x, rounded.view(torch.float32))


class Rounding:
    """How activations cross between their dtype and fp32.

    Args:
        exact: keep each rounding by integer arithmetic (BF16 activations only;
            other dtypes have nothing to keep).
    """

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact

    def widen(self, x: torch.Tensor) -> torch.Tensor:
        """`x` in fp32; a producer's pending rounding takes place here at the latest."""
        if self.exact and x.dtype == torch.bfloat16:
            return round_to_bf16(x.float())
        return x.float()

    def narrow(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """fp32 `x` rounded once to `dtype`."""
        if self.exact and dtype == torch.bfloat16:
            return round_to_bf16(x).to(dtype)
        return x.to(dtype)
