# SPDX-License-Identifier: Apache-2.0
"""Fused attention."""

from gates.hpusim.ops.sdpa import FusedSDPA, gqa_input_reshape_fwd, gqa_output_reshape, is_gqa

__all__ = ["FusedSDPA", "gqa_input_reshape_fwd", "gqa_output_reshape", "is_gqa"]
