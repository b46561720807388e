# SPDX-License-Identifier: Apache-2.0
"""Loading: every layout gives the same parameters, every flaw is refused by name, facts are logged."""

import logging

import pytest
import torch
from flawed import drop, edit, file_edit, put
from harness import Harness

from gates.checkpoints.beam_shapes import PUBLISHED, SHAPES
from gates.oracle import fp8
from gates.oracle.checkpoint import Checkpoint
from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.beam.inventory import BeamCheckpointError, expected_tensors

SHAPE = "served"


@pytest.fixture(scope="module")
def loaded(checkpoint):
    return Harness(checkpoint(SHAPE, 17, fp8=True)).model


def parameters(model):
    return {name: value.detach().cpu() for name, value in model.named_parameters()}


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def bytes_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and raw(a).equal(raw(b))


def test_counts_of_the_published_checkpoint():
    config = BeamConfig(**{**PUBLISHED, "rope_parameters": dict(PUBLISHED["rope_parameters"])})
    names = expected_tensors(config, lambda module: True)
    assert len(names) == 76_267
    assert sum(".experts." in name for name in names) == 75_264
    assert len(expected_tensors(config, lambda module: False)) == 38_366


def test_fp8_weights_are_halved_and_scales_doubled_in_every_place(loaded, checkpoint):
    """On raw tensors: norms hide these scales from the logits."""
    source, held = Checkpoint(checkpoint(SHAPE, 17, fp8=True)), parameters(loaded)
    at = "model.layers.3."
    for name, parts in {
        "self_attn.qkv_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "self_attn.output_gate_proj": ["self_attn.gate_proj"],
        "self_attn.o_proj": ["self_attn.o_proj"],
    }.items():
        weights = torch.cat([fp8.halve(source.get(f"{at}{p}.weight")).view(torch.uint8) for p in parts])
        scales = torch.cat([source.get(f"{at}{p}.weight_scale") * 2 for p in parts])
        assert bytes_equal(held[f"{at}{name}.weight"].t(), weights.view(fp8.E4M3)), name
        assert held[f"{at}{name}.weight_scale"].reshape(-1, 1).equal(scales), name
    experts = f"{at}mlp.experts."
    for index in range(SHAPES[SHAPE]["num_experts"]):
        for stack, parts in (("w13", ("gate", "up")), ("w2", ("down",))):
            files = [f"{experts}{index}.{part}_proj.weight" for part in parts]
            weights = torch.cat([fp8.halve(source.get(f)).view(torch.uint8) for f in files]).view(fp8.E4M3)
            assert bytes_equal(held[f"{experts}routed_experts.{stack}_weight"][index], weights)
            scales = torch.cat([source.get(f + "_scale") * 2 for f in files])
            assert held[f"{experts}routed_experts.{stack}_weight_scale"][index].equal(scales)


@pytest.mark.parametrize("layout", [{"packed": True}, {"shards": 1}])
def test_other_layouts_of_one_checkpoint_give_the_same_bytes(loaded, checkpoint, layout):
    expected, got = parameters(loaded), parameters(Harness(checkpoint(SHAPE, 17, fp8=True, **layout)).model)
    assert expected.keys() == got.keys()
    assert [name for name in expected if not bytes_equal(expected[name], got[name])] == []


def test_packed_bf16_equals_per_expert_bf16(checkpoint):
    plain, packed = (parameters(Harness(checkpoint(SHAPE, 17, packed=p)).model) for p in (False, True))
    assert all(bytes_equal(plain[name], packed[name]) for name in plain)


def test_each_module_decides_for_itself_whether_it_is_quantised(checkpoint, loaded):
    """Experts on the ignore list are BF16 beside FP8 attention; the rest stays as it was."""
    mixed, whole = parameters(Harness(checkpoint(SHAPE, 17, fp8=True, bf16_experts=True)).model), parameters(loaded)
    experts = "model.layers.4.mlp.experts.routed_experts."
    assert mixed[experts + "w13_weight"].dtype == torch.bfloat16
    assert whole[experts + "w13_weight"].dtype == fp8.E4M3
    attention = "model.layers.4.self_attn.o_proj.weight"
    assert bytes_equal(mixed[attention], whole[attention])


