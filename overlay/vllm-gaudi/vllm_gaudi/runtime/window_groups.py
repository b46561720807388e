# SPDX-License-Identifier: Apache-2.0
"""Slots and window lists of a step when layers are in several KV-cache groups.

Positions are the same in every group, so window groups, usage, lead and bias are too; block ids differ. What differs is
stacked in front: slot mapping [groups, rows, tokens] and window list [sliding groups, blocks]. The model's layers get
the slice of their group, inside the graph, so that a graph has no more inputs than without groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vllm_gaudi.runtime import windowed_kv
from vllm_gaudi.runtime.forward_state import STATE


def tables(runner: Any, sliding: bool) -> list[np.ndarray] | None:
    """Block tables int32 [requests, blocks] of all groups, or of the sliding ones; None with a single group."""
    groups = windowed_kv.of(runner)
    if groups is None:
        return None
    chosen = groups.sliding if sliding else range(len(groups))
    return [runner.input_batch.block_table[group].get_cpu_tensor().numpy() for group in chosen]


def prefill_slots(runner: Any, req_ids: list[str], places: list, slots: torch.Tensor) -> torch.Tensor:
    """Slot mapping [groups, rows, tokens] int64 of a prefill.

    Args:
        places: per request its tokens' (block index, offset) pairs.
        slots: [rows, tokens] of the full group; padding is -1. Returned as it is with a single group.
    """
    by_group = tables(runner, sliding=False)
    if by_group is None:
        return slots
    size = runner.attn_block_size
    stacked = np.full((len(by_group), *slots.shape), -1, dtype=np.int64)
    for row, (req_id, pairs) in enumerate(zip(req_ids, places, strict=True)):
        index = runner.input_batch.req_id_to_index[req_id]
        block, offset = np.asarray(pairs, dtype=np.int64).T
        for group, table in enumerate(by_group):
            stacked[group, row, : len(pairs)] = table[index, block].astype(np.int64) * size + offset
    return torch.from_numpy(stacked).to(runner.device, non_blocking=True)


def decode_slots(runner: Any, slots: torch.Tensor, positions: Any, block_size: int) -> torch.Tensor:
    """Slot mapping [groups, rows, 1] of a decode batch, on the host.

    Args:
        slots: [rows, 1] of the full group, padding rows in the padding block. Returned as it is with a single group.
        positions: of the real rows, which come first.
    """
    by_group = tables(runner, sliding=False)
    if by_group is None:
        return slots
    positions = np.asarray(positions, dtype=np.int64)
    rows = np.arange(len(positions))
    stacked = slots.to(torch.int64).repeat(len(by_group), 1, 1)
    for group, table in enumerate(by_group):
        ids = table[rows, positions // block_size].astype(np.int64)
        stacked[group, : len(rows), 0] = torch.from_numpy(ids * block_size + positions % block_size)
    return stacked


def dummy_blocks(runner: Any, block_ids: list[list[int]]) -> list[list[int]]:
    """Block ids of a warm-up request, the same in every group."""
    groups = windowed_kv.of(runner)
    return block_ids if groups is None else [list(block_ids[0]) for _ in range(len(groups))]


def per_layer(metadata: Any) -> Any:
    """Metadata by layer name where it is stacked by group; unstacked metadata is returned as it is."""
    groups = STATE.kv_groups
    slots = getattr(metadata, "slot_mapping", None)
    if groups is None or slots is None or slots.dim() != 3:
        return metadata
    from vllm_gaudi.v1.worker.hpu_model_runner import custom_tuple_replace

    windows = getattr(metadata, "window_block_list", None)
    views = {groups.full: {"slot_mapping": slots[groups.full]}}
    for place, group in enumerate(groups.sliding):
        views[group] = {"slot_mapping": slots[group]}
        if windows is not None:
            views[group]["window_block_list"] = windows[place]
    made = {group: custom_tuple_replace(metadata, "TrimmedAttentionMetadata", **view) for group, view in views.items()}
    return {layer: made[group] for layer, group in groups.of_layer.items()}
