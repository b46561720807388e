# SPDX-License-Identifier: Apache-2.0
"""Softmax pieces of paged attention: `block_softmax`, `block_softmax_adjustment`, `softmax_fa2`."""

from __future__ import annotations

import torch

from gates.hpusim.ops.define import NotEmulatedError, define

_PADDING_GROUP = -1  # block group of a padding block


def _adjustment(block_maxes, block_sums, block_groups, batch_size, out_shape=None):
    if out_shape is None and block_maxes.dim() != 5:
        raise RuntimeError(
            f"block_softmax_adjustment: without out_shape block_maxes must be 5-dimensional, got {block_maxes.dim()}"
        )
    blocks = block_maxes.shape[0]
    width = block_maxes.shape[1:].numel()  # -1 would be ambiguous with no blocks
    maxes, sums = block_maxes.reshape(blocks, width).float(), block_sums.reshape(blocks, width).float()
    real = block_groups.reshape(-1) != _PADDING_GROUP
    # Padding blocks go to an extra row that nothing reads, their own adjustment is zero.
    group = torch.where(real, block_groups.reshape(-1), batch_size).long()
    index = group.unsqueeze(1).expand_as(maxes)
    group_max = maxes.new_full((batch_size + 1, maxes.shape[1]), -torch.inf).scatter_reduce(0, index, maxes, "amax")
    weight = torch.exp(maxes - group_max[group])
    group_sum = maxes.new_zeros(batch_size + 1, maxes.shape[1]).scatter_add(0, index, weight * sums)
    result = torch.where(real.unsqueeze(1), weight / group_sum[group], torch.zeros_like(weight))
    return result.to(block_maxes.dtype).reshape(block_maxes.shape if out_shape is None else out_shape)


def _adjustment_fake(block_maxes, block_sums, block_groups, batch_size, out_shape=None):
    return block_maxes.new_empty(block_maxes.shape if out_shape is None else out_shape)


def _block_softmax(attn, block_bias, block_groups):
    if attn.dim() != 5:
        raise RuntimeError(
            f"block_softmax: attn must be [blocks, kv heads, group, tokens, block], got {tuple(attn.shape)}"
        )
    real = (block_groups != _PADDING_GROUP).reshape(-1, 1, 1, 1, 1)
    scores = attn.float() if block_bias is None else attn.float() + block_bias.float()
    scores = torch.where(real, scores, torch.zeros_like(scores))
    maxes = scores.amax(dim=-1, keepdim=True)
    exponentials = torch.where(real, torch.exp(scores - maxes), torch.zeros_like(scores))
    sums = exponentials.sum(dim=-1, keepdim=True)
    flat = (attn.shape[0], attn.shape[1:-1].numel())
    return exponentials.to(attn.dtype), maxes.to(attn.dtype).reshape(flat), sums.to(attn.dtype).reshape(flat)


def _block_softmax_fake(attn, block_bias, block_groups):
    statistics = attn.new_empty((attn.shape[0], attn.shape[1] * attn.shape[2] * attn.shape[3]))
    return torch.empty_like(attn), statistics, torch.empty_like(statistics)


def _softmax_fa2(input, inputM=None, inputL=None, dim=-1, descale=None, experimental_mode=False):
    if input.dtype not in (torch.bfloat16, torch.float32) or descale is not None or experimental_mode:
        raise NotEmulatedError("softmax_fa2: FP8 input, descale and experimental_mode are not emulated")
    if dim not in (-1, input.dim() - 1):
        raise NotEmulatedError(f"softmax_fa2: dim={dim} is not emulated, only the last dimension is")
    rows = input.shape[:-1]
    for name, retained in (("inputM", inputM), ("inputL", inputL)):
        if retained is not None and retained.shape != rows:
            raise NotEmulatedError(
                f"softmax_fa2: {name} of shape {tuple(retained.shape)} for rows {tuple(rows)}; Gaudi 3's cache-line "
                "layout of the retained tensors is not emulated"
            )
    scores = input.float()
    before = scores.new_full(rows, -torch.inf) if inputM is None else inputM.float()
    summed = scores.new_zeros(rows) if inputL is None else inputL.float()
    maximum = torch.maximum(before, scores.amax(-1))
    exponentials = torch.exp(scores - maximum.unsqueeze(-1))
    fixup = torch.exp(before - maximum)
    total = fixup * summed + exponentials.sum(-1)
    return tuple(t.to(input.dtype) for t in (exponentials, maximum, total, fixup))


def _softmax_fa2_fake(input, inputM=None, inputL=None, dim=-1, descale=None, experimental_mode=False):
    return torch.empty_like(input), *(input.new_empty(input.shape[:-1]) for _ in range(3))


def register() -> None:
    """Declare the block softmax operators and softmax_fa2."""
    groups = "Tensor block_groups"
    define(
        f"block_softmax_adjustment(Tensor block_maxes, Tensor block_sums, {groups}, SymInt batch_size, "
        "SymInt[]? out_shape=None) -> Tensor",
        _adjustment,
        _adjustment_fake,
    )
    define(
        f"block_softmax(Tensor attn, Tensor? block_bias, {groups}) -> (Tensor, Tensor, Tensor)",
        _block_softmax,
        _block_softmax_fake,
    )
    define(
        "softmax_fa2(Tensor input, *, Tensor? inputM=None, Tensor? inputL=None, int dim=-1, Tensor? descale=None, "
        "bool experimental_mode=False) -> (Tensor, Tensor, Tensor, Tensor)",
        _softmax_fa2,
        _softmax_fa2_fake,
    )