def test_router_and_bias_stay_fp32(loaded):
    gate = loaded.model.layers[3].mlp.gate
    assert gate.weight.dtype == gate.e_score_correction_bias.dtype == torch.float32
    assert (gate.e_score_correction_bias - 28).abs().max() < 1


def test_full_layers_have_no_window(loaded):
    windows = [layer.self_attn.attn.impl.sliding_window for layer in loaded.model.layers]
    assert windows == [256] * 5 + [None, None]


def test_one_line_tells_what_was_loaded(checkpoint, caplog):
    from vllm.logger import init_logger

    logger = init_logger("vllm.vllm_gaudi.models.beam.loading")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO):
            Harness(checkpoint(SHAPE, 17, fp8=True), tokenizer=True)
    finally:
        logger.removeHandler(caplog.handler)
    (line,) = {r.getMessage() for r in caplog.records if r.getMessage().startswith("Beam checkpoint")}
    # 7 x 5 attention, 3 x 3 dense and 4 x 16 x 3 expert matrices; as many scales and 2 x 4 router tensors in fp32.
    assert "532 tensors (244 float32, 236 float8_e4m3fn, 52 bfloat16)" in line
    assert "2 ignore entries" in line
    assert "rope_theta 10000.0" in line
    assert "2048 positions" in line
    assert line.rsplit(" ", 1)[1].isalnum()


LAST = "model.layers.6."


FLAWS = {
    "missing scale": (
        drop(f"{LAST}self_attn.o_proj.weight_scale"),
        r"1 of \d+ tensors are missing.*o_proj.weight_scale",
    ),
    "missing expert": (drop(f"{LAST}mlp.experts.3.up_proj.weight"), r"experts\.3\.up_proj\.weight"),
    "unknown tensor": (put("model.layers.6.self_attn.sinks", lambda _: torch.zeros(4)), "sinks: no such tensor"),
    "another shape": (put(f"{LAST}self_attn.gate_bias", lambda t: torch.zeros(6)), r"gate_bias: shape \(6,\)"),
    "BF16 where FP8 is declared": (
        put(f"{LAST}mlp.experts.0.up_proj.weight", lambda t: t.to(torch.bfloat16)),
        "stored as bfloat16, but quantization_config says E4M3",
    ),
    "FP8 where nothing is declared": (
        put("lm_head.weight", lambda t: t.to(fp8.E4M3)),
        "lm_head.weight: stored as float8_e4m3fn; Beam is served with it in bfloat16, .* never quantised",
    ),
    "narrow router": (
        put(f"{LAST}mlp.gate.e_score_correction_bias", lambda t: t.to(torch.bfloat16)),
        "router must be float32",
    ),
    "NaN in a scale": (
        put(f"{LAST}self_attn.o_proj.weight_scale", lambda t: t.index_fill(0, torch.tensor([5]), float("nan"))),
        "o_proj.weight_scale: holds NaN or infinity",
    ),
    "negative scale": (put(f"{LAST}mlp.experts.2.down_proj.weight_scale", lambda t: -t), "holds a negative scale"),
    "infinite correction bias": (
        put(f"{LAST}mlp.gate.e_score_correction_bias", lambda t: t.index_fill(0, torch.tensor([1]), float("inf"))),
        "e_score_correction_bias: holds NaN or infinity",
    ),
    "no theta": (file_edit("config.json", rope_parameters="DROP"), "rope_parameters missing"),
    "no positions": (file_edit("config.json", max_position_embeddings="DROP"), "max_position_embeddings missing"),
    "ignored but scaled": (
        file_edit("config.json", quantization_config=None),
        "stored as E4M3, but its module is not quantised",
    ),
    "stop token as text": (
        file_edit("generation_config.json", eos_token_id="348"),
        "eos_token_id must be a token id or a list of them, found '348'",
    ),
    "nested stop tokens": (
        file_edit("generation_config.json", eos_token_id=[[347, 348]]),
        r"eos_token_id must be a token id or a list of them, found \[\[347, 348\]\]",
    ),
    "call does not stop": (file_edit("generation_config.json", eos_token_id=[348]), r"lacks <\|call\|>"),
    "template drops history": (file_edit("tokenizer_config.json", chat_template="{{ messages[0].content }}"), "drops"),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_flawed_checkpoint_is_refused_by_name(checkpoint, tmp_path, flaw):
    change, message = FLAWS[flaw]
    folder = edit(checkpoint(SHAPE, 17, fp8=True), tmp_path / "flawed", change)
    if flaw == "template drops history":
        (folder / "chat_template.jinja").unlink()
    with pytest.raises((BeamCheckpointError, ValueError), match=message):
        Harness(folder, tokenizer=True)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gate_up_proj_scale", (16, 1, 64)),  # rows and columns exchanged
        ("gate_up_proj.weight_scale", (16, 64)),
        ("down_proj_scale", (16, 1, 64)),
        ("gate_up_proj", (16, 64, 32)),  # transposed
        ("gate_up_proj", (8, 64, 64)),
    ],
)
def test_packed_experts_of_another_shape_are_refused_under_their_own_name(name, shape):
    from vllm_gaudi.models.beam.inventory import unpack

    config = BeamConfig(**{**SHAPES["grid8"], "rope_parameters": None})
    stack = f"model.layers.3.mlp.experts.{name}"
    with pytest.raises(BeamCheckpointError, match=rf"{stack}: shape \(.*the config asks for packed experts of \(16, "):
        list(unpack(stack, torch.zeros(shape), config))


