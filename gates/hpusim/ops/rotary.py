# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: the operator and the helper of `habana_frameworks.torch.hpex.kernels`."""

from __future__ import annotations

from enum import Enum

import torch

from gates.hpusim.ops.define import define


class RotaryPosEmbeddingMode(Enum):
    """BLOCKWISE rotates halves (GPT-NeoX layout), PAIRWISE rotates neighbours (GPT-J layout)."""

    BLOCKWISE = 0
    PAIRWISE = 1


def _rotate(tensor: torch.Tensor, mode: int) -> torch.Tensor:
    if mode == RotaryPosEmbeddingMode.BLOCKWISE.value:
        first, second = tensor.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    return torch.stack((-tensor[..., 1::2], tensor[..., 0::2]), dim=-1).flatten(-2)


def _kernel(p, sin, cos, position_ids, offset, mode):
    if mode not in (known := [member.value for member in RotaryPosEmbeddingMode]):
        raise RuntimeError(f"rotary_pos_embedding: mode {mode} is none of {known}")
    if position_ids is not None:
        # [positions, D] tables are gathered to [B, T, D] and broadcast over the heads of [B, heads, T, D].
        cos, sin = (table.reshape(-1, table.shape[-1])[position_ids].unsqueeze(1) for table in (cos, sin))
    elif offset:
        cos, sin = (table.narrow(-2, offset, p.shape[-2]) for table in (cos, sin))
    wide = p.float()
    return (wide * cos.float() + _rotate(wide, mode) * sin.float()).to(p.dtype)


def _fake(p, sin, cos, position_ids, offset, mode):
    return torch.empty_like(p)


def apply_rotary_pos_emb(
    p: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position_ids: torch.Tensor | None = None,
    offset: int = 0,
    mode: RotaryPosEmbeddingMode = RotaryPosEmbeddingMode.BLOCKWISE,
) -> torch.Tensor:
    """`p * cos + rotate(p) * sin`, computed in fp32 and rounded once.

    Args:
        p: `[.., D]`. cos, sin: broadcastable to `p`, full width D.
        position_ids: `[B, T]` rows of cos and sin to take, or None when they are already per token.

    Returns:
        Like `p`; fp32 if any of the three inputs is fp32, as the device's helper promotes.
    """
    if torch.float32 in (p.dtype, cos.dtype, sin.dtype):
        p = p.float()
    return torch.ops.hpu.rotary_pos_embedding(p, sin.to(p.dtype), cos.to(p.dtype), position_ids, offset, mode.value)


def register() -> None:
    """Declare `hpu::rotary_pos_embedding`."""
    arguments = "Tensor input, Tensor sin, Tensor cos, Tensor? position_ids, int offset, int mode"
    schema = f"rotary_pos_embedding({arguments}) -> Tensor"
    define(schema, _kernel, _fake)
