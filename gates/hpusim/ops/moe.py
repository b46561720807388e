# SPDX-License-Identifier: Apache-2.0
"""`torch.ops.hpu.mixture_of_experts`: bf16 and MXFP4 overloads (the FP8 ones are in moe_fp8.py).

Naming of the operator: w1 = gate, w2 = up, w3 = down; w12 holds gate rows first, then up rows. `permuted_weights`
means weights are `[out, in]`. `chunk_size` and `total_experts` tune the device and do not change the result.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from gates.hpusim.ops import moe_math, mxfp4
from gates.hpusim.ops.define import NotEmulatedError, by_name, define

HEAD = "(Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, "
RANGE = "int experts_min, int experts_max"
CHUNKS = ", int chunk_size=0, int total_experts=0"
SWIGLU = ", float alpha=1.702, float limit=7.0) -> Tensor"
_TAIL = f"bool permuted_weights, str activation, {RANGE}{CHUNKS}, *, bool? recomp=True) -> Tensor"
_FP4 = f"int block_size, bool permuted_weights, str activation, {RANGE}, bool is_fp4=True{CHUNKS}) -> Tensor"
_FP4_BIAS = f"int block_size, bool permuted_weights, {RANGE}, bool is_fp4=True{CHUNKS}{SWIGLU}"


def like_hidden_states(hidden_states, *_args, **_kwargs):
    """Shape function of every overload without FP8 activations."""
    return torch.empty_like(hidden_states)


def _run(c: SimpleNamespace, expert: moe_math.Expert, *lists: str) -> torch.Tensor:
    """Check the call `c`, then add the weighted rows of `expert`; `lists` names the per-expert arguments."""
    moe_math.check(c, *lists)
    if c.router_weights.dtype is not c.hidden_states.dtype:
        raise RuntimeError(
            f"mixture_of_experts: router_weights are {c.router_weights.dtype} and hidden_states "
            f"{c.hidden_states.dtype}; the device's graph compiler needs equal dtypes, cast the router weights"
        )
    return moe_math.route(c, torch.zeros_like(c.hidden_states), expert)


def _oriented(weight: torch.Tensor, c: SimpleNamespace) -> torch.Tensor:
    return weight.t() if c.permuted_weights else weight


def _separate(c: SimpleNamespace) -> torch.Tensor:
    activation = moe_math.activation_function(c.activation)

    def expert(e, rows, _tokens):
        gate, up, down = (_oriented(weights[e], c) for weights in (c.w1, c.w2, c.w3))
        return moe_math.gated(rows, gate, up, down, activation)

    return _run(c, expert, "w1", "w2", "w3")


def _fused(c: SimpleNamespace) -> torch.Tensor:
    activation = moe_math.activation_function(c.activation)

    def expert(e, rows, _tokens):
        gate, up = _oriented(c.w12[e], c).chunk(2, dim=-1)
        return moe_math.gated(rows, gate, up, _oriented(c.w3[e], c), activation)

    return _run(c, expert, "w12", "w3")


def _bias(c: SimpleNamespace) -> torch.Tensor:
    def expert(e, rows, _tokens):
        hidden = moe_math.clamped_swiglu(rows @ _oriented(c.w12[e], c) + c.w12_bias[e], c.alpha, c.limit)
        return hidden @ _oriented(c.w3[e], c) + c.w3_bias[e]

    return _run(c, expert, "w12", "w3", "w12_bias", "w3_bias")


def _unpacked(packed, scale, columns, c: SimpleNamespace) -> torch.Tensor:
    """bf16 `[in, out]` of a packed weight whose stored rows have `columns` values (None: as many as are packed)."""
    if not c.is_fp4:
        raise NotEmulatedError("mixture_of_experts.mxfp4*: is_fp4=False (another packed element type) is not emulated")
    return _oriented(mxfp4.unpack(packed, scale, c.block_size, columns), c)


def _separate_mxfp4(c: SimpleNamespace) -> torch.Tensor:
    activation = moe_math.activation_function(c.activation)
    hidden = c.hidden_states.shape[1]

    def expert(e, rows, _tokens):
        inner = c.w1[e].shape[0] if c.permuted_weights else None
        columns = (hidden, hidden, inner) if c.permuted_weights else (None, None, hidden)
        gate = _unpacked(c.w1[e], c.d_scale_w1[e], columns[0], c)
        up = _unpacked(c.w2[e], c.d_scale_w2[e], columns[1], c)
        down = _unpacked(c.w3[e], c.d_scale_w3[e], columns[2], c)
        return moe_math.gated(rows, gate, up, down, activation)

    return _run(c, expert, "w1", "w2", "w3", "d_scale_w1", "d_scale_w2", "d_scale_w3")


def _fused_mxfp4_matrices(e: int, c: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 `[H, 2I]` and `[I, H]` of local expert `e`."""
    hidden = c.hidden_states.shape[1]
    columns = (hidden, c.w12[e].shape[0] // 2) if c.permuted_weights else (None, hidden)
    first = _unpacked(c.w12[e], c.d_scale_w12[e], columns[0], c)
    return first, _unpacked(c.w3[e], c.d_scale_w3[e], columns[1], c)


def _fused_mxfp4(c: SimpleNamespace) -> torch.Tensor:
    activation = moe_math.activation_function(c.activation)

    def expert(e, rows, _tokens):
        first, down = _fused_mxfp4_matrices(e, c)
        return moe_math.gated(rows, *first.chunk(2, dim=-1), down, activation)

    return _run(c, expert, "w12", "w3", "d_scale_w12", "d_scale_w3")


def _bias_mxfp4(c: SimpleNamespace) -> torch.Tensor:
    def expert(e, rows, _tokens):
        first, down = _fused_mxfp4_matrices(e, c)
        return moe_math.clamped_swiglu(rows @ first + c.w12_bias[e], c.alpha, c.limit) @ down + c.w3_bias[e]

    return _run(c, expert, "w12", "w3", "w12_bias", "w3_bias", "d_scale_w12", "d_scale_w3")


def _declare(schema: str, kernel) -> None:
    schema = f"mixture_of_experts{schema}"
    define(schema, by_name(schema, kernel), like_hidden_states)


_BIASES = "Tensor[] w12, Tensor[] w3, Tensor[] w12_bias, Tensor[] w3_bias, "


def register() -> None:
    """Declare the overloads without quantisation, which the bridge lists first."""
    _declare(f"{HEAD}Tensor[] w1, Tensor[] w2, Tensor[] w3, {_TAIL}", _separate)
    _declare(f".fused_weights{HEAD}Tensor[] w12, Tensor[] w3, {_TAIL}", _fused)
    _declare(f".bias_fused_weights{HEAD}{_BIASES}bool permuted_weights, {RANGE}{CHUNKS}{SWIGLU}", _bias)


def register_mxfp4() -> None:
    """Declare the MXFP4 overloads, last in the bridge."""
    weights = "Tensor[] w1, Tensor[] w2, Tensor[] w3, Tensor[] d_scale_w1, Tensor[] d_scale_w2, Tensor[] d_scale_w3, "
    _declare(f".mxfp4{HEAD}{weights}{_FP4}", _separate_mxfp4)
    scales = "Tensor[] d_scale_w12, Tensor[] d_scale_w3, "
    _declare(f".mxfp4_fused_weights{HEAD}Tensor[] w12, Tensor[] w3, {scales}{_FP4}", _fused_mxfp4)
    _declare(f".bias_mxfp4_fused_weights{HEAD}{_BIASES}{scales}{_FP4_BIAS}", _bias_mxfp4)
