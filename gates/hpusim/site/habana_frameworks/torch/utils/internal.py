# SPDX-License-Identifier: Apache-2.0
"""Mode of the bridge."""

from gates.hpusim.runtime import is_lazy

__all__ = ["is_lazy"]
