# SPDX-License-Identifier: Apache-2.0
"""Muse Spark Open (text): config, placement, expert_ops, experts, norms, attention, moe, model. Read in that order."""
