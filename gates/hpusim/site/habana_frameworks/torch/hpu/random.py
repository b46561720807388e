# SPDX-License-Identifier: Apache-2.0
"""Random seeds."""

from gates.hpusim.runtime import manual_seed_all

__all__ = ["manual_seed_all"]
