# SPDX-License-Identifier: Apache-2.0
"""Exact sliding windows: a query at position p sees the keys k with p - W < k <= p, no more and no fewer.

Both phases read their keys through a list of KV blocks of fixed width, so that the shapes of a graph depend on
the decode bucket alone. The first block of a decode window may start before the window: its leading slots are
masked. Since lead < block size, no block in the list is ever fully masked (softmax over one would be NaN).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def width(window: int, block_size: int) -> int:
    """Blocks that `window` consecutive tokens touch at most, for any alignment."""
    return (window + block_size - 2) // block_size + 1


def decode_span(position: int, window: int, block_size: int) -> tuple[int, int, int]:
    """First block, number of blocks and masked leading slots of the window of a query at `position`."""
    first = max(0, position - window + 1)
    first_block, lead = divmod(first, block_size)
    return first_block, position // block_size - first_block + 1, lead


def prefill_blocks(blocks: Any, context: int, window: int, block_size: int) -> list[int]:
    """Window block list of one prefill: the blocks its first query sees, left-aligned, of fixed width.

    Blocks before them may have been freed and are not listed. Slots that hold no context repeat one of the request's
    own blocks; the bias masks them.

    Args:
        blocks: the request's block ids in order.
        context: computed tokens before the chunk.
    """
    size = width(window, block_size)
    first = max(0, context - window + 1) // block_size
    kept = [int(b) for b in blocks[first : -(-context // block_size)]]
    # A window of one token sees no context where a block begins; that block is the chunk's own.
    padding = kept[-1] if kept else (int(blocks[first]) if len(blocks) > first else 0)
    return kept + [padding] * (size - len(kept))


def prefill_window_list(
    runner: Any, contents: Any, target_bs: int, target_blocks: int, current: torch.Tensor | None
) -> torch.Tensor | None:
    """Block list [target_bs * width] int32 for the sliding layers of a prefill with cached context.

    With several KV-cache groups [sliding groups, target_bs * width]. Returns `current` unchanged when the model has no
    exact windows or the batch has no context.
    """
    from vllm_gaudi.runtime import gates, window_groups

    if target_blocks == 0 or not gates.exact_window(runner):
        return current
    by_group = window_groups.tables(runner, sliding=True)
    if by_group is None:
        lists = _prefill_rows(runner, contents.blocks, contents, target_bs)
    else:
        index = [runner.input_batch.req_id_to_index[req_id] for req_id in contents.req_ids]
        lists = [_prefill_rows(runner, [table[i] for i in index], contents, target_bs) for table in by_group]
    return torch.tensor(lists, dtype=torch.int32).to(runner.device, non_blocking=True)


def _prefill_rows(runner: Any, tables: list, contents: Any, target_bs: int) -> list[int]:
    rows = [
        prefill_blocks(blocks, int(context), runner.sliding_window, runner.attn_block_size)
        for blocks, context in zip(tables, contents.context_lens, strict=False)
    ]
    rows += [rows[0]] * (target_bs - len(rows))
    return [block for row in rows for block in row]


def window_bias(
    processor: Any, metadata: Any, batch_size: int, seq_len: int, window: int, device: torch.device, dtype: torch.dtype
) -> Any | None:
    """Metadata with the additive bias [batch, 1, seq, listed keys + seq] of the sliding layers.

    Without cached context there are no listed keys. Upstream may then leave the window to the kernel
    (PT_HPU_SDPA_QKV_SLICE_MODE_FWD), of which nobody says whether it keeps W keys or W + 1.
    """
    if not metadata.is_prompt:
        return None
    from vllm_gaudi.v1.worker.hpu_model_runner import custom_tuple_replace

    row = torch.arange(seq_len, device=device, dtype=torch.int32).view(1, seq_len, 1)
    column = torch.arange(seq_len, device=device, dtype=torch.int32).view(1, 1, seq_len)
    seen = ((column <= row) & (column > row - window)).expand(batch_size, -1, -1)
    if metadata.block_list is not None:
        seen = torch.cat((_seen_context(processor, metadata, batch_size, row, window), seen), dim=-1)
    seen = seen.unsqueeze(1)
    bias = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, float("-inf"))
    return custom_tuple_replace(metadata, "TrimmedAttentionMetadata", window_attn_bias=bias)


def _seen_context(processor: Any, metadata: Any, batch_size: int, row: torch.Tensor, window: int) -> torch.Tensor:
    """Which listed keys each query of a chunk sees: bool [batch, seq, listed keys], `row` int32 [1, seq, 1]."""
    listed = metadata.window_block_list if metadata.window_block_list is not None else metadata.block_list
    block_size = metadata.block_size or processor.block_size
    keys = listed.size(-1) // batch_size * block_size
    context = metadata.context_lens_tensor.to(torch.int32).view(batch_size, 1, 1)
    # Slot 0 of the list is token `base`: the list begins with the first query's window.
    base = (context - (window - 1)).clamp(min=0) // block_size * block_size
    past = torch.arange(keys, device=row.device, dtype=torch.int32).view(1, 1, keys) + base
    return (past < context) & (past > context + row - window)


def decode_window(
    runner: Any, block_tables: list, positions: Any, rows: int, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Block list, groups and usage of the sliding layers of a decode batch.

    Args:
        block_tables: block ids per request, at least up to the block of its position.
        positions: position of each request's query.
        rows: rows of the decode batch, padding included.

    Returns:
        `block_list` [N] and `groups` [N] int64, `usage` [2, N] int32 with N = rows * width: `usage[0]` counts
        the slots in use, `usage[1]` the leading slots before the window. Padding has group -1 and one slot.
        With several KV-cache groups `block_list` is [sliding groups, N].
    """
    from vllm_gaudi.runtime import window_groups

    window = runner.sliding_window
    size = rows * width(window, block_size)
    by_group = window_groups.tables(runner, sliding=True)
    lists = [block_tables] if by_group is None else by_group
    block_list = np.full((len(lists), size), runner._PAD_BLOCK_ID, dtype=np.int64)
    groups = np.full(size, -1, dtype=np.int64)
    usage = np.stack((np.ones(size, dtype=np.int32), np.zeros(size, dtype=np.int32)))
    at = 0
    for row, position in enumerate(int(p) for p in positions):
        first, count, lead = decode_span(position, window, block_size)
        for listed, table in zip(block_list, lists, strict=True):
            listed[at : at + count] = table[row][first : first + count]
        groups[at : at + count] = row
        usage[0, at : at + count] = block_size
        usage[0, at + count - 1] = position % block_size + 1
        usage[1, at] = lead
        at += count
    if by_group is None:
        block_list = block_list[0]
    return torch.from_numpy(block_list), torch.from_numpy(groups), torch.from_numpy(usage)


def window_lead_mask(mask: torch.Tensor, is_window_block: bool) -> torch.Tensor:
    """Fold the two comparisons `slot >= usage` of a window list into one mask of hidden slots.

    Args:
        mask: bool [N, block] as upstream builds it, or [2, N, block] for a list of `decode_window`.

    Returns:
        bool [N, block]: slots past the used ones and leading slots.
    """
    if not is_window_block or mask.dim() != 3:
        return mask
    return mask[0] | ~mask[1]
