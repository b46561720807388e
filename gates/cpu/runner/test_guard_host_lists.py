# SPDX-License-Identifier: Apache-2.0
"""Guard of the host-lists patch: decode block lists as arrays, equal to upstream's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch


def _state(runner, requests: int, context: int, block_size: int, blocks: int) -> tuple:
    draw = random.Random(0)
    counts = np.array([context - draw.randrange(0, context // 2) for _ in range(requests)], dtype=np.int32)
    table = torch.randint(
        0,
        blocks,
        (requests, -(-(context + 1) // block_size)),
        dtype=torch.int32,
        generator=torch.Generator().manual_seed(0),
    )
    runner.positions_cpu[:requests] = torch.from_numpy(counts.astype(np.int64))
    runner.input_ids_cpu[:requests] = 1
    return counts, table


def _decode(runner, requests: int, counts, table):
    return runner._create_decode_input_data(requests, [1] * requests, counts, table).attn_metadata


@pytest.mark.parametrize("requests", [1, 3, 8])
def test_no_list_is_built(make_engine, settings, monkeypatch: pytest.MonkeyPatch, requests: int) -> None:
    runner = make_engine(False, 200).runner
    counts, table = _state(runner, requests, 200, 16, 200)
    settings(HOST_LISTS="off")
    upstream = _decode(runner, requests, counts, table)
    settings(HOST_LISTS="on")
    seen = []
    build = runner.get_habana_paged_attn_buffers
    monkeypatch.setattr(
        runner, "get_habana_paged_attn_buffers", lambda tables, *a, **k: seen.extend(tables) or build(tables, *a, **k)
    )
    ours = _decode(runner, requests, counts, table)
    assert len(seen) == requests
    assert all(isinstance(row, np.ndarray) for row in seen)
    for name in ("block_list", "block_groups", "block_usage", "slot_mapping"):
        theirs, mine = getattr(upstream, name), getattr(ours, name)
        assert theirs.dtype == mine.dtype, name
        assert torch.equal(theirs.cpu(), mine.cpu()), name


@pytest.mark.parametrize("block_size", [256, 272, 512])
def test_large_blocks_are_counted_exactly(make_engine, settings, block_size: int) -> None:
    """Upstream counts in bfloat16: above 256 a key too many or too few is seen."""
    runner = make_engine(False, 64, block_size=block_size, max_model_len=1024, max_num_batched_tokens=1024).runner
    counts = np.array([257, 258, 270, 771, 10], dtype=np.int32)
    table = torch.arange(20, dtype=torch.int32).view(5, 4)
    runner.positions_cpu[:5] = torch.from_numpy(counts.astype(np.int64))
    runner.input_ids_cpu[:5] = 1
    used = [int(c) % block_size + 1 for c in counts]
    settings(HOST_LISTS="on")
    data = _decode(runner, 5, counts, table)
    last = np.cumsum(counts // block_size + 1) - 1
    assert data.block_usage.cpu().long()[last].tolist() == used
    settings(HOST_LISTS="off")
    theirs = _decode(runner, 5, counts, table).block_usage
    assert (theirs.cpu().long()[last].tolist() == used) == (block_size == 256)


def test_disabled_defragmenter_is_not_consulted(make_engine) -> None:
    from types import SimpleNamespace

    runner = make_engine(False, 64).runner
    tables = [[3, 4], [5]]
    runner.defragmenter = SimpleNamespace(enabled=False)
    assert runner._resolve_all_blocks(tables) is tables
    runner.defragmenter = SimpleNamespace(enabled=True, resolve_all=lambda rows: [[b + 1 for b in r] for r in rows])
    assert runner._resolve_all_blocks(tables) == [[4, 5], [6]]


def test_lists_are_kept_where_arrays_do_not_do(make_engine) -> None:
    from types import SimpleNamespace

    from vllm_gaudi.runtime import host_lists

    runner = make_engine(False, 64).runner
    assert host_lists.usable(runner)
    runner.use_contiguous_pa = True
    assert not host_lists.usable(runner)
    runner.use_contiguous_pa = False
    runner.defragmenter = SimpleNamespace(enabled=True)
    assert not host_lists.usable(runner)
