# SPDX-License-Identifier: Apache-2.0
"""RMS norm: the operators and `FusedRMSNorm` of `habana_frameworks.torch.hpex.normalization`."""

from __future__ import annotations

import torch

from gates.hpusim.ops.define import define


def _dtype(data_in: torch.Tensor, gamma: torch.Tensor) -> torch.dtype:
    return data_in.dtype if data_in.dtype is gamma.dtype else torch.float32


def _kernel(data_in, gamma, epsilon):
    wide = data_in.float()
    inverse = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
    return (wide * inverse * gamma.float()).to(_dtype(data_in, gamma)), inverse


def _fake(data_in, gamma, epsilon):
    out = data_in.new_empty(data_in.shape, dtype=_dtype(data_in, gamma))
    return out, data_in.new_empty((*data_in.shape[:-1], 1), dtype=torch.float32)


class FusedRMSNorm:
    """`x * rsqrt(mean(x^2) + eps) * gamma` over the last dimension, fp32 inside, rounded once.

    The result has the dtype of `x`, or fp32 when `gamma` has another dtype.
    """

    @staticmethod
    def apply(
        data_in: torch.Tensor,
        gamma: torch.Tensor,
        eps: float,
        use_stages: bool = True,
        bwd_mode: int = 0,
        fast_math: bool = False,
    ) -> torch.Tensor:
        op = torch.ops.hpu.rms_norm_fast if fast_math else torch.ops.hpu.rms_norm
        return op(data_in, gamma, eps)[0]


def register() -> None:
    """Declare `hpu::rms_norm` and its fast-math twin (same arithmetic here)."""
    for name in ("rms_norm", "rms_norm_fast"):
        define(f"{name}(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor)", _kernel, _fake)
