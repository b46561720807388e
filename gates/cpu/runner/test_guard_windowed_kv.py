# SPDX-License-Identifier: Apache-2.0
"""Guard of the windowed-kv patch: core's real managers and the real runner, several KV-cache groups.

Every block a layer reads or writes is looked up in core's tables, everything freed is overwritten, and the answer
depends on every token of every group.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def grouped(checkpoints_root, settings):
    """`grouped(window, asynchronous, blocks, layers, **engine)`: toy engine with core's groups for (sliding, full)."""
    from gates.cpu.runner.grouped_toy import kv_cache_config
    from gates.cpu.runner.toy_engine import ToyEngine, vllm_config
    from gates.cpu.runner.window_toy import window_checkpoint

    settings(EXACT_WINDOW="on", WINDOWED_KV="on")

    def make(window: int, asynchronous: bool = False, blocks: int = 200, layers=(7, 3), **engine: Any):
        folder = window_checkpoint(checkpoints_root, window)
        config = vllm_config(folder, async_scheduling=asynchronous, **{"max_num_seqs": 4, **engine})
        return ToyEngine(config, blocks, window, kv_cache_config(config, *layers, window, blocks))

    yield make
    from vllm_gaudi.runtime.forward_state import STATE

    STATE.kv_groups = None


def _prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(16, 200) for _ in range(length)]


def _right(engine: Any) -> None:
    assert engine.wrong() == {}
    assert engine.toy.checked > 0
    assert engine.toy.poisoned > 0


@pytest.mark.parametrize("window", [1, 8, 17, 40])
def test_every_group_reads_its_own_blocks(grouped, window: int) -> None:
    """Prompts cut at every alignment, decoded across block borders and the window; only windows are kept."""
    engine = grouped(window, max_num_batched_tokens=48)
    for i, length in enumerate([1, 15, 16, 17, 31, 33, 48, 49, 63, 65, 80, 97, 128, 130]):
        engine.add(f"r{i}", _prompt(length, i), 50)
    engine.run()
    _right(engine)
    assert engine.sliding_groups == 3
    assert engine.toy.widths == {(window + 14) // 16 + 1}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_random_requests_with_preemption_and_prefix_hits(grouped, monkeypatch, asynchronous: bool) -> None:
    engine = grouped(24, asynchronous, 44, layers=(5, 2), max_num_batched_tokens=48)
    draw = random.Random(7)
    shared, preempted, hits = _prompt(100), 0, []
    manager = engine.scheduler.kv_cache_manager
    lookup = manager.get_computed_blocks
    monkeypatch.setattr(
        manager, "get_computed_blocks", lambda request: (found := lookup(request), hits.append(found[1]))[0]
    )
    for wave in range(3):
        for i in range(8):
            head = shared[: draw.randrange(1, 100)]
            engine.add(f"{wave}.{i}", head + _prompt(draw.randrange(1, 30), 100 * wave + i), draw.randrange(1, 60))
        while engine.scheduler.has_requests() or engine._queue:
            engine.step()
            if draw.random() < 0.02 and engine.scheduler.running:
                engine.abort(draw.choice(engine.scheduler.running).request_id)
            for request in engine.scheduler.requests.values():
                preempted = max(preempted, request.num_preemptions)
    _right(engine)
    assert preempted > 0
    assert max(hits) > 24, "a prefix longer than the window was taken from the cache"


def test_freed_blocks_belong_to_others_at_once(grouped) -> None:
    """Nothing freed keeps its content, cached or not: the pool is far below what full-length KV would take."""
    engine = grouped(16, blocks=60, max_num_batched_tokens=32)
    engine.toy.forgets = True
    for i in range(4):
        engine.add(f"r{i}", _prompt(150, i), 60)
    engine.run()
    _right(engine)
    assert 4 * 4 * (210 // 16) > 60 * 2, "four groups of four requests with all their blocks would not have fitted"


def _one_earlier(blocks: Any, context: int, window: int, block_size: int) -> list[int]:
    from vllm_gaudi.runtime import windows

    size, first = windows.width(window, block_size), max(0, context - window + 1) // block_size
    kept = [int(b) for b in blocks[max(0, first - 1) : -(-context // block_size)]][:size]
    return kept + [kept[-1] if kept else int(blocks[0])] * (size - len(kept))


@pytest.mark.parametrize("fault", ["foreign table", "one block early", "slots of one group"])
def test_a_known_fault_is_seen(grouped, monkeypatch, fault: str) -> None:
    from vllm_gaudi.runtime import window_groups, windows

    if fault == "foreign table":
        original = window_groups.tables
        monkeypatch.setattr(window_groups, "tables", lambda runner, sliding: original(runner, sliding)[::-1])
    elif fault == "one block early":
        monkeypatch.setattr(windows, "prefill_blocks", _one_earlier)
    else:
        monkeypatch.setattr(window_groups, "decode_slots", lambda runner, slots, *a: slots.long().repeat(4, 1, 1))
    engine = grouped(24, max_num_batched_tokens=48)
    engine.add("r", _prompt(130), 20)

    def attempt() -> None:
        engine.run()
        _right(engine)

    with pytest.raises((AssertionError, StopIteration)):
        attempt()


def test_warm_up_requests_have_blocks_in_every_group(grouped) -> None:
    engine = grouped(24)
    requests: list = []
    engine.runner._add_dummy_request(requests, {}, 16, 32, 16, True)
    assert requests[0].block_ids == [[0, 0]] * 4


def test_a_batch_replaced_for_warm_up_keeps_its_groups(grouped) -> None:
    from vllm_gaudi.runtime import windowed_kv

    engine = grouped(24)
    batch = engine.runner.input_batch
    assert len(batch.block_table.block_tables) == 4
    batch.block_table.block_tables[1:] = []
    windowed_kv.regroup(engine.runner)
    assert len(batch.block_table.block_tables) == 4


def test_more_than_one_full_group_is_refused(grouped) -> None:
    with pytest.raises(ValueError, match=r"needs one group of full layers.*WINDOWED_KV=off"):
        grouped(24, layers=(3, 7))


def test_unstacked_metadata_is_left_alone(grouped) -> None:
    import torch

    from vllm_gaudi.runtime import window_groups

    grouped(24)
    metadata = SimpleNamespace(slot_mapping=torch.zeros(2, 3, dtype=torch.int64))
    assert window_groups.per_layer(metadata) is metadata
    assert window_groups.per_layer(None) is None
