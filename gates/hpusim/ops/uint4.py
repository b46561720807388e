# SPDX-License-Identifier: Apache-2.0
"""`convert_from_uint4`: packed 4-bit weights (AWQ, GPTQ, compressed-tensors WNA16) to the activation dtype."""

from __future__ import annotations

import torch

from gates.hpusim.ops.define import define, define_not_emulated

_PER_WORD = 8


def _unpack(words: torch.Tensor) -> torch.Tensor:
    """int32 `[.., N / 8]` to values 0..15 `[.., N]`, lowest nibble first."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)
    return ((words.unsqueeze(-1) >> shifts) & 0xF).flatten(-2)


def _rows(groups: torch.Tensor, rows: int, g_idx: torch.Tensor | None) -> torch.Tensor:
    """One row of `groups` `[G, N]` for each of `rows` weight rows."""
    if g_idx is not None:
        return groups[g_idx.long()]
    if rows % groups.shape[0]:
        raise RuntimeError(f"convert_from_uint4: {rows} weight rows do not divide into {groups.shape[0]} scale groups")
    return groups.repeat_interleave(rows // groups.shape[0], dim=0)


def _kernel(input, scale, zero_point, out_dtype, g_idx=None):
    if input.dtype is not torch.int32:
        raise RuntimeError(f"convert_from_uint4: the packed weight must be int32, got {input.dtype}")
    values = _unpack(input)
    if scale.dim() != 2 or scale.shape[1] != values.shape[-1]:
        raise RuntimeError(f"convert_from_uint4: scale {tuple(scale.shape)} must be [groups, {values.shape[-1]}]")
    rows = values.shape[0]
    if zero_point is not None:
        values = values - _rows(_unpack(zero_point), rows, g_idx)
    return values.to(out_dtype) * _rows(scale, rows, g_idx).to(out_dtype)


def _fake(input, scale, zero_point, out_dtype, g_idx=None):
    return input.new_empty((*input.shape[:-1], input.shape[-1] * _PER_WORD), dtype=out_dtype)


def register() -> None:
    """Declare `hpu::convert_from_uint4`; its signed twin is named but not emulated."""
    tail = "(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype, Tensor? g_idx=None) -> Tensor"
    define(f"convert_from_uint4{tail}", _kernel, _fake)
    define_not_emulated(f"convert_from_int4{tail}")
