# SPDX-License-Identifier: Apache-2.0
"""`cast_to_fp8_v2`, `cast_from_fp8`, `fp8_gemm_v2` with their tensor, scalar and scalar-list overloads."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from gates.hpusim.ops import fp8
from gates.hpusim.ops.define import NotEmulatedError, by_name, define


def _one(scale: Sequence[float], op: str) -> float:
    if len(scale) != 1:
        raise NotEmulatedError(f"{op}.scalar_list with {len(scale)} scales is not emulated; one scale is")
    return float(scale[0])


def _cast_to(x, scale=None, stochastic_rounding=False, is_amax=False, dtype=None, scale_shape=None):
    if stochastic_rounding:
        raise NotEmulatedError("cast_to_fp8_v2: stochastic rounding is not emulated")
    if dtype is None:
        raise NotEmulatedError(
            "cast_to_fp8_v2 without a dtype (int8 container) is not emulated; pass torch.float8_e4m3fn"
        )
    if scale_shape is not None and isinstance(scale, torch.Tensor):
        scale = scale.reshape(scale_shape)
    amax = fp8.largest(x) if is_amax else x.new_empty(0, dtype=torch.float32)
    return fp8.encode(x, scale, dtype), amax


def _cast_to_list(x, scale, stochastic_rounding=False, is_amax=False, dtype=None, scale_shape=None):
    return _cast_to(x, _one(scale, "cast_to_fp8_v2"), stochastic_rounding, is_amax, dtype, scale_shape)


def _cast_to_fake(x, scale=None, stochastic_rounding=False, is_amax=False, dtype=None, scale_shape=None):
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(() if is_amax else (0,), dtype=torch.float32)


def _cast_from(x, scale, out_dtype, scale_shape=None):
    values = fp8.decode(x, out_dtype)
    if scale is None:
        return values.clone()
    if isinstance(scale, torch.Tensor):
        return values * (scale if scale_shape is None else scale.reshape(scale_shape)).to(out_dtype)
    return values * float(torch.tensor(scale, dtype=out_dtype))


def _cast_from_list(x, scale, out_dtype, scale_shape=None):
    return _cast_from(x, _one(scale, "cast_from_fp8"), out_dtype, scale_shape)


def _cast_from_fake(x, scale, out_dtype, scale_shape=None):
    return x.new_empty(x.shape, dtype=out_dtype)


def _gemm(c: SimpleNamespace) -> torch.Tensor:
    for name in ("A", "B"):
        dtype = getattr(c, name).dtype
        if dtype not in fp8.FP8_DTYPES:
            raise RuntimeError(f"fp8_gemm_v2: {name} is {dtype}, expected one of {fp8.FP8_DTYPES}")
    a = c.A.transpose(-1, -2) if c.trans_A else c.A
    b = c.B.transpose(-1, -2) if c.trans_B else c.B
    a_scale, b_scale = (
        _one(scale, "fp8_gemm_v2") if isinstance(scale, (list, tuple)) else scale
        for scale in (c.A_scale_inv, c.B_scale_inv)
    )
    if b.dim() == 2:  # rows are numbered across the batch of A
        out = fp8.gemm(a.reshape(a.shape[:-1].numel(), a.shape[-1]), b, c.out_dtype, a_scale, b_scale)
        out = out.reshape(*a.shape[:-1], b.shape[-1])
    else:
        out = fp8.gemm(a, b, c.out_dtype, a_scale, b_scale)
    if c.bias is not None:
        out = out + c.bias.to(c.out_dtype)
    if c.accumulate:
        if c.D is None:
            raise RuntimeError("fp8_gemm_v2: accumulate=True needs the tensor D to accumulate onto")
        out = out + c.D.to(c.out_dtype)
    return out


def _gemm_fake(c: SimpleNamespace) -> torch.Tensor:
    rows = c.A.shape[-1] if c.trans_A else c.A.shape[-2]
    columns = c.B.shape[-2] if c.trans_B else c.B.shape[-1]
    batch = torch.broadcast_shapes(c.A.shape[:-2], c.B.shape[:-2])
    return c.A.new_empty((*batch, rows, columns), dtype=c.out_dtype)


_CAST = "bool stochastic_rounding=False, bool is_amax=False, ScalarType? dtype=None, int[]? scale_shape=None"
_FROM = "ScalarType out_dtype, int[]? scale_shape=None) -> Tensor"
_GEMM_HEAD = "(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, "
_GEMM_TAIL = "Tensor? bias=None, bool accumulate=False, int[]? B_scale_shape=None) -> Tensor"
# overload -> type of one scale; the order decides which overload a call without a name resolves to
_KINDS = {"": "Tensor?", ".scalar": "float", ".scalar_list": "float[]"}


def register() -> None:
    """Declare the FP8 operators in the order of the bridge."""
    for overload, kind in _KINDS.items():
        listed = overload == ".scalar_list"
        default = "=None" if kind == "Tensor?" else ""
        schema = f"cast_to_fp8_v2{overload}(Tensor input, {kind} scale{default}, {_CAST}) -> (Tensor, Tensor)"
        define(schema, _cast_to_list if listed else _cast_to, _cast_to_fake)
        schema = f"cast_from_fp8{overload}(Tensor input, {kind} scale, {_FROM}"
        define(schema, _cast_from_list if listed else _cast_from, _cast_from_fake)
        scales = f"{kind} A_scale_inv{default}, {kind} B_scale_inv{default}, "
        schema = f"fp8_gemm_v2{overload}{_GEMM_HEAD}{scales}{_GEMM_TAIL}"
        define(schema, by_name(schema, _gemm), by_name(schema, _gemm_fake))
