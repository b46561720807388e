# SPDX-License-Identifier: Apache-2.0
"""Fused kernels and custom operators."""

from habana_frameworks.torch.hpex import kernels, normalization

__all__ = ["kernels", "normalization"]
