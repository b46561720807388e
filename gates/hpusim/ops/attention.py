# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the fused attention kernels: masks in, output and softmax statistics out."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gates.hpusim.ops import window as window_rule
from gates.hpusim.ops.define import NotEmulatedError


class Attention(NamedTuple):
    """Probabilities `[.., T, S]` not yet divided by their sum, row maximum and row sum `[.., T, 1]`; all fp32."""

    exponentials: torch.Tensor
    maximum: torch.Tensor
    total: torch.Tensor


def _valid_keys(valid_seq_len: torch.Tensor, keys: int, padding: str, dims: int) -> torch.Tensor:
    """Boolean `[B, 1, .., S]`: keys that are not padding, on the side `padding` names."""
    position = torch.arange(keys, device=valid_seq_len.device)
    length = valid_seq_len.reshape(-1, 1).long()
    if padding == "right":
        valid = position < length
    elif padding == "left":
        valid = position >= keys - length
    else:
        raise RuntimeError(f"FusedSDPA: seq_padding_type {padding!r} is neither 'left' nor 'right'")
    return valid.reshape(valid.shape[0], *([1] * (dims - 2)), keys)


def _boolean_mask(q, k, is_causal, valid_seq_len, padding, window) -> torch.Tensor | None:
    queries, keys = q.shape[-2], k.shape[-2]
    masks = []
    if is_causal:
        if queries != keys:
            raise NotEmulatedError(
                f"FusedSDPA: is_causal with {queries} queries and {keys} keys is not emulated, the kernel's alignment "
                "is not public; pass an explicit mask"
            )
        masks.append(torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril())
    if window is not None:
        allowed = window_rule.allowed(queries, keys, tuple(window), q.device)
        if allowed is not None:
            masks.append(allowed)
    if valid_seq_len is not None:
        masks.append(_valid_keys(valid_seq_len, keys, padding, q.dim()))
    combined = None
    for mask in masks:
        combined = mask if combined is None else combined & mask
    return combined


def softmax_parts(q, k, scale, attention_mask, is_causal, valid_seq_len, padding, window, sinks) -> Attention:
    """Unnormalised attention of `q` `[.., T, D]` on `k` `[.., S, D]` (leading dimensions broadcast).

    Scores, maximum, exponentials and their sum are fp32. Rows with no key left by the boolean masks give zeros;
    rows an additive mask of -inf empties give NaN, as the arithmetic says.
    """
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if attention_mask is not None:
        if attention_mask.dtype is torch.bool:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        else:
            scores = scores + attention_mask.float()
    keep = _boolean_mask(q, k, is_causal, valid_seq_len, padding, window)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    maximum = scores.amax(dim=-1, keepdim=True)
    sink = None
    if sinks is not None:
        sink = _sink_column(sinks, scores)
        maximum = torch.maximum(maximum, sink)
    if keep is not None:
        maximum = torch.where(keep.any(dim=-1, keepdim=True), maximum, torch.zeros_like(maximum))
    exponentials = torch.exp(scores - maximum)
    total = exponentials.sum(dim=-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - maximum)
    return Attention(exponentials, maximum, total)


def _sink_column(sinks: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """One logit per query head as a column of `scores` `[B, heads, T, S]` or `[B, groups, per group, T, S]`."""
    heads = scores.shape[1:-2]
    count = 1
    for size in heads:
        count *= size
    if sinks.numel() != count:
        raise RuntimeError(
            f"FusedSDPA: sinks {tuple(sinks.shape)} do not hold one logit for each of {count} query heads"
        )
    return sinks.float().reshape(1, *heads, 1, 1).expand(*scores.shape[:-1], 1)


def inverse(total: torch.Tensor) -> torch.Tensor:
    """1 / total, and 0 where no key was left."""
    return torch.where(total == 0, torch.zeros_like(total), 1.0 / total)
