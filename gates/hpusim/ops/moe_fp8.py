# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.hpu.mixture_of_experts`: the FP8 overloads.

Static overloads carry one intermediate scale per expert, `_dynamic` ones quantise the down projection's input per
token, `_scalars` ones take Python floats, `_blockwise` ones take bf16 activations and 2-D block scales.
All scales multiply (dequantisation scales); the result is bf16.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from gates.hpusim.ops import fp8, moe_math
from gates.hpusim.ops.define import by_name, define, define_not_emulated
from gates.hpusim.ops.moe import CHUNKS, HEAD, RANGE, SWIGLU, like_hidden_states

_OP = "mixture_of_experts"
_TAIL = f"bool permuted_weights, str activation, {RANGE}{CHUNKS}) -> Tensor"
_STATIC = "d_scale_intermediate_hidden_states"


def _fake(hidden_states, *_args, **_kwargs):
    return hidden_states.new_empty(hidden_states.shape, dtype=torch.bfloat16)


def _oriented(weight: torch.Tensor, c: SimpleNamespace) -> torch.Tensor:
    return weight.t() if c.permuted_weights else weight


def _split_scale(scale, columns: int):
    """Scales of the gate and of the up half of a fused weight with `columns` columns each."""
    if not isinstance(scale, torch.Tensor) or scale.numel() == 1:
        return scale, scale
    if scale.numel() != 2 * columns:
        raise RuntimeError(
            f"mixture_of_experts.fp8*: d_scale_w12 holds {scale.numel()} values, expected one or {2 * columns}"
        )
    return scale.reshape(-1).split(columns)


def _run(c: SimpleNamespace, expert, *lists: str) -> torch.Tensor:
    """Check the call `c`, then add the weighted rows of `expert(e, rows, row scale)`."""
    x, x_scale = c.hidden_states, c.d_scale_hidden_states
    if x.dtype not in fp8.FP8_DTYPES:
        raise RuntimeError(f"mixture_of_experts.fp8*: hidden_states are {x.dtype}, expected one of {fp8.FP8_DTYPES}")
    moe_math.check(c, *lists)
    per_token = isinstance(x_scale, torch.Tensor) and x_scale.numel() > 1
    if per_token and x_scale.numel() != x.shape[0]:
        raise RuntimeError(
            f"mixture_of_experts.fp8*: d_scale_hidden_states {tuple(x_scale.shape)} is neither one value nor one for "
            f"each of {x.shape[0]} tokens"
        )
    scales = x_scale.reshape(-1, 1) if per_token else x_scale

    def with_scale(e, rows, tokens):
        return expert(e, rows, scales[tokens] if per_token else scales)

    return moe_math.route(c, torch.zeros(x.shape, dtype=torch.bfloat16, device=x.device), with_scale)


def _intermediate(c: SimpleNamespace, e: int):
    """Static scale of the down projection's input of local expert `e`, None in a dynamic overload."""
    static = getattr(c, _STATIC, None)
    return None if static is None else static[e]


def _lists(c: SimpleNamespace, *names: str) -> tuple[str, ...]:
    return (*names, _STATIC) if hasattr(c, _STATIC) else names


def _separate(c: SimpleNamespace) -> torch.Tensor:
    activation = moe_math.activation_function(c.activation)

    def expert(e, rows, row_scale):
        weights = tuple(_oriented(w[e], c) for w in (c.w1, c.w2, c.w3))
        scales = (c.d_scale_w1[e], c.d_scale_w2[e], c.d_scale_w3[e])
        return moe_math.gated_fp8(rows, row_scale, weights, scales, activation, _intermediate(c, e))

    return _run(c, expert, *_lists(c, "w1", "w2", "w3", "d_scale_w1", "d_scale_w2", "d_scale_w3"))


def _fused(c: SimpleNamespace) -> torch.Tensor:
    activation = moe_math.activation_function(c.activation)

    def expert(e, rows, row_scale):
        gate, up = _oriented(c.w12[e], c).chunk(2, dim=-1)
        scales = (*_split_scale(c.d_scale_w12[e], gate.shape[1]), c.d_scale_w3[e])
        weights = (gate, up, _oriented(c.w3[e], c))
        return moe_math.gated_fp8(rows, row_scale, weights, scales, activation, _intermediate(c, e))

    return _run(c, expert, *_lists(c, "w12", "w3", "d_scale_w12", "d_scale_w3"))


