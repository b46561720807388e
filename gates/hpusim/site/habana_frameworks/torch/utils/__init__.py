# SPDX-License-Identifier: Apache-2.0
"""Utilities the plug-in reads."""

from habana_frameworks.torch.utils import experimental, internal

__all__ = ["experimental", "internal"]
