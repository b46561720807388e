# SPDX-License-Identifier: Apache-2.0
"""Long prompts against the emulated device's workspace model: out of memory without the patch, served with it.

Figures of the port pages: 15.5 GiB for 4,096 rows on 64K keys with 16 heads a card and 13.1 GiB free; 8 to 31 GiB
(about 60 bytes per query row and key) from 32K to 128K keys with 6 heads a card.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

GIB = 2**30
CHUNK = 4096
MEASURED = 60  # bytes per (query row, key), whatever the heads


class _MeteredKernel:
    """Stands in for ModuleFusedSDPA at sizes no CPU computes: tells the device's fault model and returns the query."""

    def __init__(self) -> None:
        self.largest_pairs = self.rows = 0

    def __call__(self, query, key, value, bias, dropout, causal, scale, *rest) -> torch.Tensor:
        from gates.hpusim.ops import sdpa_ops

        self.rows += query.size(-2)
        self.largest_pairs = max(self.largest_pairs, query.size(-2) * key.size(-2))
        for hook in sdpa_ops.bias_hooks:
            hook(query, key)
        return query


def _prefill(kernel: Callable, heads: int, kv_heads: int, keys: int, compact: bool) -> torch.Tensor:
    """Attention of one chunk whose keys, cached context included, number `keys`; shapes of a card, no data."""
    from vllm_gaudi.extension import ops

    make = lambda n, h: torch.empty(1, n, h, 64, dtype=torch.bfloat16, device="meta")  # noqa: E731
    return ops.prompt_attention(
        impl="fsdpa_impl",
        query=make(CHUNK, heads),
        key=make(keys, kv_heads),
        value=make(keys, kv_heads),
        scale=0.125,
        fsdpa_op=kernel,
        is_causal=True,
        attn_bias=torch.empty(1, 1, 1 if compact else CHUNK, keys, dtype=torch.bfloat16, device="meta"),
        valid_seq_lengths=torch.tensor([CHUNK]),
    )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "keys", "free"),
    [(16, 2, 2**16, 13.1), (6, 1, 2**17, 10.0), (6, 1, 2**18, 12.0), (16, 2, 2**20, 24.0)],
)
def test_out_of_memory_without_the_patch(settings, forward_state, heads, kv_heads, keys, free) -> None:
    from gates.hpusim import faults

    settings(LONG_ATTENTION="on")
    forward_state.graphs, forward_state.long_attention = False, False
    limit = f"oom,limit={int(free * GIB)}"
    with faults.enabled("ATTENTION_WORKSPACE", limit), pytest.raises(torch.OutOfMemoryError, match="FusedSDPA keeps"):
        _prefill(_MeteredKernel(), heads, kv_heads, keys, compact=False)
    forward_state.long_attention = True
    kernel = _MeteredKernel()
    with faults.enabled("ATTENTION_WORKSPACE", limit):
        _prefill(kernel, heads, kv_heads, keys, compact=keys > 2**16)
    assert kernel.rows == CHUNK


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 1), (16, 2)])
def test_a_prompt_to_a_million_keys_stays_in_the_budget(settings, forward_state, heads: int, kv_heads: int) -> None:
    """Chunk after chunk in one process, as the workspace is kept: the model has only the budget to give."""
    from gates.hpusim import faults

    settings(LONG_ATTENTION="on")
    forward_state.graphs, forward_state.long_attention = False, True
    kernel = _MeteredKernel()
    with faults.enabled("ATTENTION_WORKSPACE", f"oom,limit={2 * GIB}"):
        for keys in (2**15, 40_000, 2**16, 100_000, 2**17, 200_000, 2**18, 2**19, 2**20 - 128, 2**20):
            _prefill(kernel, heads, kv_heads, keys, compact=keys > 2**16)
    assert MEASURED * kernel.largest_pairs < 2 * GIB, "the measured size is under the budget too"


@pytest.mark.engine
@pytest.mark.long
def test_served(checkpoints_root: Path) -> None:
    """A prompt read in four chunks, the device with 4 MiB to give: dead without tiles, right with them."""
    from gates.cpu.runner.served_reference import deficits
    from gates.hpusim import checkpoints
    from gates.hpusim.testing import run_engine

    checkpoint = checkpoints.make("llama", checkpoints_root)
    prompt = [16 + (7 * i + i * i) % 480 for i in range(2000)]
    batch = {"prompts": [prompt], "sampling": {"temperature": 0, "max_tokens": 8, "ignore_eos": True}}
    engine = {"max_model_len": 2560, "max_num_batched_tokens": 512, "max_num_seqs": 2}
    fault = {"HPUSIM_TRACK": "0", "HPUSIM_FAULT_ATTENTION_WORKSPACE": "oom,limit=4M"}
    with pytest.raises(AssertionError, match="emulated HPU out of memory: FusedSDPA keeps"):
        run_engine(checkpoint, [batch], env=fault, mode="lazy_eager", **engine)
    prefix = "VLLM_GAUDI_FRONTIER_"
    for compact in ("65536", "600"):
        own = {
            prefix + "LONG_ATTENTION": "on",
            prefix + "ATTENTION_WORKSPACE_BYTES": str(4 * 2**20),
            prefix + "COMPACT_BIAS_KEYS": compact,
        }
        run = run_engine(checkpoint, [batch], env={**fault, **own}, mode="lazy_eager", **engine)
        assert max(deficits(checkpoint, [prompt], run.tokens(0))) < 0.15
