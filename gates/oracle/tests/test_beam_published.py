# SPDX-License-Identifier: Apache-2.0
"""The Beam reference against transformers' own model: bit for bit in BF16, to rounding in fp32."""

import pytest
import torch

from gates.checkpoints.beam_shapes import SHAPES
from gates.oracle.beam.model import BeamReference

CELLS = [(shape, seed, tokens) for shape in ("grid8", "grid6") for seed in (17, 41) for tokens in (1, 17, 129)]


def published_logits(model, ids):
    with torch.inference_mode():
        return model(ids[None], use_cache=False).logits[0]


@pytest.mark.parametrize(("shape", "seed", "tokens"), CELLS)
def test_bf16_reference_equals_the_published_model_bit_for_bit(
    grid_checkpoint, published_model, token_ids, shape, seed, tokens
):
    ids = token_ids(seed, tokens)
    expected = published_logits(published_model(shape, seed), ids)
    got = BeamReference(grid_checkpoint(shape, seed), "bf16")(ids)
    difference = (expected - got).abs().max().item()
    print(f"cell {shape} seed {seed} tokens {tokens}: max difference {difference}")
    assert expected.dtype == got.dtype == torch.float32
    assert difference == 0.0
    assert expected.abs().max() > 1.0, "logits are flat, the comparison would show nothing"


@pytest.mark.parametrize(("shape", "seed"), [("grid8", 17), ("grid6", 41)])
def test_fp32_reference_agrees_with_the_published_model_in_fp32(
    grid_checkpoint, published_model, token_ids, shape, seed
):
    ids = token_ids(seed, 129)
    expected = published_logits(published_model(shape, seed, torch.float32), ids)
    got = BeamReference(grid_checkpoint(shape, seed), "fp32")(ids)
    difference = (expected - got).abs().max().item()
    print(f"fp32 {shape} seed {seed}: max difference {difference:.2e}")
    assert difference < 1e-4


def test_router_stays_fp32_when_the_published_model_is_loaded_in_bf16(published_model):
    gate = published_model("grid8", 17).model.layers[3].mlp.gate
    assert gate.weight.dtype == gate.e_score_correction_bias.dtype == torch.float32


def test_every_residual_stream_equals_the_published_one(grid_checkpoint, published_model, token_ids):
    """Not the logits alone: the stream after each layer, so that a fault names its layer."""
    ids = token_ids(17, 17)
    with torch.inference_mode():
        streams = published_model("grid8", 17)(ids[None], use_cache=False, output_hidden_states=True).hidden_states
    seen = {}
    BeamReference(grid_checkpoint("grid8", 17), "bf16", trace=seen.__setitem__)(ids)
    for layer in range(SHAPES["grid8"]["num_hidden_layers"] - 1):
        assert torch.equal(streams[layer + 1][0], seen[f"layers.{layer}.mlp_residual"]), f"layer {layer}"


def test_a_prefix_gives_the_same_logits_as_the_whole(grid_checkpoint, token_ids):
    """Causality, exactly: no token may see a later one."""
    reference = BeamReference(grid_checkpoint("grid8", 17), "fp32")
    ids = token_ids(17, 129)
    half, whole = reference(ids[:64]), reference(ids)[:64]
    assert (half - whole).abs().max() < 1e-4
    assert half.argmax(-1).equal(whole.argmax(-1))


def test_a_run_from_a_middle_layer_continues_the_whole_run(grid_checkpoint, token_ids):
    ids, positions = token_ids(41, 17), torch.arange(17)
    reference = BeamReference(grid_checkpoint("grid6", 41), "bf16")
    whole = reference(ids)
    middle = reference.run_layers(reference.embed(ids), positions, 0, 4)
    assert reference.head(reference.run_layers(middle, positions, 4)).equal(whole)


def test_packed_and_per_expert_checkpoints_give_one_result(grid_checkpoint, token_ids):
    ids = token_ids(17, 17)
    plain = BeamReference(grid_checkpoint("grid6", 17), "bf16")(ids)
    packed = BeamReference(grid_checkpoint("grid6", 17, packed=True), "bf16")(ids)
    assert packed.equal(plain)


@pytest.mark.parametrize("factor", [7, 9])
def test_a_window_of_another_width_differs_first_at_its_edge(grid_checkpoint, token_ids, factor):
    """W = 8 counts the token itself: W + 1 shows from row W on, W - 1 from row W - 1 on."""
    from dataclasses import replace

    ids = token_ids(17, 17)
    reference = BeamReference(grid_checkpoint("grid8", 17), "bf16")
    right = reference(ids)
    reference.shape = replace(reference.shape, sliding_window=factor)
    wrong = reference(ids)
    first = int((right != wrong).any(-1).nonzero()[0])
    assert first == min(8, factor)