def test_unknown_packed_tensor_is_left_to_the_inventory():
    from vllm_gaudi.models.beam.inventory import Inventory, unpack

    config = BeamConfig(**{**SHAPES["grid8"], "rope_parameters": None})
    name = "model.layers.3.mlp.experts.gate_up_proj_bias"
    ((same, tensor),) = unpack(name, torch.zeros(16, 64, 1), config)
    with pytest.raises(BeamCheckpointError, match="gate_up_proj_bias: no such tensor"):
        Inventory(expected_tensors(config, lambda module: False)).take(same, tensor)


def test_repeated_tensor_is_refused(checkpoint, tmp_path):
    from vllm_gaudi.models.beam.inventory import Inventory

    config = BeamConfig(**{**SHAPES["grid8"], "rope_parameters": None})
    inventory = Inventory(expected_tensors(config, lambda module: False))
    inventory.take("model.norm.weight", torch.zeros(64))
    with pytest.raises(BeamCheckpointError, match="occurs twice"):
        inventory.take("model.norm.weight", torch.zeros(64))


def test_only_weights_of_other_ranks_experts_may_be_filtered_out(loaded, monkeypatch):
    from vllm_gaudi.models.beam.loading import _filtered_experts

    name = "model.layers.3.mlp.experts.9.up_proj.weight"
    assert not _filtered_experts(loaded)(name), "no filter asked for"
    monkeypatch.setattr(loaded.vllm_config.parallel_config, "enable_ep_weight_filter", True)
    assert not _filtered_experts(loaded)(name), "a local expert"
    manager = loaded.model.layers[3].mlp.experts.routed_experts.expert_map_manager
    monkeypatch.setattr(manager, "map_global_to_local", lambda expert: -1 if expert == 9 else expert)
    skipped = _filtered_experts(loaded)
    assert skipped(name)
    assert not skipped(name + "_scale")
    assert not skipped(name.replace(".9.", ".8."))
    assert not skipped("model.layers.0.mlp.up_proj.weight")
