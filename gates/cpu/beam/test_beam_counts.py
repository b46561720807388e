# SPDX-License-Identifier: Apache-2.0
"""What a decode step costs the host, counted on the emulated device: two ranks, experts split, graphs on.

The device spends about 105 us of host time a launch (port page), so launches
are what bounds decode. A launch is a graph segment or a collective: lazy
collectives end a segment.
"""

import pytest
import torch

from gates.checkpoints.beam_shapes import PUBLISHED, SHAPES
from gates.cpu.decode_counts import check_cuts, check_two_a_layer, check_waits, counted_launches, predicted_launches
from gates.hpusim import testing

pytestmark = pytest.mark.engine

RANKS = 2
LAYERS = SHAPES["served"]["num_hidden_layers"]
PORT_PAGE_LAUNCHES = 367  # 52 layers on the released build the port page measured
GOAL = 215
FLOOR = 208  # two collectives a layer, each with the segment it ends


@pytest.fixture(scope="module")
def meters(checkpoint):
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(340, (length,), generator=generator).tolist() for length in (5, 100)]
    run = testing.run_engine(
        checkpoint("served", 17, fp8=True),
        [{"prompts": prompts, "sampling": {"temperature": 0, "max_tokens": 8, "ignore_eos": True}}],
        mode="lazy",
        in_process=False,
        env={"VLLM_SKIP_WARMUP": "true"},
        tensor_parallel_size=RANKS,
        enable_expert_parallel=True,
        max_model_len=512,
        max_num_batched_tokens=512,
    )
    found = [summary for summary in run.meters if summary["steps"].get("decode")]
    assert len(found) == RANKS
    return found


@pytest.fixture(params=range(RANKS))
def decode(request, meters):
    """(steps, phase counters, per-layer counters) of one rank."""
    summary = meters[request.param]
    return summary["steps"]["decode"], summary["phases"]["decode"], summary["layers"]["decode"]


def test_two_all_reduces_and_two_segments_a_layer(decode):
    steps, _, layers = decode
    check_two_a_layer(steps, layers, LAYERS)


def test_four_tensors_a_local_expert(decode):
    """Weight and scale of both matrices, beside input, its scale, ids and weights."""
    steps, phase, layers = decode
    local = SHAPES["served"]["num_experts"] // RANKS
    assert phase["moe_tensor_inputs_max"] == 4 * local + 4
    for layer, counts in layers.items():
        assert counts["moe_launches"] == (steps if int(layer) >= 3 else 0), layer
        assert counts["moe_tensor_inputs"] == counts["moe_launches"] * (4 * local + 4), layer
    assert phase["moe_tensor_reprs"] == phase["tensor_reprs"] == 0


def test_host_waits_for_nothing_but_the_sampled_tokens(decode):
    steps, phase, _ = decode
    check_waits(steps, phase)


def test_graph_segments_of_a_step_and_the_published_model(decode):
    """Counted on seven layers; the same formula predicts the 52 of the published model."""
    steps, phase, _ = decode
    counted, outside = counted_launches(steps, phase, ("bfloat16",))
    assert counted == predicted_launches(LAYERS)
    predicted = predicted_launches(PUBLISHED["num_hidden_layers"])
    print(
        f"{LAYERS} layers: {counted:.0f} launches a decode step in the model, {outside:.0f} outside (inputs, logits, "
        f"sampler); predicted for 52 layers {predicted}; port page {PORT_PAGE_LAUNCHES}, floor {FLOOR}, goal {GOAL}"
    )
    assert FLOOR <= predicted <= GOAL < PORT_PAGE_LAUNCHES


def test_prefill_ends_a_graph_after_every_layer_and_decode_does_not(meters):
    for summary in meters:
        check_cuts(summary, LAYERS)
