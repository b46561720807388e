# SPDX-License-Identifier: Apache-2.0
"""Grammar bitmask applied on the device: no copy of the logits to the host.

A bit mask row is V bits packed in int32 words: token j is bit j % 32 of word j // 32, least
significant bit first; 1 keeps the logit, 0 sets it to -inf (the semantics of xgrammar's CPU
kernel `apply_token_bitmask_inplace_cpu`). Kept logits stay as they are bit for bit, NaN
included. Shapes depend on the logits alone, so a graph is built once per row bucket.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

logger = logging.getLogger(__name__)

WORD = 32
_POWERS: dict[torch.device, torch.Tensor] = {}


def _powers(device: torch.device) -> torch.Tensor:
    """`[32]` int32 powers of two; the last is the sign bit."""
    if device not in _POWERS:
        bits = np.left_shift(np.uint32(1), np.arange(WORD, dtype=np.uint32)).view(np.int32)
        _POWERS[device] = torch.from_numpy(bits).to(device)
    return _POWERS[device]


def apply_packed_mask(logits: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Mask `logits` in place and return them.

    Args:
        logits: `[rows, V]`, any floating dtype.
        packed: `[rows, words]` int32 on the same device. Columns from `32 * words` on are left
            untouched; words beyond V are not read.

    Raises:
        ValueError: row counts differ or `packed` is not int32.
    """
    if packed.dtype != torch.int32 or packed.dim() != 2 or packed.shape[0] != logits.shape[0]:
        raise ValueError(
            f"grammar mask: int32 [{logits.shape[0]}, words] expected, got {packed.dtype} {tuple(packed.shape)}"
        )
    rows, width = logits.shape[0], min(logits.shape[1], WORD * packed.shape[1])
    # AND with a constant instead of a shift: no arithmetic right shift of negative words.
    keep = torch.bitwise_and(packed.unsqueeze(-1), _powers(logits.device)) != 0
    drop = ~keep.reshape(rows, -1)[:, :width]
    target = logits if width == logits.shape[1] else logits[:, :width]
    target.masked_fill_(drop, float("-inf"))
    return logits


def mask_on_device(logits: torch.Tensor, sorted_bitmask: np.ndarray, scheduler_output: SchedulerOutput) -> bool:
    """Apply the step's bitmask where the logits are; False leaves it to the host path.

    Args:
        logits: `[rows, V]` of the step, masked in place.
        sorted_bitmask: `[rows, words]` int32, one row for each logits row; rows of requests
            without a grammar are all ones.

    Rows of speculative tokens are left to the host path: their grammar rows interleave with
    draft positions that this path has no test for.
    """
    if any(scheduler_output.scheduled_spec_decode_tokens.values()):
        logger.warning("Grammar masks of speculative rows are applied on the host.")
        return False
    packed = torch.from_numpy(sorted_bitmask).to(logits.device, non_blocking=True)
    apply_packed_mask(logits, packed)
    return True
