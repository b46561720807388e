# SPDX-License-Identifier: Apache-2.0
"""Sliding windows at their real sizes: exactly W keys, whatever the alignment, the context and the chunks.

The toy model answers from the keys its window path leaves visible, in order. Freed blocks, the padding block and the
null block hold junk in every step, so a key too many or too few, or one that is not the request's, changes an answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from gates.cpu.runner.toy_engine import POISON

BLOCK = 128


@pytest.fixture(autouse=True)
def gathered_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a prefix cache the plug-in would slice its blocks from a contiguous range, which windows refuse."""
    from vllm_gaudi.extension import runtime

    monkeypatch.setenv("VLLM_CONTIGUOUS_PA", "false")
    runtime.clear_config()
    yield
    runtime.clear_config()


def _poison(engine: Any) -> int:
    """Junk into every block that nobody may read: free ones the prefix cache does not know, padding, null."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks() if block.block_hash is None]
    rows = engine.toy.cache.reshape(-1, engine.toy.block_size)
    rows[[*free, pool.null_block.block_id, len(rows) - 1]] = POISON
    return len(free)


def _run(engine: Any) -> int:
    poisoned = 0
    for _ in range(5000):
        if not engine.scheduler.has_requests() and not engine._queue:
            return poisoned
        poisoned = max(poisoned, _poison(engine))
        engine.step()
    raise AssertionError("requests left")


@pytest.mark.long
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("window", "chunk"), [(8, 96), (512, 384), (512, 1000), (2048, 2048), (2048, 777)])
def test_exactly_the_window(windowed, window: int, chunk: int, cached: bool, asynchronous: bool) -> None:
    engine = windowed(
        window,
        asynchronous,
        blocks=260,
        block_size=BLOCK,
        max_model_len=6144,
        max_num_batched_tokens=chunk,
        enable_prefix_caching=cached,
    )
    draw = random.Random(window + chunk)
    base = [draw.randrange(16, 200) for _ in range(5800)]
    borders = [k * BLOCK + d for k in (1, 4, 16, 17, 40) for d in (-1, 0, 1)]
    around = [window + d for d in (-1, 0, 1)] + [window + BLOCK - 1, 2 * window + 1]
    lengths = [n for n in [*borders, *around] if 0 < n < 5800] + [draw.randrange(1, 5800) for _ in range(8)]
    for i, length in enumerate(lengths):
        # Half share a prefix, so that with the cache on they start anywhere in it.
        prompt = base[:length] if i % 2 else [draw.randrange(16, 200) for _ in range(length)]
        engine.add(f"r{i}", prompt, draw.choice((3, 20, BLOCK + 5)))
    poisoned = _run(engine)
    assert poisoned > 100, "there was junk to stumble over"
    assert engine.wrong() == {}
    if cached:
        for i in range(4):
            engine.add(f"again{i}", base[: 400 + 1300 * i], 20)
        _run(engine)
        assert engine.wrong() == {}


@pytest.mark.long
@pytest.mark.parametrize("off_by", [-1, 1])
def test_control_one_key_more_or_less(windowed, monkeypatch: pytest.MonkeyPatch, off_by: int) -> None:
    from vllm_gaudi.runtime import windows

    real = windows.decode_span
    monkeypatch.setattr(windows, "decode_span", lambda p, w, b: real(p, w + off_by, b))
    engine = windowed(512, blocks=100, block_size=BLOCK, max_model_len=2048, max_num_batched_tokens=512)
    engine.add("r", [16 + i % 180 for i in range(700)], 20)
    _run(engine)
    assert engine.wrong() == {"r": 1}, "the first token is the prefill's, the second sees the wrong window"
