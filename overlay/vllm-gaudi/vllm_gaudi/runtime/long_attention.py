# SPDX-License-Identifier: Apache-2.0
"""Prompt attention with an explicit bias, in query tiles of bounded workspace.

A FusedSDPA call with a bias keeps a workspace of 4 bytes x heads x query rows x keys for the life of the
process (never less than 16 heads' worth: about 60 bytes per query row and key were measured with 6 heads and with
16), and a dense bias [queries, keys] of 2^31 bytes or more is read with a wrapped 32-bit offset (NaN). So
calls over the budget run as tiles of query rows (rows are independent, the result is the same), and past a
number of keys the bias is never built: a row saying which keys exist is kept, and each tile makes its own rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vllm_gaudi.runtime import settings
from vllm_gaudi.runtime.forward_state import STATE

WORKSPACE_BYTES = 4  # per (head, query row, key)
LEAST_HEADS = 16
BIAS_PLANE_LIMIT = 2**31


def workspace_bytes(heads: int, rows: int, keys: int, prompts: int = 1) -> int:
    """Upper estimate of what the kernel keeps after one biased call."""
    return WORKSPACE_BYTES * max(heads, LEAST_HEADS) * prompts * rows * keys


def tile_rows(heads: int, queries: int, keys: int, itemsize: int, budget: int, prompts: int = 1) -> int:
    """Query rows per call: the largest power of two whose workspace and bias plane stay below their limits.

    Returns `queries` when the whole call does.

    Raises:
        RuntimeError: a single row is over the budget.
    """

    def fits(rows: int) -> bool:
        return workspace_bytes(heads, rows, keys, prompts) < budget and rows * keys * itemsize < BIAS_PLANE_LIMIT

    if fits(queries):
        return queries
    rows = 1
    if not fits(rows):
        raise RuntimeError(
            f"attention of {heads} heads over {keys} keys needs {workspace_bytes(heads, 1, keys, prompts)} bytes "
            f"of workspace for one query row, over {settings.variable('attention_workspace_bytes')}="
            f"{budget}: raise it or shorten the context"
        )
    while rows * 2 < queries and fits(rows * 2):
        rows *= 2
    return rows


def compact_bias(
    processor: Any, metadata: Any, batch_size: int, seq_len: int, device: torch.device, dtype: torch.dtype
) -> Any:
    """Metadata whose `attn_bias` is the validity row [batch, 1, 1, keys] when the context is long.

    Upstream leaves a bias that is already set alone, so the dense one is never built.
    """
    from vllm_gaudi.runtime import gates

    if (
        metadata is None
        or not metadata.is_prompt
        or metadata.block_list is None
        or metadata.attn_bias is not None
        or not processor.prefill_use_fusedsdpa
        or STATE.graphs
    ):
        return metadata
    block_size = metadata.block_size or processor.block_size
    context_keys = metadata.block_list.size(-1) // batch_size * block_size
    keys = context_keys + seq_len
    plane = seq_len * keys * torch.empty((), dtype=dtype).element_size()
    if keys <= settings.current().compact_bias_keys and plane < BIAS_PLANE_LIMIT:
        return metadata
    if not gates.long_attention(processor.vllm_config):
        return metadata
    from vllm_gaudi.v1.worker.hpu_model_runner import custom_tuple_replace

    context = metadata.context_lens_tensor.view(batch_size, 1)
    chunk = metadata.seq_lens_tensor.view(batch_size, 1)
    key = torch.arange(keys, dtype=torch.int32, device=device).view(1, keys)
    valid = torch.where(key < context_keys, key < context, key - context_keys < chunk)
    row = torch.zeros(valid.shape, dtype=dtype, device=device).masked_fill_(~valid, float("-inf"))
    return custom_tuple_replace(metadata, "TrimmedAttentionMetadata", attn_bias=row.view(batch_size, 1, 1, keys))


def tile_bias(bias: torch.Tensor, first: int, rows: int, queries: int) -> torch.Tensor:
    """Bias rows `first : first + rows` of a call over `queries` rows.

    Args:
        bias: dense [batch, 1 or heads, queries, keys], or a validity row [batch, 1, 1, keys] to which
            causality is added: row i sees key k iff it is valid and k - (keys - queries) <= i.
    """
    if bias.size(-2) != 1 or queries == 1:
        return bias[..., first : first + rows, :]
    keys = bias.size(-1)
    key = torch.arange(keys, dtype=torch.int32, device=bias.device).view(1, keys)
    row = torch.arange(first, first + rows, dtype=torch.int32, device=bias.device).view(rows, 1)
    seen = key - (keys - queries) <= row
    return torch.where(seen, bias, torch.full((), float("-inf"), dtype=bias.dtype, device=bias.device))


def tiled_prompt(impl: str, args: dict[str, Any], attend: Callable[..., torch.Tensor]) -> torch.Tensor | None:
    """Run one prompt attention call in tiles, or return None to leave it to upstream.

    Args:
        args: arguments of the call after the cached keys were put in front: `query` [batch, queries, heads,
            head], `key` and `value` [batch, keys, kv heads, head], `attn_bias`.
        attend: upstream's implementation for one call.
    """
    bias = args.get("attn_bias")
    if not STATE.long_attention or bias is None or impl != "fsdpa_impl" or STATE.graphs:
        return None
    query, keys = args["query"], args["key"].size(1)
    queries, heads = query.size(1), query.size(2)
    compact = bias.size(-2) == 1 and queries > 1
    current = settings.current()
    # Prompts of one call share its workspace.
    budget = current.attention_workspace_bytes
    rows = tile_rows(heads, queries, keys, bias.element_size(), budget, prompts=query.size(0))
    if rows == queries and not compact:
        return None
    # A tile is not a causal square: its bias says everything, and upstream must not slice keys by position.
    call = {**args, "is_causal": False, "valid_seq_lengths": None}
    outputs = []
    in_flight = InFlight(current.tiles_in_flight)
    for first in range(0, queries, rows):
        count = min(rows, queries - first)
        call["query"] = query[:, first : first + count]
        call["attn_bias"] = tile_bias(bias, first, count, queries)
        outputs.append(attend(**call))
        in_flight.launched()
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


class InFlight:
    """Bounds the tiles queued on the device: each holds its bias and scores until it has run."""

    def __init__(self, limit: int):
        self._limit = limit
        self._events: list[Any] = []
        self._count = 0

    def launched(self) -> None:
        """Cut the graph after a tile and wait for the tile `limit` launches back."""
        import habana_frameworks.torch as htorch

        htorch.core.mark_step()
        if len(self._events) < self._limit:
            self._events.append(torch.hpu.Event())
        self._events[self._count % self._limit].record()
        self._count += 1
        if self._count >= self._limit:
            self._events[self._count % self._limit].synchronize()
