# SPDX-License-Identifier: Apache-2.0
"""Guard of the exact-windows patch: the keys a sliding-window layer sees, through lists, masks and bias.

The toy model answers from exactly the keys its window path leaves visible, so one key too many or too few, a
freed block or a padding slot changes the answer.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest


def _prompt(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(16, 200) for _ in range(length)]


@pytest.mark.parametrize("window", [8, 16, 17, 40])
def test_keys_seen(windowed, window: int) -> None:
    """Prompts cut at every alignment, then decoded across block borders and the window."""
    engine = windowed(window, max_num_batched_tokens=48)
    for i, length in enumerate([1, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 80, 95, 97, 112, 128, 130]):
        engine.add(f"r{i}", _prompt(length, i), 50)
    engine.run()
    assert engine.wrong() == {}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_prefix_cache_and_preemption(windowed, asynchronous: bool) -> None:
    engine = windowed(24, asynchronous, 16)
    shared = _prompt(70)
    for i in range(5):
        engine.add(f"r{i}", shared[: 40 + 6 * i], 60)
    engine.run()
    engine.add("again", shared[:64], 30)
    engine.run()
    assert engine.wrong() == {}


def test_graph_key_depends_on_the_decode_bucket_alone(windowed) -> None:
    engine = windowed(24)
    for i in range(3):
        engine.add(f"r{i}", _prompt(5 + 9 * i, i), 150)
    engine.run()
    widths = {window for _, window in engine.toy.decode_shapes}
    full = {full for full, _ in engine.toy.decode_shapes}
    assert len(full) > 3, "the full list grew through several buckets"
    assert widths == {(rows * 3,) for rows in engine.toy.decode_rows}, "rows of the bucket x blocks of a window"


@pytest.mark.parametrize("window", [8, 512, 2048])
def test_key_counts_over_contexts_and_chunks(window: int) -> None:
    """Bias of one chunk counted row by row: min(W, p + 1) keys, the last of them the query itself."""
    import torch

    from vllm_gaudi.runtime import windows
    from vllm_gaudi.v1.worker import hpu_model_runner as mr

    size = 128
    kept = {}
    original, mr.custom_tuple_replace = mr.custom_tuple_replace, lambda metadata, name, **fields: kept.update(fields)
    try:
        for context in (1, 127, 128, 129, 511, 512, 1000, 2047, 2048, 4096):
            for chunk in (1, 128, 256):
                count = -(-context // size)
                blocks = windows.prefill_blocks(list(range(100, 100 + count + 2)), context, window, size)
                assert len(blocks) == windows.width(window, size)
                metadata = SimpleNamespace(
                    is_prompt=True,
                    block_list=torch.tensor(blocks),
                    block_size=size,
                    window_block_list=torch.tensor(blocks),
                    context_lens_tensor=torch.tensor([context]),
                )
                windows.window_bias(
                    SimpleNamespace(block_size=size), metadata, 1, chunk, window, torch.device("cpu"), torch.bfloat16
                )
                seen = kept["window_attn_bias"][0, 0] == 0
                slots = torch.cat(
                    [torch.arange(size) + (b - 100) * size for b in blocks] + [torch.arange(chunk) + context]
                )
                for row in {0, chunk // 2, chunk - 1}:
                    position = context + row
                    want = list(range(max(0, position - window + 1), position + 1))
                    assert slots[seen[row]].tolist() == want, (context, chunk, row)
    finally:
        mr.custom_tuple_replace = original


@pytest.mark.parametrize("built_in", [False, True])
def test_first_chunk_is_not_left_to_the_kernel(windowed, monkeypatch: pytest.MonkeyPatch, built_in: bool) -> None:
    """Upstream's flag for the kernel's own window, whose convention nobody states, changes nothing."""
    import torch

    from vllm_gaudi.v1.worker import hpu_model_runner as mr

    processor = mr.HPUAttentionMetadataProcessor(windowed(24).config)
    for name, value in (("use_window_sdpa", built_in), ("slice_size", 16), ("slice_thld", 32)):
        monkeypatch.setattr(processor, name, value)
    kept: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(mr, "custom_tuple_replace", lambda metadata, name, **fields: kept.update(fields))
    metadata = SimpleNamespace(is_prompt=True, block_list=None)
    processor._set_attn_bias_for_sliding_window(metadata, 2, 64, 24, torch.device("cpu"), torch.bfloat16)
    row, column = torch.arange(64).view(64, 1), torch.arange(64).view(1, 64)
    want = torch.zeros(64, 64).masked_fill_((column > row) | (column <= row - 24), float("-inf"))
    assert torch.equal(kept["window_attn_bias"].float(), want.expand(2, 1, 64, 64))


@pytest.mark.parametrize("window", [1, 2, 8, 128, 129, 130, 512, 2048])
def test_decode_rule_by_brute_force(window: int) -> None:
    from vllm_gaudi.runtime import windows

    size = 128
    for position in range(0, 6000, 7 if window > 130 else 1):
        first, count, lead = windows.decode_span(position, window, size)
        keys = list(range(first * size + lead, position + 1))
        assert keys == list(range(max(0, position - window + 1), position + 1))
        assert (first + count - 1) == position // size
        assert 0 <= lead < size
        assert count <= windows.width(window, size)
        last_in_first = min(size, position - first * size + 1)
        assert lead < last_in_first, "no block is fully masked"


def test_other_models_keep_their_windows(windowed, settings) -> None:
    toy = windowed(24)
    settings(EXACT_WINDOW="auto")
    from vllm_gaudi.runtime import gates

    toy.runner.__dict__.pop("_frontier_exact_window", None)
    assert gates.exact_window(toy.runner) is False
