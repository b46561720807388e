# SPDX-License-Identifier: Apache-2.0
"""Quantisation methods the distribution adds to vLLM."""
