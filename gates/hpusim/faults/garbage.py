# SPDX-License-Identifier: Apache-2.0
"""What memory holds that nobody wrote: a recognisable value of every dtype."""

from __future__ import annotations

import torch

HUGE = 1000.0  # finite in every float dtype of 16 bits and more; swamps a softmax or a sum it gets into
INTEGER = -123456789  # never a token, slot, block or position


def fill(tensor: torch.Tensor, value: float = torch.nan) -> None:
    """Overwrite `tensor`: `value` in float dtypes, INTEGER (cut to the dtype) in integers, True in bools."""
    with torch.inference_mode():
        if tensor.dtype is torch.bool:
            tensor.fill_(True)
        elif tensor.dtype.itemsize == 1:  # FP8 and bytes: all bits of the top exponent, NaN in E4M3
            tensor.view(torch.uint8).fill_(0x7F)
        elif tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            tensor.fill_(value)
        else:
            bounds = torch.iinfo(tensor.dtype)
            tensor.fill_(max(INTEGER, bounds.min))
