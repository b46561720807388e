# SPDX-License-Identifier: Apache-2.0
"""The generated checkpoints: named, shaped and typed as transformers writes them, counted by formula."""

import json

import pytest
import torch
from safetensors import safe_open

from gates.checkpoints import beam, beam_chat
from gates.checkpoints.beam_layout import layout, mlp_types
from gates.checkpoints.beam_shapes import PUBLISHED, SHAPES
from gates.checkpoints.beam_values import GRID, HOSTILE
from gates.oracle.checkpoint import Checkpoint, CheckpointError


def headers(folder):
    found = {}
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                piece = opened.get_slice(name)
                found[name] = (tuple(piece.get_shape()), piece.get_dtype())
    return found


@pytest.mark.parametrize("shape", ["grid8", "grid6"])
def test_bf16_names_shapes_and_dtypes_are_those_transformers_saves(published_model, grid_checkpoint, tmp_path, shape):
    published_model(shape, 17).save_pretrained(tmp_path)
    assert headers(grid_checkpoint(shape, 17)) == headers(tmp_path)


def test_published_config_gives_the_published_tensor_counts():
    """On meta tensors: 76,267 tensors of which 75,264 belong to experts; 38,366 in BF16."""
    table = layout(PUBLISHED, fp8=True)
    tensors = {name: torch.empty(e.shape, dtype=e.dtype, device="meta") for name, e in table.items()}
    assert len(tensors) == 76_267
    assert sum(".experts." in name for name in tensors) == 75_264
    assert len(layout(PUBLISHED)) == 38_366
    parameters = sum(t.numel() for name, t in tensors.items() if not name.endswith("_scale"))
    assert round(parameters / 1e9, 2) == 501.27
    size = sum(t.nbytes for t in tensors.values())
    assert 503.0 < size / 1e9 < 503.6


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_tensor_count_follows_the_formula(shape):
    config = SHAPES[shape]
    layers, experts = config["num_hidden_layers"], config["num_experts"]
    sparse = mlp_types(config).count("sparse")
    expected = 6 * experts * sparse + 17 * layers + 6 * (layers - sparse) + 2 * sparse + 3
    assert len(layout(config, fp8=True)) == expected


def test_shards_and_index_agree_and_layouts_share_their_values(tmp_path):
    config = SHAPES["grid6"]
    plain = Checkpoint(beam.write(tmp_path / "a", config, how=GRID))
    packed = Checkpoint(beam.write(tmp_path / "b", config, how=GRID, packed=True, shards=1))
    index = json.loads((tmp_path / "a" / "model.safetensors.index.json").read_text())
    assert sorted(index["weight_map"]) == plain.names()
    assert len(set(index["weight_map"].values())) == 3
    row = packed.row("model.layers.3.mlp.experts.gate_up_proj", 5)
    parts = [plain.get(f"model.layers.3.mlp.experts.5.{p}_proj.weight") for p in ("gate", "up")]
    assert row.equal(torch.cat(parts))


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_fp8_values_stay_within_one_step_of_bf16(tmp_path, scale_dtype):
    config = SHAPES["awkward"]
    fp8 = Checkpoint(beam.write(tmp_path / "q", config, how=HOSTILE, fp8=True, scale_dtype=scale_dtype))
    bf16 = Checkpoint(beam.write(tmp_path / "p", config, how=HOSTILE))
    for name in ("model.layers.0.self_attn.gate_proj", "model.layers.4.mlp.experts.23.down_proj"):
        weight, scale = fp8.get(f"{name}.weight"), fp8.get(f"{name}.weight_scale")
        assert weight.dtype == torch.float8_e4m3fn
        assert scale.shape == (weight.shape[0], 1)
        exact = bf16.get(f"{name}.weight").float()
        peak = exact.abs().amax(-1, keepdim=True)
        assert ((weight.float() * scale.float() - exact).abs() <= peak / 16).all()
        assert torch.isfinite(scale).all()
        assert (scale > 0).all()


def test_hostile_checkpoint_is_hostile(tmp_path):
    checkpoint = Checkpoint(beam.write(tmp_path, SHAPES["awkward"], how=HOSTILE, fp8=True))
    bias = checkpoint.get("model.layers.3.mlp.gate.e_score_correction_bias")
    assert bias.dtype == torch.float32
    assert (bias - 28).abs().max() < 1e-3
    assert bias.to(torch.bfloat16).unique().numel() == 1, "BF16 must lose every difference of the bias"
    router = checkpoint.get("model.layers.3.mlp.gate.weight")
    assert (router[0] - router[1]).abs().max() < 1e-3
    scale = checkpoint.get("model.layers.3.mlp.experts.0.up_proj.weight_scale")
    assert scale.max() / scale.min() > 1e3
    assert checkpoint.get("model.layers.3.mlp.experts.0.up_proj.weight").float()[-1].abs().max() == 0


def test_tokenizer_keeps_markers_whole_and_round_trips(tmp_path):
    from transformers import AutoTokenizer

    beam.write(tmp_path, SHAPES["served"], fp8=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    call = '<|start|>assistant to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name="city">\nZürich\n</rfl:parameter><|call|>'  # noqa: E501
    ids = tokenizer.encode(call)
    assert tokenizer.decode(ids) == call
    for marker, index in beam_chat.special_ids().items():
        if marker in call:
            assert index in ids
    assert len(tokenizer) <= SHAPES["served"]["vocab_size"]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["response_template"]["fields"]["content"]["close"] == ["<|return|>", "<|end|>", "<|call|>"]


def test_chat_template_renders_a_tool_round_trip_and_refuses_lost_reasoning(tmp_path):
    from transformers import AutoTokenizer

    beam.write(tmp_path, SHAPES["served"], fp8=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    call = {"type": "function", "function": {"name": "f", "arguments": {"city": "Paris", "days": 3}}}
    history = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "reasoning_content": "think", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    text = tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|start|>tool<|message|>sunny<|end|><|start|>assistant")
    assert '<rfl:parameter name="days">\n3\n</rfl:parameter><|call|>' in text
    history[1].pop("reasoning_content")
    with pytest.raises(Exception, match="reasoning_content"):
        tokenizer.apply_chat_template(history, tokenize=False)


def test_reader_names_what_is_missing(tmp_path, grid_checkpoint):
    with pytest.raises(CheckpointError, match=r"config\.json: not found"):
        Checkpoint(tmp_path)
    checkpoint = Checkpoint(grid_checkpoint("grid8", 17))
    with pytest.raises(CheckpointError, match=r"tensor model\.nothing is missing"):
        checkpoint.get("model.nothing")
