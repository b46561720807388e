# SPDX-License-Identifier: Apache-2.0
"""Windows of 2,048 in the plug-in's attention: the edge to the key, on a cache whose freed blocks hold NaN."""

import pytest
import torch

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import SHAPES
from gates.cpu.muse.window_attention import WindowLayer

WINDOW, CHUNK = 2048, 130
STEP = 2.0**-8  # one bf16 step
PREFILLS = [(0, 2200), (2047, CHUNK), (2048, CHUNK), (2049, CHUNK), (2176, CHUNK), (2500, CHUNK)]
# Position of the query: last of L keys, for L around window, page and both.
DECODES = [length - 1 for length in (1, 128, 2047, 2048, 2049, 2175, 2176, 2177, 2304, 2500)]


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    from gates.cpu.beam.harness import Harness

    shape = {**SHAPES["tiny"], "sliding_window": WINDOW, "max_position_embeddings": 4096, "num_hidden_layers": 4}
    shape["mlp_layer_types"] = ["dense"] * 4
    return Harness(muse.write(tmp_path_factory.mktemp("muse-window"), shape), max_model_len=4096)


@pytest.fixture(params=[True, False], ids=["sliding", "full"])
def layer(request, harness):
    return WindowLayer(harness, request.param, WINDOW)


def near(got, expected) -> bool:
    """Within the rounding of scores and probabilities to bf16, over all heads."""
    error = float((got.float() - expected).norm() / expected.norm())
    print(f"error {error / STEP:.2f} bf16 steps")
    return error < 8 * STEP


def nudged(layer, position, run):
    """Output with key and value at `position` changed."""
    kept = layer.k[position].clone(), layer.v[position].clone()
    layer.k[position] += 3
    layer.v[position] -= 3
    try:
        return run()
    finally:
        layer.k[position], layer.v[position] = kept


@pytest.mark.parametrize(("context", "chunk"), PREFILLS)
def test_prefill_sees_its_window_to_the_key(layer, context, chunk):
    got = layer.prefill(context, chunk)
    for row in sorted({0, chunk // 2, chunk - 1}):
        position = context + row
        assert near(got[row], layer.expected(range(position, position + 1))[0]), position
        for key, inside in ((position - WINDOW, not layer.sliding), (position - WINDOW + 1, True)):
            if key < 0:
                continue
            changed = nudged(layer, key, lambda: layer.prefill(context, chunk))[row]
            assert changed.equal(got[row]) is not inside, (position, key)


@pytest.mark.parametrize("position", DECODES)
def test_decode_sees_its_window_to_the_key(layer, position):
    got = layer.decode(position)
    assert near(got, layer.expected(range(position, position + 1)))
    for key, inside in ((position - WINDOW, not layer.sliding), (position - WINDOW + 1, True)):
        if key >= 0:
            assert nudged(layer, key, lambda: layer.decode(position)).equal(got) is not inside, key


def test_a_wider_window_is_seen(harness, monkeypatch):
    from vllm_gaudi.runtime import windows

    layer, position = WindowLayer(harness, True, WINDOW), 2177 + CHUNK - 1
    span, bias = windows.decode_span, windows.window_bias
    monkeypatch.setattr(windows, "decode_span", lambda p, w, b: span(p, w + 1, b))
    monkeypatch.setattr(windows, "window_bias", lambda a, m, b, s, w, d, t: bias(a, m, b, s, w + 1, d, t))
    assert not nudged(layer, 2500 - WINDOW, lambda: layer.decode(2500)).equal(layer.decode(2500))
    changed = nudged(layer, position - WINDOW, lambda: layer.prefill(2177, CHUNK))
    assert not changed[-1].equal(layer.prefill(2177, CHUNK)[-1])


def test_a_list_that_begins_a_block_early_reads_freed_memory(harness, monkeypatch):
    """What upstream's lists do: the last blocks of the context, masked or not."""
    from vllm_gaudi.runtime import windows

    layer = WindowLayer(harness, True, WINDOW)
    width = windows.width(WINDOW, 128)
    monkeypatch.setattr(windows, "prefill_blocks", lambda blocks, context, w, b: blocks[: context // b][-width:])
    assert layer.prefill(2176 + 128, CHUNK).isnan().any()


def test_lists_hold_no_block_below_the_window():
    from vllm_gaudi.runtime import windows

    for context in range(1, 6000, 13):
        listed = windows.prefill_blocks(list(range(100)), context, WINDOW, 128)
        assert min(listed) == max(0, context - WINDOW + 1) // 128
        assert len(listed) == windows.width(WINDOW, 128)
        assert torch.tensor(listed).unique().max() == (context - 1) // 128
