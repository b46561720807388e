# SPDX-License-Identifier: Apache-2.0
"""Bridge internals the plug-in reads."""

from habana_frameworks.torch.internal import bridge_config

__all__ = ["bridge_config"]
