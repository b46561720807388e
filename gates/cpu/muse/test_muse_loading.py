# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with a fault, each refused by the name of the tensor; both layouts and lenient prefixes loaded."""

import pytest
import torch

from gates.oracle.checkpoint import Checkpoint
from vllm_gaudi.models.muse_spark.inventory import MuseCheckpointError, text_name

P = "model.language_model."
EXPERT = f"{P}layers.3.mlp.experts.5.up_proj.weight"


@pytest.fixture(scope="module")
def loaded(model, checkpoint):
    """(model on MXFP4, its tensors by stored name); loading them again changes nothing."""
    stored = Checkpoint(checkpoint("tiny", True))
    return model("tiny", True).model, {name: stored.get(name) for name in stored.names()}


def state(network):
    return {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(value.equal(right[name]) for name, value in left.items())


def test_every_parameter_is_loaded_in_any_order_of_tensors(loaded):
    network, tensors = loaded
    before = state(network)
    for parameter in network.parameters():
        parameter.data.zero_()
    names = network.load_weights(reversed(tensors.items()))
    assert names == set(dict(network.named_parameters()))
    assert same(state(network), before)


def test_packed_bytes_are_those_of_the_file(loaded):
    network, tensors = loaded
    experts = network.get_submodule("model.layers.3.mlp.experts")
    gate, up = (tensors[EXPERT.replace("up_proj", f"{part}_proj")] for part in ("gate", "up"))
    assert experts.w13[5].cpu().equal(torch.cat((gate, up)))
    assert experts.w2_scale[5].cpu().equal(tensors[f"{P}layers.3.mlp.experts.5.down_proj.weight_scale"])
    assert network.get_submodule("model.layers.0.mlp.experts").w13.dtype == torch.bfloat16
    assert network.get_submodule("model.layers.7.mlp.experts").w2.dtype == torch.bfloat16


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_names_with_shorter_prefixes_are_the_same_tensors(loaded, prefix):
    network, tensors = loaded
    before = state(network)
    network.load_weights((name.replace(P, prefix), value) for name, value in tensors.items())
    assert same(state(network), before)


def test_vision_and_audio_tensors_are_skipped(loaded):
    network, tensors = loaded
    extra = {"model.vision_tower.a.weight": torch.zeros(1), "model.audio_tower.b": torch.zeros(1)}
    network.load_weights({**tensors, **extra}.items())
    assert text_name("model.vision_projection.weight") is None
    assert text_name("model.visions.weight") is not None
    assert text_name("model.language_model.layers.3.self_attn.rotary_emb.inv_freq") is None
    assert text_name("model.language_model.layers.3.mlp.gate.tokens_per_expert") is None
    assert text_name("model.language_model.layers.3.mlp.gate.weight_inv_freq") is not None


def replaced(name, value):
    return lambda tensors: {**tensors, name: value}


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


byte = torch.uint8
FAULTS = {
    "missing weight": (without(EXPERT), r"1 of \d+ tensors are missing.*experts\.5\.up_proj\.weight"),
    "missing scale": (without(EXPERT + "_scale"), r"experts\.5\.up_proj\.weight_scale"),
    "missing norm": (without(f"{P}layers.1.mlp.experts.post_expert_norm.weight"), "post_expert_norm"),
    "unknown": (replaced(f"{P}layers.1.extra", torch.zeros(1)), r"layers\.1\.extra: no such tensor in Muse Spark"),
    "low-bit gate": (
        replaced(f"{P}layers.1.self_attn.gate_proj.weight_scale", torch.zeros(128, 4, dtype=byte)),
        r"self_attn\.gate_proj\.weight_scale: its module is quantised, but only routed experts may be",
    ),
    "low-bit pooler": (
        replaced(f"{P}layers.1.mlp.pre_expert_proj.weight_scale", torch.zeros(96, 4, dtype=byte)),
        r"pre_expert_proj\.weight_scale: its module is quantised",
    ),
    "scale of an excluded expert": (
        replaced(f"{P}layers.0.mlp.experts.1.up_proj.weight_scale", torch.zeros(256, 3, dtype=byte)),
        "quantization_config excludes these experts, so they must not have scales",
    ),
    "plain weight where packed": (
        replaced(EXPERT, torch.zeros(256, 48, dtype=torch.bfloat16)),
        "stored as bfloat16, but quantization_config says MXFP4",
    ),
    "transposed": (replaced(EXPERT, torch.zeros(48, 256, dtype=byte)), r"shape \(48, 256\), the config asks for"),
    "float scales": (replaced(EXPERT + "_scale", torch.zeros(256, 3)), "stored as float32"),
    "packed router": (replaced(f"{P}layers.1.mlp.gate.weight", torch.zeros(16, 128, dtype=byte)), "must be BF16"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_checkpoint_is_refused_by_name(loaded, fault):
    network, tensors = loaded
    change, message = FAULTS[fault]
    try:
        with pytest.raises(MuseCheckpointError, match=message):
            network.load_weights(change(tensors).items())
    finally:
        network.load_weights(tensors.items())


def test_a_tensor_in_two_shards_is_refused(loaded):
    network, tensors = loaded
    with pytest.raises(MuseCheckpointError, match="occurs twice"):
        network.load_weights([*tensors.items(), (EXPERT, tensors[EXPERT])])
