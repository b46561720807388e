# SPDX-License-Identifier: Apache-2.0
"""A toy model that sees only what a sliding-window layer's block list and bias let it see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from gates.cpu.runner.toy_engine import ToyModel, next_token


def window_checkpoint(root: Path, window: int) -> Path:
    """A small model with one sliding and one full layer."""
    from gates.hpusim import checkpoints

    kinds = ["sliding_attention", "full_attention"]
    small = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": 8192}
    return checkpoints.make("gemma3_text", root, sliding_window=window, layer_types=kinds, **small)


class WindowToy(ToyModel):
    """Answers from the keys its window path leaves visible, in order; nothing else of the sequence reaches it."""

    def __init__(self, blocks: int, block_size: int, vocabulary: int, runner: Any):
        super().__init__(blocks, block_size, vocabulary)
        from vllm_gaudi.v1.worker.hpu_model_runner import HPUAttentionMetadataProcessor, trim_attn_metadata

        self._processor = HPUAttentionMetadataProcessor(runner.vllm_config)
        self._trim = trim_attn_metadata
        self.decode_shapes: set[tuple] = set()
        self.decode_rows: set[int] = set()

    def _processed(self, token_ids: Any, metadata: Any) -> Any:
        batch, width = token_ids.shape
        return self._processor.process_metadata(self._trim(metadata), batch, width, token_ids.device, torch.bfloat16)

    def _prefill(self, token_ids: Any, metadata: Any) -> list[int]:
        batch, width = token_ids.shape
        slots = metadata.slot_mapping.view(batch, width).cpu().numpy()
        fed = token_ids.cpu().numpy()
        processed = self._processed(token_ids, metadata)
        bias = processed.window_attn_bias.float().cpu().expand(batch, 1, -1, -1)[:, 0]
        listed = processed.window_block_list if processed.window_block_list is not None else processed.block_list
        answers = []
        for row in range(batch):
            count = int(metadata.seq_lens_tensor[row].cpu())
            keys = fed[row]
            if listed is not None:
                keys = np.concatenate((self._blocks(listed.view(batch, -1)[row].cpu().numpy()).ravel(), keys))
            self.cache[slots[row, :count]] = fed[row, :count]
            seen = (bias[row] == 0).numpy()
            answers += [next_token(keys[seen[i]], self.vocabulary) if i < count else 0 for i in range(width)]
        return answers

    def _decode(self, token_ids: Any, metadata: Any) -> list[int]:
        self.cache[metadata.slot_mapping.flatten().cpu().numpy()] = token_ids.flatten().cpu().numpy()
        processed = self._processed(token_ids, metadata)
        self.decode_shapes.add((tuple(processed.block_list.shape), tuple(processed.window_block_list.shape)))
        self.decode_rows.add(token_ids.size(0))
        groups = processed.window_block_groups.cpu().numpy()
        seen = (processed.window_attn_bias == 0).cpu().numpy()
        # A block with nothing visible turns the block-wise softmax into NaN.
        assert seen.any(axis=1).all()
        read = self._blocks(processed.window_block_list.cpu().numpy())
        answers = []
        for row in range(token_ids.size(0)):
            mine = np.flatnonzero(groups == row)
            keys = np.concatenate([read[i][seen[i]] for i in mine]) if len(mine) else []
            answers.append(next_token(keys, self.vocabulary) if len(mine) else 0)
        return answers
