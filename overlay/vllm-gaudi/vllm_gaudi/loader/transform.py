# SPDX-License-Identifier: Apache-2.0
"""What happens to values between file and stack: checked as stored, adjusted for Gaudi 2, converted."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from vllm_gaudi.loader.headers import CheckpointError
from vllm_gaudi.loader.host_memory import Scratch
from vllm_gaudi.loader.rescale import E4M3, translate
from vllm_gaudi.loader.stacks import Move

CHECKED = 1 << 20  # elements looked at together, so that what a check allocates stays small


def check(move: Move, values: torch.Tensor) -> None:
    """Show `values` [R, C], as they are stored, to the model's own check.

    Raises:
        CheckpointError: it refused them; says where the tensor lies.
    """
    if move.check is None:
        return
    step = max(1, CHECKED // max(1, values.shape[1]))
    for row in range(0, values.shape[0], step):
        try:
            move.check(move.source.name, values[row : row + step])
        except ValueError as error:
            raise CheckpointError(f"{move.source.place}: {error}") from error


def place(
    source: torch.Tensor, target: torch.Tensor, rescale: bool, table: np.ndarray | None, scratch: Scratch
) -> None:
    """Write `source` [R, C] to `target` [R, C], rescaled in the dtype it is stored in; they may be the same."""
    if rescale and source.dtype != target.dtype:
        scaled = scratch.get(prod(source.shape) * source.dtype.itemsize).view(source.dtype).view(source.shape)
        _adjust(source, scaled, table)
        target.copy_(scaled)
    elif rescale:
        _adjust(source, target, table)
    elif source.dtype == target.dtype and source.dtype.itemsize == 1:
        target.view(torch.uint8).copy_(source.view(torch.uint8))
    else:
        target.copy_(source)


def _adjust(source: torch.Tensor, target: torch.Tensor, table: np.ndarray | None) -> None:
    """E4M3 by `table`, anything else doubled."""
    if source.dtype != E4M3:
        torch.mul(source, 2.0, out=target)
        return
    given, made = source.view(torch.uint8), target.view(torch.uint8)
    if given.is_contiguous() and made.is_contiguous():
        given, made = given.flatten(), made.flatten()
    translate(table, given.numpy(), made.numpy())


def scratch_bytes(move: Move, stored: torch.dtype, rows: int) -> int:
    """Bytes `place` takes of its scratch for `rows` rows of `move` into a stack of dtype `stored`."""
    if not move.rescale or move.source.dtype == stored:
        return 0
    return rows * move.region.columns * move.source.dtype.itemsize
