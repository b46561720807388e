# SPDX-License-Identifier: Apache-2.0
"""What of the arithmetic depends on the emulated card."""

from __future__ import annotations

import torch

from gates.hpusim.settings import settings


def fp8_max(dtype: torch.dtype) -> float:
    """Largest finite magnitude of an FP8 dtype on the emulated card: E4M3 ends at 240 on Gaudi 2, at 448 on Gaudi 3."""
    if dtype is torch.float8_e4m3fn:
        return settings().personality.fp8_max
    return torch.finfo(dtype).max
