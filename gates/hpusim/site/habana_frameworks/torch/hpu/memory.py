# SPDX-License-Identifier: Apache-2.0
"""Memory statistics."""

from gates.hpusim.memory import (
    max_memory_allocated,
    mem_get_info,
    memory_allocated,
    memory_stats,
    reset_peak_memory_stats,
)

__all__ = ["max_memory_allocated", "mem_get_info", "memory_allocated", "memory_stats", "reset_peak_memory_stats"]
