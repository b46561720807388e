# SPDX-License-Identifier: Apache-2.0
"""Fused normalisation."""

from gates.hpusim.ops.norm import FusedRMSNorm

__all__ = ["FusedRMSNorm"]
