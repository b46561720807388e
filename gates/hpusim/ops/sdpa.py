# SPDX-License-Identifier: Apache-2.0
"""`FusedSDPA` and `fp8_fused_sdpa`: the kernel classes of `habana_frameworks.torch.hpex.kernels`."""

from __future__ import annotations

import math

import torch

from gates.hpusim.ops.define import NotEmulatedError


def is_gqa(q: torch.Tensor, k: torch.Tensor) -> bool:
    """True for `[B, heads, T, D]` inputs whose kv heads are fewer than the query heads and more than one."""
    return q.dim() == 4 and q.shape[1] != k.shape[1] and k.shape[1] != 1


def gqa_input_reshape_fwd(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """`[B, heads, T, D]` tensors as `[B, groups, heads per group, T, D]`; keys and values get one head per group."""
    groups = k.shape[1]
    if q.shape[1] % groups:
        raise RuntimeError(f"FusedSDPA: {q.shape[1]} query heads do not divide among {groups} key heads")
    grouped = q.reshape(q.shape[0], groups, q.shape[1] // groups, *q.shape[2:])
    if attention_mask is not None:
        if attention_mask.dim() != 4 or attention_mask.shape[1] not in (1, q.shape[1]):
            raise NotEmulatedError(
                f"FusedSDPA: a mask of shape {tuple(attention_mask.shape)} for {q.shape[1]} query heads on {groups} key"
                " heads; it must be [B, 1 or heads, T, S]"
            )
        if attention_mask.shape[1] == q.shape[1]:
            attention_mask = attention_mask.unflatten(1, grouped.shape[1:3])
        else:
            attention_mask = attention_mask.unsqueeze(1)
    return grouped, k.unsqueeze(2), v.unsqueeze(2), attention_mask


def gqa_output_reshape(tensor: torch.Tensor) -> torch.Tensor:
    """`[B, groups, heads per group, T, D]` back to `[B, heads, T, D]`."""
    return tensor.flatten(1, 2)


def _check(valid_seq_len, is_causal, attn_mask) -> None:
    if valid_seq_len is not None and (not is_causal or attn_mask is not None):
        raise AssertionError("FusedSDPA: valid_seq_len is supported only with is_causal=True and without a mask")


class FusedSDPA:
    """Scaled dot product attention in one kernel.

    `apply(q, k, v, ...)` takes q `[B, heads, T, D]`, k and v `[B, kv heads, S, D]` and returns `[B, heads, T, D]`.
    `attn_mask` is additive or boolean, `[B, 1 or heads, T, S]`; `valid_seq_len` int32 `[B]` with the padding on
    `seq_padding_type`; `window_size` (left, right), -1 open (see window.py); `sinks` one logit per head.
    """

    @staticmethod
    def apply(
        q,
        k,
        v,
        attn_mask=None,
        dropout_p=0.0,
        is_causal=False,
        scale=None,
        softmax_mode="None",
        recompute_mode=None,
        valid_seq_len=None,
        seq_padding_type="left",
        return_dropout_mask=False,
        return_attn_probs=False,
        window_size=(-1, -1),
        sinks=None,
    ) -> torch.Tensor:
        if return_dropout_mask or return_attn_probs:
            raise NotEmulatedError("FusedSDPA: return_dropout_mask and return_attn_probs are not emulated")
        _check(valid_seq_len, is_causal, attn_mask)
        scale = 1.0 / math.sqrt(q.size(-1)) if scale is None else scale
        gqa = is_gqa(q, k)
        if gqa:
            q, k, v, attn_mask = gqa_input_reshape_fwd(q, k, v, attn_mask)
        out = torch.ops.hpu.sdpa_recomp_fwd(
            q, k, v, attn_mask, dropout_p, scale, is_causal, False, softmax_mode.lower(),
            valid_seq_len, seq_padding_type.lower(), window_size, sinks,
        )[0]  # fmt: skip
        return gqa_output_reshape(out) if gqa else out


def fp8_fused_sdpa(
    q,
    k,
    v,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    softmax_mode="None",
    d_scale_q=None,
    d_scale_k=None,
    d_scale_v=None,
    q_scale_s=None,
    q_scale_o=None,
    d_scale_s=None,
    is_amax_s=False,
    is_amax_o=False,
    valid_seq_len=None,
    seq_padding_type="left",
    recompute=None,
    window_size=(-1, -1),
    sinks=None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """FusedSDPA on FP8 q, k, v with one dequantisation scale each.

    Returns:
        output `[B, heads, T, D]` (bf16, or FP8 when `q_scale_o` is given), amax of the probabilities and of the output
        (empty tensors unless asked for).
    """
    _check(valid_seq_len, is_causal, attn_mask)
    scale = 1.0 / math.sqrt(q.size(-1)) if scale is None else scale
    gqa = is_gqa(q, k)
    if gqa:
        q, k, v, attn_mask = gqa_input_reshape_fwd(q, k, v, attn_mask)
    out, _, _, _, amax_s, amax_o = torch.ops.hpu.fp8_sdpa_recomp_fwd(
        q, k, v, attn_mask, dropout_p, scale, is_causal, False, softmax_mode.lower(),
        d_scale_q, d_scale_k, d_scale_v, q_scale_s, q_scale_o, d_scale_s, is_amax_s, is_amax_o,
        valid_seq_len, seq_padding_type.lower(), window_size, sinks,
    )  # fmt: skip
    return (gqa_output_reshape(out) if gqa else out), amax_s, amax_o
