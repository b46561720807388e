# SPDX-License-Identifier: Apache-2.0
"""Fused attention on FP8 inputs."""

from gates.hpusim.ops.sdpa import fp8_fused_sdpa, gqa_input_reshape_fwd, gqa_output_reshape, is_gqa

__all__ = ["fp8_fused_sdpa", "gqa_input_reshape_fwd", "gqa_output_reshape", "is_gqa"]
