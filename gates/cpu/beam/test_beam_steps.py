# SPDX-License-Identifier: Apache-2.0
"""Beam on the emulated device, step by step: seeds {17, 41} x tokens {1, 17, 129} on two small nets."""

import pytest
import torch
from harness import Harness
from step_checks import CHECKS

from gates.checkpoints import beam
from gates.checkpoints.beam_shapes import SHAPES
from gates.checkpoints.beam_values import GRID
from gates.oracle.beam.model import BeamReference

CELLS = [(shape, seed, count) for shape in ("grid8", "grid6") for seed in (17, 41) for count in (1, 17, 129)]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("exact", ["0", "1"])
def test_step_equals_the_reference_on_its_own_input(run_pass, cell, check, exact):
    """In bf16, with and without the mode that keeps roundings by integer arithmetic."""
    difference = CHECKS[check].measure(run_pass(*cell, VLLM_BEAM_EXACT=exact))
    assert difference <= CHECKS[check].bf16, f"{check}: {difference:.3g} > {CHECKS[check].bf16:.3g}"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("shape", "count"), [("grid8", 129), ("grid6", 17)])
def test_fp8_step_equals_the_w8a8_reference_on_its_own_input(run_pass, shape, count, check):
    difference = CHECKS[check].measure(run_pass(shape, 17, count, fp8=True))
    print(f"{check}: {difference:.4g} (limit {CHECKS[check].w8a8:.4g})")
    assert difference <= CHECKS[check].w8a8, f"{check}: {difference:.3g} > {CHECKS[check].w8a8:.3g}"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_hostile_statistics_and_awkward_sizes(run_pass, check, fp8):
    """Near-tied routes, scales from 2**-12 to 2**6, an all-zero channel, widths that are no powers of two."""
    difference = CHECKS[check].measure(run_pass("awkward", 17, 129, fp8=fp8))
    limit = CHECKS[check].limit("w8a8" if fp8 else "bf16")
    assert difference <= limit, f"{check}: {difference:.3g} > {limit:.3g}"


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_whole_network_in_fp32_agrees_to_1e_4(model, checkpoint, tokens, cell):
    shape, seed, count = cell
    ids = tokens(seed, count)
    got = model(shape, seed, "float32").logits(ids)
    expected = BeamReference(checkpoint(shape, seed), "fp32")(ids)
    difference = (got - expected).abs().max().item()
    print(f"fp32 {cell}: max logit difference {difference:.2e}")
    assert got.dtype == torch.float32
    assert difference < 1e-4


@pytest.mark.parametrize("layers", [1, 2, 4, 7])
def test_other_depths_agree_in_fp32(tmp_path, tokens, layers):
    """One layer alone is full and dense; of four only the last is sparse. Prompts end around the window's edge."""
    path = beam.write(tmp_path, {**SHAPES["grid8"], "num_hidden_layers": layers}, how=GRID)
    harness, reference = Harness(path, "float32"), BeamReference(path, "fp32")
    for count in (1, 7, 8, 9, 17):
        ids = tokens(17, count)
        assert (harness.logits(ids) - reference(ids)).abs().max() < 1e-4, count


def test_a_prefix_gives_the_logits_of_the_whole(model, tokens):
    ids = tokens(17, 129)
    harness = model("grid8", 17, "float32")
    assert (harness.logits(ids[:64]) - harness.logits(ids)[:64]).abs().max() < 1e-4


def test_aux_hidden_states_are_the_residual_stream(run_pass):
    run = run_pass("grid8", 17, 17)
    model = run.harness.model
    model.set_aux_hidden_state_layers((0, 3, 8))
    try:
        place = torch.arange(17, dtype=torch.int32, device="hpu")[None]
        with torch.inference_mode():
            adapter, metadata = run.harness.adapter, run.harness._metadata(17)
            _, aux = adapter(input_ids=run.ids[None].to("hpu"), positions=place, attn_metadata=metadata)
    finally:
        model.set_aux_hidden_state_layers(())
    assert len(aux) == 3
    assert aux[0][0].equal(model.embed_input_ids(run.ids.to("hpu")))
    assert aux[1][0].equal(run.output("model.layers.2.add_mlp"))
    assert aux[2][0].equal(run.output("model.layers.7.add_mlp"))
