# SPDX-License-Identifier: Apache-2.0
"""Declares every operator family once per process."""

from __future__ import annotations

from functools import cache

from gates.hpusim.ops import block_softmax, fp8_ops, moe, moe_fp8, norm, rotary, sdpa_ops, uint4


@cache
def install() -> None:
    """Declare `torch.ops.hpu.*`; idempotent."""
    fp8_ops.register()
    moe.register()
    moe_fp8.register()
    moe.register_mxfp4()
    sdpa_ops.register()
    rotary.register()
    norm.register()
    block_softmax.register()
    uint4.register()