def _bias(c: SimpleNamespace) -> torch.Tensor:
    def expert(e, rows, row_scale):
        hidden = fp8.gemm(rows, _oriented(c.w12[e], c), torch.bfloat16, row_scale, c.d_scale_w12[e]) + c.w12_bias[e]
        hidden = moe_math.clamped_swiglu(hidden, c.alpha, c.limit)
        quantised, scale = moe_math.requantise(hidden, rows.dtype, _intermediate(c, e))
        return fp8.gemm(quantised, _oriented(c.w3[e], c), torch.bfloat16, scale, c.d_scale_w3[e]) + c.w3_bias[e]

    return _run(c, expert, *_lists(c, "w12", "w3", "w12_bias", "w3_bias", "d_scale_w12", "d_scale_w3"))


def _decoded(weights, scales, block: int) -> list[torch.Tensor]:
    """Weights times their 2-D block scales (partial blocks at the edges), in the dtype of the scales."""
    result = []
    for weight, scale in zip(weights, scales, strict=True):
        full = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)[: weight.shape[0], : weight.shape[1]]
        result.append(fp8.decode(weight, scale.dtype) * full)
    return result


def _blockwise(c: SimpleNamespace) -> torch.Tensor:
    pairs = ((c.w1, c.d_scale_w1), (c.w2, c.d_scale_w2), (c.w3, c.d_scale_w3))
    return _dequantised(torch.ops.hpu.mixture_of_experts.default, c, pairs)


def _fused_blockwise(c: SimpleNamespace) -> torch.Tensor:
    pairs = ((c.w12, c.d_scale_w12), (c.w3, c.d_scale_w3))
    return _dequantised(torch.ops.hpu.mixture_of_experts.fused_weights, c, pairs)


def _dequantised(overload, c: SimpleNamespace, pairs) -> torch.Tensor:
    weights = [_decoded(w, s, c.block_size) for w, s in pairs]
    head = (c.hidden_states, c.expert_routing_table, c.router_weights)
    return overload(*head, *weights, c.permuted_weights, c.activation, c.experts_min, c.experts_max)


def _declare(schema: str, kernel, fake=_fake) -> None:
    schema = f"{_OP}.{schema}"
    define(schema, by_name(schema, kernel), fake)


def register() -> None:
    """Declare the FP8 overloads in the bridge's order: static, dynamic, their scalar twins, blockwise, bias."""
    separate, fused = "Tensor[] w1, Tensor[] w2, Tensor[] w3, ", "Tensor[] w12, Tensor[] w3, "
    for suffix, one, many in (("", "Tensor", "Tensor[]"), ("_scalars", "float", "float[]")):
        x, inner = f"{one} d_scale_hidden_states, ", f"{many} {_STATIC}, "
        w123 = f"{many} d_scale_w1, {many} d_scale_w2, {many} d_scale_w3, "
        w12 = f"{many} d_scale_w12, {many} d_scale_w3, "
        _declare(f"fp8{suffix}{HEAD}{separate}{x}{inner}{w123}{_TAIL}", _separate)
        _declare(f"fp8_fused_weights{suffix}{HEAD}{fused}{x}{inner}{w12}{_TAIL}", _fused)
        _declare(f"fp8{suffix}_dynamic{HEAD}{separate}{x}{w123}{_TAIL}", _separate)
        _declare(f"fp8_fused_weights{suffix}_dynamic{HEAD}{fused}{x}{w12}{_TAIL}", _fused)
    scales = "Tensor[] d_scale_w1, Tensor[] d_scale_w2, Tensor[] d_scale_w3, int block_size, "
    _declare(f"fp8_blockwise{HEAD}{separate}{scales}{_TAIL}", _blockwise, like_hidden_states)
    scales = "Tensor[] d_scale_w12, Tensor[] d_scale_w3, int block_size, "
    _declare(f"fp8_fused_weights_blockwise{HEAD}{fused}{scales}{_TAIL}", _fused_blockwise, like_hidden_states)
    biases = f"{fused}Tensor[] w12_bias, Tensor[] w3_bias, Tensor d_scale_hidden_states, Tensor[] {_STATIC}, "
    scales = "Tensor[] d_scale_w12, Tensor[] d_scale_w3, "
    tail = f"bool permuted_weights, {RANGE}{CHUNKS}{SWIGLU}"
    _declare(f"bias_fp8_fused_weights{HEAD}{biases}{scales}{tail}", _bias)
    measured = f"bool permuted_weights, str activation, {RANGE}, bool measurement_mode{CHUNKS}) -> (Tensor, Tensor)"
    define_not_emulated(f"{_OP}.fp8_measurement{HEAD}{separate}{measured}")
    define_not_emulated(f"{_OP}.fp8_measurement_fused_weights{HEAD}{fused}{measured}")
