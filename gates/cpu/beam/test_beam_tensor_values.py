# SPDX-License-Identifier: Apache-2.0
"""Damaged numbers are refused by the tensor's name in both load paths; what is not looked at is known."""

import pytest
import torch
from flawed import edit, put
from harness import Harness

from gates.oracle import fp8
from vllm_gaudi.models.beam.tensor_values import BeamCheckpointError, check_values, role_of

LAYER = "model.layers.6."
NAN, INF = float("nan"), float("inf")


def spoil(value: float):
    """The tensor with its last element replaced."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return change


def spoil_fp32(value: float):
    """The same in float32, which holds more than BF16 does."""
    return lambda tensor: spoil(value)(tensor.float())


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    """Legal scales in fp16 but for one that fits only until it is doubled."""
    return spoil(40000.0)(tensor.half())


DAMAGE = {
    "scale that overflows when doubled": (f"{LAYER}mlp.experts.2.down_proj.weight_scale", spoil(3e38), "the scale 3e"),
    "scale whose weights overflow": (f"{LAYER}self_attn.o_proj.weight_scale", spoil(1e36), "448 times float32"),
    "fp16 scale that overflows": (f"{LAYER}mlp.experts.2.up_proj.weight_scale", narrow, "must fit float16"),
    "NaN in a scale": (f"{LAYER}self_attn.q_proj.weight_scale", spoil(NAN), "holds NaN or infinity"),
    "negative scale": (f"{LAYER}self_attn.q_proj.weight_scale", spoil(-1e-3), "holds a negative scale"),
    "NaN in a norm": (f"{LAYER}post_attention_layernorm.weight", spoil(NAN), "holds NaN or infinity"),
    "NaN in a QK norm": (f"{LAYER}self_attn.k_norm.weight", spoil(NAN), "holds NaN or infinity"),
    "infinite gate bias": (f"{LAYER}self_attn.gate_bias", spoil(-INF), "holds NaN or infinity"),
    "NaN in the router": (f"{LAYER}mlp.gate.weight", spoil(NAN), "holds NaN or infinity"),
    "NaN in the embedding": ("model.embed_tokens.weight", spoil(NAN), "holds NaN or infinity"),
    "norm that overflows as BF16": (
        f"{LAYER}input_layernorm.weight",
        spoil_fp32(-3.4e38),
        "holds -3.4e.38, which over",
    ),
    "bias whose pairs overflow": (f"{LAYER}mlp.gate.e_score_correction_bias", spoil(2e38), "holds 2e.38, which over"),
    "infinity in the head": ("lm_head.weight", spoil(INF), "holds NaN or infinity"),
}


@pytest.fixture(scope="module")
def source(checkpoint):
    return checkpoint("served", 17, fp8=True, shards=1)


@pytest.mark.parametrize("load_format", ["auto", "beam"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_values_are_refused_by_name(source, tmp_path, load_format, damage):
    name, change, message = DAMAGE[damage]
    folder = edit(source, tmp_path / "damaged", put(name, change))
    # The load format also knows where the tensor lies.
    where = "^" if load_format == "auto" else rf"safetensors: tensor {name} at offset \d+: "
    with pytest.raises(ValueError, match=rf"{where}{name}: .*{message}"):
        Harness(folder, load_format=load_format)


def test_the_largest_legal_scales_load(source, tmp_path):
    """Control: one step below the limits, the doubled scale is finite and loaded."""
    name, high = f"{LAYER}self_attn.o_proj.weight_scale", 7.5e35
    folder = edit(source, tmp_path / "large", put(name, spoil(high)))
    held = Harness(folder).model.get_submodule(f"{LAYER}self_attn.o_proj").weight_scale
    assert held.flatten()[-1] == torch.tensor(high) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scales_are_judged_in_the_type_they_are_stored_in(dtype):
    """Doubled by plain torch: whatever passes stays finite, and so does the largest weight."""
    for power in range(-24, 128):
        scale = torch.full((3, 1), 2.0).pow(power).to(dtype)
        doubled_is_finite = (scale * 2).isfinite().all() and (scale.float() * 448).isfinite().all()
        try:
            check_values("scale", "scale", scale)
        except BeamCheckpointError:
            assert not doubled_is_finite, power
        else:
            assert doubled_is_finite, power


def test_zeros_and_empty_parts_are_legal():
    """An all-zero row has scale 0 in some exports; a rank may keep no row of a tensor."""
    check_values("scale", "scale", torch.zeros(4, 1))
    check_values("scale", "scale", torch.tensor([[-0.0]]))
    check_values("norm", "plain", torch.zeros(0))


def test_what_is_not_looked_at_is_matrices_alone(source):
    """Every tensor of a checkpoint but FP8 bytes and projections has a role that is checked."""
    from gates.oracle.checkpoint import Checkpoint

    stored = Checkpoint(source)
    for name in stored.names():
        unseen = role_of(name) == "matrix"
        assert unseen == name.endswith("_proj.weight"), name
        assert unseen or stored.get(name).dtype != fp8.E4M3, name


def test_a_nan_scale_byte_of_mxfp4_is_refused():
    with pytest.raises(BeamCheckpointError, match="scale byte 255"):
        check_values("s", "packed_scale", torch.tensor([127, 255], dtype=torch.uint8))
    check_values("s", "packed_scale", torch.tensor([0, 254], dtype=torch.uint8))
