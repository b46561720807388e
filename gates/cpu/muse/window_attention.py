# SPDX-License-Identifier: Apache-2.0
"""One sliding or full attention layer of the plug-in on a cache whose freed blocks hold NaN.

Keys and values of a sequence are written straight into the cache, through a block table in random order; blocks that
no query of the step can see hold NaN, as does everything else nobody owns. The lists come from the runtime, masks from
the plug-in's metadata processor, the attention from its own implementation.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

BLOCK = 128
BLOCKS = 64


class WindowLayer:
    """The attention of `layer` of a loaded model with a window of `window` keys.

    Args:
        harness: model whose first layer slides and whose fourth sees everything.
        sliding: which of the two.
    """

    def __init__(self, harness: Any, sliding: bool, window: int, positions: int = 4096) -> None:
        from vllm_gaudi.v1.worker.hpu_model_runner import HPUAttentionMetadataProcessor

        self.layer = harness.model.model.layers[0 if sliding else 3].self_attn.attn
        self.impl, self.window, self.sliding = self.layer.impl, window, sliding
        assert (self.impl.sliding_window == window) is sliding
        self.processor = HPUAttentionMetadataProcessor(harness.vllm_config)
        self.heads, self.kv, self.size = self.impl.num_heads, self.impl.num_kv_heads, self.impl.head_size
        draw = torch.Generator().manual_seed(11)
        self.q, self.k, self.v = (
            torch.randn(positions, heads, self.size, generator=draw).to(torch.bfloat16)
            for heads in (self.heads, self.kv, self.kv)
        )
        self.table = (torch.randperm(BLOCKS - 1, generator=draw) + 1).tolist()

    def _cache(self, kept: range) -> tuple[torch.Tensor, ...]:
        """Key and value cache with the positions `kept`; NaN in every block without one of them."""
        caches = []
        for values in (self.k, self.v):
            cache = torch.full(((BLOCKS + 1) * BLOCK, self.kv, self.size), float("nan"), dtype=torch.bfloat16)
            for block in {position // BLOCK for position in kept}:
                # Later slots of an owned block were never written: zeros, as after allocation.
                cache[self.table[block] * BLOCK : (self.table[block] + 1) * BLOCK] = 0
            cache[[self._slot(position) for position in kept]] = values[list(kept)]
            cache[BLOCKS * BLOCK :] = 0  # the padding block is never freed
            caches.append(cache.to("hpu"))
        return (*caches, None, None)

    def _slot(self, position: int) -> int:
        return self.table[position // BLOCK] * BLOCK + position % BLOCK

    def _first(self, position: int) -> int:
        return max(0, position - self.window + 1) if self.sliding else 0

    def _run(self, metadata: Any, rows: range, cache: tuple, shape: tuple[int, int]) -> torch.Tensor:
        from vllm_gaudi.v1.worker.hpu_model_runner import trim_attn_metadata

        processed = self.processor.process_metadata(
            trim_attn_metadata(metadata), *shape, torch.device("hpu"), torch.bfloat16
        )
        q, k, v = (value[list(rows)].flatten(1).view(*shape, -1).to("hpu") for value in (self.q, self.k, self.v))
        with torch.inference_mode():
            return self.impl.forward(self.layer, q, k, v, cache, processed).view(len(rows), self.heads, -1).cpu()

    def prefill(self, context: int, chunk: int) -> torch.Tensor:
        """Output [chunk, heads, size] of a chunk behind `context` cached tokens."""
        from vllm_gaudi.runtime import windows
        from vllm_gaudi.v1.attention.backends.hpu_attn import HPUAttentionMetadataV1

        blocks = -(-(context + chunk) // BLOCK)
        listed = window_list = None
        if context:
            listed = torch.tensor(self.table[: -(-context // BLOCK)], dtype=torch.int32, device="hpu")
            window_list = torch.tensor(
                windows.prefill_blocks(self.table[:blocks], context, self.window, BLOCK), dtype=torch.int32
            ).to("hpu")
        rows = range(context, context + chunk)
        metadata = HPUAttentionMetadataV1.make_prefill_metadata(
            attn_bias=None,
            block_list=listed,
            context_lens_tensor=torch.tensor([context], dtype=torch.int32, device="hpu"),
            seq_lens_tensor=torch.tensor([chunk], dtype=torch.int32, device="hpu"),
            slot_mapping=torch.tensor([self._slot(p) for p in rows], device="hpu").view(1, -1),
            block_size=BLOCK,
            window_block_list=window_list,
        )
        cache = self._cache(range(self._first(context) // BLOCK * BLOCK, context))
        for part in cache[:2]:
            for block in {position // BLOCK for position in rows} - {(context - 1) // BLOCK if context else -1}:
                part[self.table[block] * BLOCK : (self.table[block] + 1) * BLOCK] = 0
        return self._run(metadata, rows, cache, (1, chunk))

    def decode(self, position: int) -> torch.Tensor:
        """Output [1, heads, size] of the token at `position`, everything before it cached."""
        from vllm_gaudi.runtime import windows
        from vllm_gaudi.v1.attention.backends.hpu_attn import HPUAttentionMetadataV1

        runner = SimpleNamespace(sliding_window=self.window, _PAD_BLOCK_ID=BLOCKS)
        listed, groups, usage = windows.decode_window(runner, [self.table], [position], 1, BLOCK)
        used = position // BLOCK + 1
        full = torch.tensor(self.table[:used])
        full_usage = torch.tensor([BLOCK] * (used - 1) + [position % BLOCK + 1], dtype=torch.bfloat16)
        metadata = HPUAttentionMetadataV1.make_decode_metadata(
            block_list=full.to("hpu"),
            block_usage=full_usage.to("hpu"),
            block_groups=torch.zeros(used, dtype=torch.int64).to("hpu"),
            input_positions=None,
            slot_mapping=torch.tensor([[self._slot(position)]], device="hpu"),
            block_size=BLOCK,
            window_block_list=listed.to("hpu"),
            window_block_usage=usage.to("hpu"),
            window_block_groups=groups.to("hpu"),
            chunked_block_list=None,
            chunked_block_usage=None,
            chunked_block_groups=None,
        )
        cache = self._cache(range(self._first(position) // BLOCK * BLOCK, position + 1))
        return self._run(metadata, range(position, position + 1), cache, (1, 1))

    def expected(self, rows: range) -> torch.Tensor:
        """The same in plain fp32, from the rule alone: query p sees the keys k with p - W < k <= p."""
        outputs = []
        for position in rows:
            keys = slice(self._first(position), position + 1)
            k, v = (value[keys].float().repeat_interleave(self.heads // self.kv, dim=1) for value in (self.k, self.v))
            scores = torch.einsum("hd,khd->hk", self.q[position].float(), k) * self.impl.scale
            outputs.append(torch.einsum("hk,khd->hd", scores.softmax(-1), v))
        return torch.stack(outputs)
