# SPDX-License-Identifier: Apache-2.0
"""A toy model whose layers are in several KV-cache groups that share tensors, as under vLLM's hybrid manager.

One cache array stands for the tensor that the first layer of every group shares. What a layer writes carries the number
of its group, so a block read through another group's table, a freed block or a foreign one changes the answer. The
answer is made of what the full group sees followed by what each sliding group sees. Before each forward every block
nobody owns is overwritten, and every block a layer is given is looked up in core's own tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gates.cpu.runner.toy_engine import POISON, ToyModel, next_token

TAG = 10**6  # above every token id


def kv_cache_config(vllm_config: Any, sliding: int, full: int, window: int, blocks: int) -> Any:
    """Core's own KVCacheConfig for that many layers, in which every fourth or so is a full one."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shape = {"block_size": vllm_config.cache_config.block_size, "num_kv_heads": 1, "head_size": 8}
    names = {
        f"sliding.{i}": SlidingWindowSpec(**shape, dtype=torch.bfloat16, sliding_window=window) for i in range(sliding)
    }
    names |= {f"full.{i}": FullAttentionSpec(**shape, dtype=torch.bfloat16) for i in range(full)}
    groups = get_kv_cache_groups(vllm_config, names)
    page = groups[0].kv_cache_spec.page_size_bytes
    size = max(len(group.layer_names) for group in groups)
    made = get_kv_cache_config_from_groups(vllm_config, groups, blocks * page * size)
    assert made.num_blocks == blocks
    return made


class GroupedToy(ToyModel):
    """See the module. `scheduler` is asked who owns what; `checked` counts the blocks looked up."""

    def __init__(self, blocks: int, block_size: int, vocabulary: int, runner: Any, scheduler: Any):
        super().__init__(blocks, block_size, vocabulary)
        from vllm_gaudi.runtime import windowed_kv
        from vllm_gaudi.v1.worker.hpu_model_runner import HPUAttentionMetadataProcessor, trim_attn_metadata

        self._processor = HPUAttentionMetadataProcessor(runner.vllm_config)
        self._trim = trim_attn_metadata
        self._runner, self._scheduler = runner, scheduler
        self._groups = windowed_kv.of(runner)
        self._layers = {group: layer for layer, group in self._groups.of_layer.items()}
        self.order = [self._groups.full, *self._groups.sliding]
        self.checked = self.poisoned = 0
        self.forgets = False  # whether freed blocks leave the prefix cache at once
        self.widths: set[int] = set()

    def _owned(self, group: int) -> dict[str, list[int]]:
        manager = self._scheduler.kv_cache_manager.coordinator.single_type_managers[group]
        return {req: [block.block_id for block in blocks] for req, blocks in manager.req_to_blocks.items()}

    def _poison(self) -> None:
        """Overwrite the null block, the padding block and every block that no request and no prefix refers to."""
        pool = self._scheduler.kv_cache_manager.block_pool
        if self.forgets:
            for block in pool.blocks:
                if block.ref_cnt == 0 and block.block_hash is not None:
                    pool._maybe_evict_cached_block(block)
        free = [b.block_id for b in pool.blocks if b.ref_cnt == 0 and b.block_hash is None and not b.is_null]
        for block in (0, len(pool.blocks), *free):
            self.cache[block * self.block_size : (block + 1) * self.block_size] = POISON
        self.poisoned += len(free)

    def forward(self, token_ids: Any, position_ids: Any, metadata: Any, *args: Any, **kwargs: Any) -> tuple:
        from vllm_gaudi.runtime import window_groups

        self._poison()
        batch, width = token_ids.shape
        processed = self._processor.process_metadata(
            self._trim(metadata), batch, width, token_ids.device, torch.bfloat16
        )
        views = window_groups.per_layer(processed)
        assert set(views) == set(self._groups.of_layer)
        self._views = {group: views[layer] for group, layer in self._layers.items()}
        return super().forward(token_ids, position_ids, metadata, *args, **kwargs)

    def _read(self, group: int, blocks: Any) -> np.ndarray:
        return self._blocks(blocks) - group * TAG

    def _check(self, group: int, request: str, blocks: Any) -> None:
        """Every one of `blocks` is a live block of `request` in `group`."""
        mine = self._owned(group)[request]
        strange = [int(b) for b in blocks if int(b) == 0 or int(b) not in mine]
        assert not strange, f"group {group} of {request} is given blocks {strange}, it has {mine}"
        self.checked += len(blocks)

    def _prefill(self, token_ids: Any, metadata: Any) -> list[int]:
        batch, width = token_ids.shape
        fed = token_ids.cpu().numpy()
        seen: list[list[list[int]]] = [[[] for _ in range(width)] for _ in range(batch)]
        for group in self.order:
            view = self._views[group]
            slots = view.slot_mapping.view(batch, width).cpu().numpy()
            owned = self._owned(group)
            listed = view.block_list
            bias = None
            if group != self._groups.full:
                listed = view.window_block_list if view.window_block_list is not None else listed
                bias = view.window_attn_bias.float().cpu().expand(batch, 1, -1, -1)[:, 0]
            for row in range(batch):
                count = int(view.seq_lens_tensor[row].cpu())
                if count == 0:
                    continue
                context = int(view.context_lens_tensor[row].cpu())
                at = context // self.block_size
                target = int(slots[row, 0]) // self.block_size
                request = next(r for r, blocks in owned.items() if len(blocks) > at and blocks[at] == target)
                self._check(group, request, np.unique(slots[row, :count] // self.block_size))
                keys = np.empty(0, dtype=np.int64)
                if listed is not None:
                    mine = listed.view(batch, -1)[row].cpu().numpy()
                    if bias is None:
                        keys = self._read(group, mine[: -(-context // self.block_size)]).ravel()[:context]
                    else:
                        self._check(group, request, mine)
                        keys = self._read(group, mine).ravel()
                self.cache[slots[row, :count]] = fed[row, :count] + group * TAG
                keys = np.concatenate((keys, fed[row]))
                for column in range(count):
                    if bias is None:
                        seen[row][column] += keys[: context + column + 1].tolist()
                    else:
                        seen[row][column] += keys[(bias[row, column] == 0).numpy()].tolist()
        return [next_token(keys, self.vocabulary) if keys else 0 for row in seen for keys in row]

    def _decode(self, token_ids: Any, metadata: Any) -> list[int]:
        rows = token_ids.size(0)
        seen: list[list[int]] = [[] for _ in range(rows)]
        requests = self._runner.input_batch.req_ids
        for group in self.order:
            view, full = self._views[group], group == self._groups.full
            slots = view.slot_mapping.flatten().cpu().numpy()
            self.cache[slots] = token_ids.flatten().cpu().numpy() + group * TAG
            listed = (view.block_list if full else view.window_block_list).cpu().numpy()
            groups = (view.block_groups if full else view.window_block_groups).cpu().numpy()
            mask = ((view.attn_bias if full else view.window_attn_bias) == 0).cpu().numpy()
            assert mask.any(axis=1).all(), "a block with nothing visible turns the block-wise softmax into NaN"
            if not full:
                self.widths.add(len(listed) // rows)
            read = self._read(group, listed)
            for row in range(rows):
                mine = np.flatnonzero(groups == row)
                if len(mine):
                    self._check(group, requests[row], [*listed[mine], slots[row] // self.block_size])
                    seen[row] += np.concatenate([read[i][mask[i]] for i in mine]).tolist()
        return [next_token(keys, self.vocabulary) if keys else 0 for keys in seen]
