# SPDX-License-Identifier: Apache-2.0
"""Generated Muse checkpoints: names and shapes as transformers has them, counts and bytes of the published model."""

import json

import pytest
import torch
from muse_models import state

from gates.checkpoints import muse
from gates.checkpoints.muse_layout import PREFIX, layout
from gates.checkpoints.muse_shapes import PUBLISHED, SHAPES
from gates.oracle.checkpoint import Checkpoint


def published_names(config):
    """Name -> shape of transformers' conditional generation model, text part."""
    from transformers import MuseSparkConfig, MuseSparkForConditionalGeneration

    audio = {"out_hidden_size": config["hidden_size"], "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2}
    whole = MuseSparkConfig(text_config=dict(config), audio_config=audio, vision_config=vision)
    with torch.device("meta"):
        model = MuseSparkForConditionalGeneration(whole)
    return {n: tuple(t.shape) for n, t in model.state_dict().items() if n.startswith((PREFIX, "lm_head"))}


@pytest.mark.parametrize("shape", ["tiny", "crossed"])
def test_bf16_names_and_shapes_are_those_of_transformers(shape):
    table = layout(SHAPES[shape])
    assert {name: entry.shape for name, entry in table.items()} == published_names(SHAPES[shape])


def test_published_config_gives_the_published_parameters():
    table = layout(PUBLISHED, mxfp4=True)
    packed = {n: e for n, e in table.items() if e.dtype == torch.uint8 and e.kind == "matrix"}
    assert len(packed) == 60 * 256 * 3
    total = sum(
        e.shape[0] * (e.shape[-1] if len(e.shape) > 1 else 1) * (2 if n in packed else 1)
        for n, e in table.items()
        if e.kind not in ("scale", "embed", "head")
    )
    assert round(total / 1e9, 1) == 816.7


def test_quark_layout_keeps_first_and_last_layers_bf16(tmp_path):
    checkpoint = Checkpoint(muse.write(tmp_path, SHAPES["tiny"], mxfp4=True))
    scaled = {name.split(".layers.")[1].split(".")[0] for name in checkpoint.names() if name.endswith("weight_scale")}
    assert scaled == {"1", "3", "4", "5", "6"}
    at = f"{PREFIX}layers.1.mlp.experts.15."
    assert checkpoint.shape(f"{at}gate_proj.weight") == (256, 48)
    assert checkpoint.shape(f"{at}down_proj.weight") == (96, 128)
    assert checkpoint.shape(f"{at}down_proj.weight_scale") == (96, 8)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "quark"


def test_both_layouts_hold_the_same_values_where_nothing_is_quantised(tmp_path):
    quark = state(Checkpoint(muse.write(tmp_path / "q", SHAPES["tiny"], mxfp4=True)))
    plain = state(Checkpoint(muse.write(tmp_path / "p", SHAPES["tiny"])))
    assert sorted(quark) == sorted(plain)
    differing = [name for name in plain if not plain[name].equal(quark[name])]
    experts = [f"layers.{i}.mlp.experts.{part}" for i in (1, 3, 4, 5, 6) for part in ("down_proj", "gate_up_proj")]
    assert sorted(differing) == experts
