# SPDX-License-Identifier: Apache-2.0
"""Which modules are quantised does not depend on how the quantisation section spells them.

The same checkpoint with its list in the checkpoint's names, in those of the server, as patterns, by part and by merged
module: one state, the same for both loaders.
"""

import json
import shutil

import pytest
import torch
from rank_model import load
from safetensors.torch import load_file, save_file

from gates.checkpoints.muse_layout import unquantized_layers
from gates.checkpoints.muse_shapes import SHAPES as MUSE_SHAPES
from vllm_gaudi.loader.headers import INDEX
from vllm_gaudi.loader.state_hash import state_digest

PARTS = ("q_proj", "k_proj", "v_proj", "gate_proj")
PLAIN = [f"model.layers.{layer}.self_attn.{part}" for layer in range(5) for part in PARTS]
MATRICES = [f"{expert}.{part}_proj" for expert in range(16) for part in ("gate", "up", "down")]
EXPERTS = [f"model.layers.4.mlp.experts.{matrix}" for matrix in MATRICES]
MERGED = ("gate_up_proj", "down_proj")
# Attention projections but `o_proj` of all layers and the experts of the last are BF16.
BEAM = {
    "checkpoint": [*PLAIN, *EXPERTS],
    "server": [
        *(name.replace("gate_proj", "output_gate_proj") for name in PLAIN if name.endswith("gate_proj")),
        *(f"model.layers.{layer}.self_attn.qkv_proj" for layer in range(5)),
        "model.layers.4.mlp.experts",
    ],
    "merged experts": [*PLAIN, *(f"model.layers.4.mlp.experts.{part}" for part in MERGED)],
    "patterns": [r"re:.*\.self_attn\.(q|k|v|gate)_proj$", r"re:.*layers\.4\.mlp\.experts\..*"],
    "patterns of the server": [r"re:.*\.(qkv|output_gate)_proj$", r"re:.*layers\.4\.mlp\.experts$"],
}


@pytest.fixture(scope="module")
def mixed(checkpoint, tmp_path_factory):
    """An FP8 checkpoint in which what BEAM names is BF16 and has no scales."""
    folder = shutil.copytree(checkpoint(fp8=True), tmp_path_factory.mktemp("mixed") / "model")
    plain = {f"{name}.weight" for name in BEAM["checkpoint"]}
    index = json.loads((folder / INDEX).read_text())
    for shard in folder.glob("*.safetensors"):
        tensors = load_file(shard)
        for name in plain & tensors.keys():
            tensors[name] = tensors[name].to(torch.bfloat16)
        for name in [name for name in tensors if name.removesuffix("_scale") in plain and name.endswith("_scale")]:
            del tensors[name], index["weight_map"][name]
        save_file(tensors, shard, metadata={"format": "pt"})
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def spelled(folder, entry, change):
    """`folder` with `change(list)` of the quantisation section, in place."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"][entry] = change(config["quantization_config"][entry])
    path.write_text(json.dumps(config))


@pytest.fixture(scope="module")
def expected(mixed):
    """Digest with the list in the checkpoint's own names, by the stock loader."""
    spelled(mixed, "ignore", lambda _: ["lm_head", r"re:.*\.mlp\.gate$", *BEAM["checkpoint"]])
    model = load(mixed, "auto", 2, 1)
    dtypes = {name: value.dtype for name, value in model.named_parameters()}
    assert dtypes["model.layers.4.mlp.experts.routed_experts.w13_weight"] == torch.bfloat16
    assert dtypes["model.layers.3.mlp.experts.routed_experts.w13_weight"] == torch.float8_e4m3fn
    assert dtypes["model.layers.0.self_attn.qkv_proj.weight"] == torch.bfloat16
    assert dtypes["model.layers.0.self_attn.o_proj.weight"] == torch.float8_e4m3fn
    return state_digest(model)


@pytest.mark.parametrize("spelling", BEAM)
def test_an_ignore_list_means_the_same_in_every_spelling(mixed, expected, spelling):
    spelled(mixed, "ignore", lambda _: ["lm_head", r"re:.*\.mlp\.gate$", *BEAM[spelling]])
    assert state_digest(load(mixed, "beam", 2, 1)) == expected


@pytest.mark.long
@pytest.mark.parametrize("spelling", BEAM)
def test_so_it_does_for_the_stock_loader(mixed, expected, spelling):
    spelled(mixed, "ignore", lambda _: ["lm_head", r"re:.*\.mlp\.gate$", *BEAM[spelling]])
    assert state_digest(load(mixed, "auto", 2, 1)) == expected


def test_a_list_that_names_too_little_is_refused(mixed):
    """Control: the spelling decides, not the tensors."""
    spelled(mixed, "ignore", lambda _: ["lm_head", r"re:.*\.mlp\.gate$", *PLAIN])
    for load_format in ("auto", "beam"):
        with pytest.raises(ValueError, match=r"layers\.4\.mlp\.experts\..*stored as bfloat16|gate_proj\.weight"):
            load(mixed, load_format, 2, 1)


LAYERS = unquantized_layers(MUSE_SHAPES["tiny"])
MUSE = {
    "checkpoint": [f"model.language_model.layers.{layer}.mlp.experts" for layer in LAYERS],
    "server": [f"model.layers.{layer}.mlp.experts" for layer in LAYERS],
    "another server": [f"language_model.model.layers.{layer}.mlp.experts" for layer in LAYERS],
    "merged": [f"model.language_model.layers.{layer}.mlp.experts.{part}" for layer in LAYERS for part in MERGED],
    "merged, server": [f"model.layers.{layer}.mlp.experts.{part}" for layer in LAYERS for part in MERGED],
    "every matrix": [f"model.layers.{layer}.mlp.experts.{matrix}" for layer in LAYERS for matrix in MATRICES],
    "layers": [f"layers.{layer}" for layer in LAYERS],
    "anchored patterns": [rf"re:model\.layers\.{layer}\.mlp\.experts" for layer in LAYERS],
}


def test_an_exclude_list_means_the_same_in_every_spelling(checkpoint, tmp_path):
    source = checkpoint(mxfp4=True)
    expected = state_digest(load(source, "auto", 4, 3, True))
    folder = shutil.copytree(source, tmp_path / "muse")
    for spelling, entries in MUSE.items():
        spelled(folder, "exclude", lambda _, entries=entries: ["lm_head", "re:.*self_attn.*", *entries])
        assert state_digest(load(folder, "frontier", 4, 3, True)) == expected, spelling
    spelled(folder, "exclude", lambda _: ["lm_head", *MUSE["layers"][:1]])
    for load_format in ("auto", "frontier"):
        with pytest.raises(ValueError, match=r"layers\.7\.mlp\.experts\.\d+\.\w+_proj\.weight: stored as bfloat16"):
            load(folder, load_format, 4, 3, True)
