# SPDX-License-Identifier: Apache-2.0
"""Block lists of a decode batch without Python loops over blocks.

At 16 requests of 256K tokens the lists hold 32,768 entries; upstream builds them as Python lists several times
over in every decode step, and sends each entry through a defragmenter that is usually disabled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vllm_gaudi.runtime import settings

EXACT_IN_BFLOAT16 = 256  # whole numbers up to this one


def usable(runner: Any) -> bool:
    """Whether the arrays can stand in for upstream's lists: nothing remaps or reorders block ids."""
    defragmenter = getattr(runner, "defragmenter", None)
    return (
        settings.current().host_lists != "off"
        and not runner.use_contiguous_pa
        and not (defragmenter and defragmenter.enabled)
    )


def loop_rows(runner: Any, num_blocks: list[int], num_tokens: int) -> list[int]:
    """Rows upstream's loop still has to turn into lists: none when `array_rows` does it."""
    return [] if num_tokens == 1 and usable(runner) else num_blocks


def array_rows(
    runner: Any, lists: list, num_decodes: int, context_lens: Any, table: torch.Tensor, block_size: int
) -> list:
    """Block ids per request as views into the block table, or `lists` if upstream's loop made them.

    Args:
        context_lens: int array [num_decodes], tokens before the query.
        table: int32 [requests, blocks] on the host.
    """
    if lists or not num_decodes:
        return lists
    counts = np.asarray(context_lens[:num_decodes]) // block_size + 1
    blocks = table.numpy()
    return [blocks[row, :count] for row, count in enumerate(counts.tolist())]


def paged_buffers(
    runner: Any, block_tables: list, slot_mapping: list, batch_size: int, block_size: int | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Block list and groups [bucket] int64 and usage [bucket]; None for Python lists.

    Usage is in model dtype as upstream has it, and int32 for blocks it could not count in bfloat16: 259 slots in use
    would be taken for 260, and a key that is not the request's be read.
    """
    if not block_tables or not isinstance(block_tables[0], np.ndarray):
        return None
    block_size = runner.attn_block_size if block_size is None else block_size
    counts = np.fromiter((len(t) for t in block_tables), dtype=np.int64, count=len(block_tables))
    total = int(counts.sum())
    size = runner.bucketing_manager.find_decode_bucket(batch_size, total)[2]
    size = max(size + runner.get_dp_padding(size), total)
    block_list = np.full(size, runner._PAD_BLOCK_ID, dtype=np.int64)
    groups = np.full(size, -1, dtype=np.int64)
    usage = np.ones(size, dtype=np.float32)
    np.concatenate(block_tables, out=block_list[:total], casting="unsafe")
    groups[:total] = np.repeat(np.arange(len(counts)), counts)
    usage[:total] = block_size
    filled = counts > 0
    last = np.asarray([slot[0] % block_size + 1 for slot in slot_mapping[: len(counts)]], dtype=np.float32)
    usage[np.cumsum(counts)[filled] - 1] = last[filled]
    dtype = runner.model_config.dtype if block_size <= EXACT_IN_BFLOAT16 else torch.int32
    return torch.from_numpy(block_list), torch.from_numpy(groups), torch.from_numpy(usage).to(dtype)
