# SPDX-License-Identifier: Apache-2.0
"""What a KV cache costs on one card, with and without windowed KV, from core's own grouping of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch


@dataclass(frozen=True)
class KvFigures:
    """KV cache of one card.

    Attributes:
        groups: layer indices of each KV-cache group, in core's order.
        full: place of the group of full layers in `groups`.
        window: keys a sliding layer sees.
        block_size: tokens of a block.
        page_bytes: keys and values of one block of one layer.
    """

    groups: tuple[tuple[int, ...], ...]
    full: int
    window: int
    block_size: int
    page_bytes: int

    @property
    def layers(self) -> int:
        return sum(len(group) for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block id: a page for each layer of the largest group."""
        return max(len(group) for group in self.groups) * self.page_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes a token of context adds; the sliding groups stay at their window."""
        return self.block_bytes // self.block_size

    @property
    def full_length_token_bytes(self) -> int:
        """The same when every layer keeps the whole context."""
        return self.layers * self.page_bytes // self.block_size

    def sliding_blocks(self, tokens_in_flight: int, length: int) -> int:
        """Blocks of one sliding group that core sets aside for a request, at most."""
        from vllm.v1.kv_cache_interface import SlidingWindowSpec

        spec = SlidingWindowSpec(
            block_size=self.block_size,
            num_kv_heads=1,
            head_size=1,
            dtype=torch.bfloat16,
            sliding_window=self.window,
        )
        return spec.max_admission_blocks_per_request(tokens_in_flight, length)

    def request_bytes(self, length: int, tokens_in_flight: int) -> int:
        """Bytes of one request of `length` tokens while `tokens_in_flight` are being computed."""
        full = -(-length // self.block_size)
        sliding = (len(self.groups) - 1) * min(full, self.sliding_blocks(tokens_in_flight, length))
        return (full + sliding) * self.block_bytes


def figures(
    windows: Sequence[int | None], kv_heads: int, head_size: int, block_size: int = 128, dtype=torch.bfloat16
) -> KvFigures:
    """Figures of a model whose layer i sees `windows[i]` keys (None: all), with `kv_heads` heads on a card.

    Raises:
        ValueError: no sliding layers, or windows that differ.
    """
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    kinds = {window for window in windows if window is not None}
    if len(kinds) != 1 or None not in windows:
        raise ValueError(f"one window beside full layers expected, found windows {sorted(kinds)}")
    shape = {"block_size": block_size, "num_kv_heads": kv_heads, "head_size": head_size, "dtype": dtype}
    window = kinds.pop()
    specs = {
        str(layer): FullAttentionSpec(**shape) if own is None else SlidingWindowSpec(**shape, sliding_window=own)
        for layer, own in enumerate(windows)
    }
    config = SimpleNamespace(scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False))
    groups = get_kv_cache_groups(config, specs)
    full = [isinstance(group.kv_cache_spec, FullAttentionSpec) for group in groups]
    return KvFigures(
        groups=tuple(tuple(map(int, group.layer_names)) for group in groups),
        full=full.index(True),
        window=window,
        block_size=block_size,
        page_bytes=groups[0].kv_cache_spec.page_size_bytes,
    )
