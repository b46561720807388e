# SPDX-License-Identifier: Apache-2.0
"""Fused kernels. The class `FusedSDPA` shadows the submodule of the same name, as in Habana's package."""

from gates.hpusim.ops.rotary import RotaryPosEmbeddingMode, apply_rotary_pos_emb
from habana_frameworks.torch.hpex.kernels import Fp8FusedSDPA as _fp8_module
from habana_frameworks.torch.hpex.kernels import FusedSDPA as _module

FusedSDPA = _module.FusedSDPA
fp8_fused_sdpa = _fp8_module.fp8_fused_sdpa

__all__ = ["FusedSDPA", "RotaryPosEmbeddingMode", "apply_rotary_pos_emb", "fp8_fused_sdpa"]
