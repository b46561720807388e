# SPDX-License-Identifier: Apache-2.0
"""What a decode step costs the host, counted on the emulated device: two ranks, two expert groups, graphs on.

The device spends about 92 us of host time a launch (port page: 313 launches, 28.7 ms), so launches bound decode. A
launch is a graph segment or a collective: lazy collectives end a segment.
"""

import pytest
import torch

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import PUBLISHED, SHAPES
from gates.cpu.decode_counts import check_cuts, check_two_a_layer, check_waits, counted_launches, predicted_launches
from gates.hpusim import testing, tokenizer

pytestmark = [pytest.mark.engine, pytest.mark.long]

RANKS = 2
PATIENCE = 3000  # seconds for an engine run; a busy machine must not decide a test
LAYERS = SHAPES["served"]["num_hidden_layers"]
PORT_PAGE_LAUNCHES = 313  # 62 layers
GOAL = 255
FLOOR = 248  # two collectives a layer, each with the segment it ends


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = muse.write(tmp_path_factory.mktemp("muse-counts"), SHAPES["served"], how=muse.SERVED, mxfp4=True)
    tokenizer.save(path)
    return path


def run(folder, **environment: str) -> list[dict]:
    """Meter summaries of both ranks after a few decode steps of two requests."""
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(340, (length,), generator=generator).tolist() for length in (5, 100)]
    made = testing.run_engine(
        folder,
        [{"prompts": prompts, "sampling": {"temperature": 0, "max_tokens": 8, "ignore_eos": True}}],
        mode="lazy",
        in_process=False,
        timeout=PATIENCE,
        env={"VLLM_SKIP_WARMUP": "true", **environment},
        tensor_parallel_size=RANKS,
        max_model_len=512,
        max_num_batched_tokens=512,
    )
    assert "windowed KV: groups of 2/2/2/2 layers" in made.log
    found = [summary for summary in made.meters if summary["steps"].get("decode")]
    assert len(found) == RANKS
    return found


@pytest.fixture(scope="module")
def meters(folder):
    return run(folder)


@pytest.fixture(params=range(RANKS))
def decode(request, meters):
    """(steps, phase counters, per-layer counters) of one rank."""
    summary = meters[request.param]
    return summary["steps"]["decode"], summary["phases"]["decode"], summary["layers"]["decode"]


def test_two_all_reduces_and_two_segments_a_layer(decode):
    steps, _, layers = decode
    check_two_a_layer(steps, layers, LAYERS)


def test_one_fp32_all_reduce_a_moe_layer(decode):
    """The others, after attention and embedding, are in the model dtype."""
    steps, phase, _ = decode
    by = phase["collectives"]["by"]
    assert by["all_reduce float32"] == LAYERS * steps
    assert by["all_reduce bfloat16"] == (LAYERS + 1) * steps


def test_tensors_a_launch(decode):
    """MXFP4: weight and scale of both matrices of a local expert; BF16 in the first and last layer: no scales."""
    steps, phase, layers = decode
    local = SHAPES["served"]["num_local_experts"] // RANKS
    packed, plain = 4 * local + 3, 2 * local + 3
    assert phase["moe_tensor_inputs_max"] == packed
    for layer, counts in layers.items():
        assert counts["moe_launches"] == steps, layer
        assert counts["moe_tensor_inputs"] == steps * (plain if int(layer) in (0, LAYERS - 1) else packed), layer
    assert phase["moe_tensor_reprs"] == phase["tensor_reprs"] == 0


def test_host_waits_for_nothing_but_the_sampled_tokens(decode):
    steps, phase, _ = decode
    check_waits(steps, phase)


def test_graph_segments_of_a_step_and_the_published_model(decode):
    """Counted on eight layers; the same formula predicts the 62 of the published model."""
    steps, phase, _ = decode
    counted, outside = counted_launches(steps, phase, ("bfloat16", "float32"))
    assert counted == predicted_launches(LAYERS)
    predicted = predicted_launches(PUBLISHED["num_hidden_layers"])
    print(
        f"{LAYERS} layers: {counted:.0f} launches a decode step in the model, {outside:.0f} outside (inputs, logits, "
        f"sampler); predicted for 62 layers {predicted}; port page {PORT_PAGE_LAUNCHES}, floor {FLOOR}, goal {GOAL}"
    )
    assert FLOOR <= predicted <= GOAL < PORT_PAGE_LAUNCHES


def test_prefill_ends_a_graph_after_every_layer_and_decode_does_not(meters):
    for summary in meters:
        check_cuts(summary, LAYERS)


def test_a_cut_after_every_layer_is_counted(folder):
    """Control, and the port page's figure: upstream's cut adds a launch a layer."""
    for summary in run(folder, VLLM_GAUDI_FRONTIER_DECODE_LAYERS_PER_GRAPH="1"):
        steps, phase = summary["steps"]["decode"], summary["phases"]["decode"]
        counted, _ = counted_launches(steps, phase, ("bfloat16", "float32"))
        assert counted == predicted_launches(LAYERS) + LAYERS
    layers = PUBLISHED["num_hidden_layers"]
    assert predicted_launches(layers) + layers == PORT_PAGE_LAUNCHES
