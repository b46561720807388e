# SPDX-License-Identifier: Apache-2.0
"""FusedSDPA with an explicit bias keeps a workspace for the life of the process.

Size of one call: 4 bytes x batch x heads x query rows x keys. The kernel keeps the largest it ever needed (15.5 GiB a
card for 4096 rows on 64K keys with 16 heads, as the Muse port measured). When it does not fit, the port pages saw both
an out-of-memory error and, worse, logits of NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gates.hpusim import memory
from gates.hpusim.faults.config import Fault
from gates.hpusim.faults.hooks import Undo
from gates.hpusim.ops import sdpa_ops

BYTES_PER_PAIR_AND_HEAD = 4


def call_bytes(q: torch.Tensor, k: torch.Tensor) -> int:
    """Workspace of one call: q `[B, heads.., T, D]`, k `[.., S, D]`."""
    rows = q.shape[:-1].numel()  # batch x heads x query rows
    return BYTES_PER_PAIR_AND_HEAD * rows * k.shape[-2]


class Workspace:
    """The memory kept so far and the limit it must stay under."""

    def __init__(self, kind: str, limit: int | None) -> None:
        self.kind, self.limit = kind, limit
        self.kept = 0
        self._blocks: list[memory.Block] = []

    def __call__(self, q: torch.Tensor, k: torch.Tensor) -> bool:
        """Called for every biased call; True when its output must be NaN."""
        needed = call_bytes(q, k)
        if needed <= self.kept:
            return False
        growth = needed - self.kept
        free = memory.mem_get_info()[0] if self.limit is None else self.limit - self.kept
        if growth > free:
            if self.kind == "oom":
                raise torch.OutOfMemoryError(
                    f"emulated HPU out of memory: FusedSDPA keeps {needed} bytes of workspace for {tuple(q.shape)} "
                    f"queries on {k.shape[-2]} keys with an explicit bias, {free} bytes are free"
                )
            return True
        self._blocks.append(memory.Block(growth))
        self.kept = needed
        return False


def start(fault: Fault) -> Callable[[], None]:
    undo = Undo()
    undo.append(sdpa_ops.bias_hooks, Workspace(fault.kind, fault.size("limit")))
    return undo
