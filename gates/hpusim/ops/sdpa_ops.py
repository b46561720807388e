# SPDX-License-Identifier: Apache-2.0
"""`sdpa_recomp_fwd` and `fp8_sdpa_recomp_fwd`: the operators under FusedSDPA."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from gates.hpusim.ops import attention, fp8
from gates.hpusim.ops.define import NotEmulatedError, by_name, define, define_not_emulated

# In 'fast' mode the FP8 kernel hands out 1/sum divided by this; callers multiply it back before they merge chunks.
FP8_FAST_LINV_DIVISOR = 128.0
_MODES = ("none", "fast", "fp32")
# Called with (q, k) of every call that has an explicit bias; True spoils its output. Fault models hook in here.
bias_hooks: list[Callable[[torch.Tensor, torch.Tensor], bool]] = []


def _parts(c: SimpleNamespace, q: torch.Tensor, k: torch.Tensor, scale: float) -> attention.Attention:
    if c.p:
        raise NotEmulatedError(f"FusedSDPA: dropout_p={c.p} is not emulated (inference only)")
    if c.softmax_mode.lower() not in _MODES:
        raise NotEmulatedError(f"FusedSDPA: softmax_mode {c.softmax_mode!r} is not one of {', '.join(_MODES)}")
    return attention.softmax_parts(
        q, k, scale, c.attention_mask, c.is_causal, c.valid_seq_len, c.seq_padding_type, c.window_size, c.sinks
    )


def _spoiled(c: SimpleNamespace) -> bool:
    return c.attention_mask is not None and any([hook(c.q, c.k) for hook in bias_hooks])


def _seed(q: torch.Tensor) -> torch.Tensor:
    return q.new_zeros(1, dtype=torch.int32)


def _recomp(c: SimpleNamespace) -> tuple[torch.Tensor, ...]:
    parts = _parts(c, c.q, c.k, c.scale)
    linv = attention.inverse(parts.total)
    # Exponentials meet the values as operands of the matrix engine, so they are rounded to the input dtype.
    out = (parts.exponentials.to(c.q.dtype).float() @ c.v.float()) * linv
    if _spoiled(c):
        out.fill_(torch.nan)
    return out.to(c.q.dtype), parts.maximum, linv, _seed(c.q)


def _statistics(c: SimpleNamespace) -> tuple[torch.Tensor, ...]:
    rows = (*c.q.shape[:-1], 1)
    wide = [c.q.new_empty(rows, dtype=torch.float32) for _ in range(2)]
    return *wide, c.q.new_empty(1, dtype=torch.int32)


def _recomp_fake(c: SimpleNamespace) -> tuple[torch.Tensor, ...]:
    return c.q.new_empty((*c.q.shape[:-1], c.v.shape[-1])), *_statistics(c)


def _scalar(value: torch.Tensor | float | None) -> float:
    if value is None:
        return 1.0
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise NotEmulatedError(
            f"fp8_sdpa_recomp_fwd: a scale of shape {tuple(value.shape)}; only one value is emulated"
        )
    return float(value)


def _fp8(c: SimpleNamespace) -> tuple[torch.Tensor, ...]:
    for name in ("q", "k", "v"):
        dtype = getattr(c, name).dtype
        if dtype not in fp8.FP8_DTYPES:
            raise RuntimeError(f"fp8_sdpa_recomp_fwd: {name} is {dtype}, expected one of {fp8.FP8_DTYPES}")
    dtype = c.q.dtype
    factor = c.scale * _scalar(c.d_scale_q) * _scalar(c.d_scale_k)
    parts = _parts(c, fp8.decode(c.q), fp8.decode(c.k), factor)
    linv = attention.inverse(parts.total)
    quantised = fp8.encode(parts.exponentials, _scalar(c.q_scale_s), dtype)
    out = (fp8.decode(quantised) @ fp8.decode(c.v)) * (_scalar(c.d_scale_s) * _scalar(c.d_scale_v)) * linv
    if _spoiled(c):
        out.fill_(torch.nan)
    asked = ((parts.exponentials, c.is_amax_s), (out, c.is_amax_o))
    amax = [fp8.largest(values) if wanted else _empty(c) for values, wanted in asked]
    out = out.to(torch.bfloat16) if c.q_scale_o is None else fp8.encode(out, _scalar(c.q_scale_o), dtype)
    handed_out = linv / FP8_FAST_LINV_DIVISOR if c.softmax_mode.lower() == "fast" else linv
    return out, parts.maximum, handed_out, _seed(c.q), *amax


def _empty(c: SimpleNamespace, shape: tuple[int, ...] = (0,)) -> torch.Tensor:
    return c.q.new_empty(shape, dtype=torch.float32)


def _fp8_fake(c: SimpleNamespace) -> tuple[torch.Tensor, ...]:
    dtype = torch.bfloat16 if c.q_scale_o is None else c.q.dtype
    amax = [_empty(c, () if wanted else (0,)) for wanted in (c.is_amax_s, c.is_amax_o)]
    return c.q.new_empty((*c.q.shape[:-1], c.v.shape[-1]), dtype=dtype), *_statistics(c), *amax


_HEAD = "(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool is_causal, "
_WINDOW = "Tensor? valid_seq_len, str seq_padding_type, int[]? window_size=None, Tensor? sinks=None) -> "
_SCALES = ("d_scale_q", "d_scale_k", "d_scale_v", "q_scale_s", "q_scale_o", "d_scale_s")


def _tensors(count: int) -> str:
    return f"({', '.join(['Tensor'] * count)})"


def register() -> None:
    """Declare the attention operators the plug-in reaches, and by name the bridge's variants without recomputation."""
    recompute = "bool requires_backward, str softmax_mode, "
    schema = f"sdpa_recomp_fwd{_HEAD}{recompute}{_WINDOW}{_tensors(4)}"
    define(schema, by_name(schema, _recomp), by_name(schema, _recomp_fake))
    for overload, kind in (("", "Tensor?"), (".scalar", "float")):
        scales = "".join(f"{kind} {name}, " for name in _SCALES) + "bool is_amax_s, bool is_amax_o, "
        schema = f"fp8_sdpa_recomp_fwd{overload}{_HEAD}{recompute}{scales}{_WINDOW}{_tensors(6)}"
        define(schema, by_name(schema, _fp8), by_name(schema, _fp8_fake))
    define_not_emulated(f"sdpa_fwd{_HEAD}str softmax_mode, {_WINDOW}{_tensors(3)}")
    scales = "".join(f"Tensor? {name}, " for name in _SCALES)
    define_not_emulated(f"fp8_sdpa_fwd{_HEAD}str softmax_mode, {scales}bool is_amax_s, {_WINDOW}{_tensors(4)}")
