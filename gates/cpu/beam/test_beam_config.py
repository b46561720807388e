# SPDX-License-Identifier: Apache-2.0
"""The config class: published defaults, every field checked, refusals by name."""

import copy
import json

import pytest

from gates.checkpoints.beam_shapes import PUBLISHED, SHAPES
from vllm_gaudi.models.beam.config import BeamConfig

FULL_LAYERS = [5, 11, 17, 23, 29, 35, 41, 47, 51]


def test_defaults_are_the_published_model():
    """Not those of a smaller namesake: a stripped config.json must not give another network."""
    config = BeamConfig()
    for name, value in PUBLISHED.items():
        if name not in ("max_position_embeddings", "rope_parameters", "model_type"):
            assert getattr(config, name) == value, name
    assert config.model_type == "beam"
    assert [i for i in range(52) if config.is_full(i)] == FULL_LAYERS
    assert [i for i in range(52) if not config.is_sparse(i)] == [0, 1, 2]


def test_nested_rope_is_flattened_and_absent_facts_are_remembered():
    config = BeamConfig(**copy.deepcopy(PUBLISHED))
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert config.absent_fields == []
    assert BeamConfig().absent_fields == ["max_position_embeddings", "rope_parameters"]


def test_config_survives_its_own_json():
    config = BeamConfig(**copy.deepcopy(SHAPES["grid8"]))
    again = BeamConfig.from_dict(json.loads(config.to_json_string(use_diff=False)))
    for name in SHAPES["grid8"]:
        assert getattr(again, name) == getattr(config, name), name
    assert again.layer_types == config.layer_types


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_sinks": True}, "unknown field attention_sinks"),
        ({"num_local_experts": 8}, "unknown field num_local_experts"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax', Beam has 'sigmoid'"),
        ({"n_shared_experts": 1}, "n_shared_experts is 1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False"),
        ({"sliding_window": None}, "sliding_window must be a positive whole number"),
        ({"sliding_window": 0}, "sliding_window must be a positive whole number"),
        ({"sliding_window": 512.5}, "sliding_window must be a positive whole number, found 512.5"),
        ({"head_dim": True}, "head_dim must be a positive whole number"),
        ({"num_hidden_layers": "52"}, "num_hidden_layers must be a positive whole number, found '52'"),
        ({"num_hidden_layers": None, "layer_types": None}, "num_hidden_layers must be a positive whole number"),
        ({"num_experts_per_tok": 7.5}, "num_experts_per_tok must be a positive whole number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps must be a number from 1e-12 to 0.1, found inf"),
        (
            {"routed_scaling_factor": float("inf")},
            "routed_scaling_factor must be a number from 0.001 to 1000, found inf",
        ),
        (
            {"final_logit_softcapping": float("inf")},
            "final_logit_softcapping must be a number from 0.1 to 10000 or null, found inf",
        ),
        (
            {"final_logit_softcapping": "30"},
            "final_logit_softcapping must be a number from 0.1 to 10000 or null, found '30'",
        ),
        ({"layer_types": "sliding_attention"}, "layer_types must be a list"),
        ({"layer_types": 5}, "layer_types must be a list"),
        ({"mlp_layer_types": ["dense", None] * 26}, r"mlp_layer_types holds \['None'\]"),
        ({"num_key_value_heads": 5}, "num_attention_heads 48 is no multiple of"),
        ({"n_group": 7}, "num_experts 256 is no multiple of n_group 7"),
        ({"n_group": 256}, "groups of 1 expert"),
        ({"topk_group": 9}, "topk_group 9 exceeds n_group 8"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok 129 exceeds the 128 experts"),
        ({"layer_types": ["full_attention"] * 52}, "layer_types differs from Beam's pattern"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types has 3 entries for 52 layers"),
        ({"layer_types": ["chunked"] * 52}, r"layer_types holds \['chunked'\]"),
        ({"mlp_layer_types": ["moe"] * 52}, r"mlp_layer_types holds \['moe'\]"),
        ({"final_logit_softcapping": -1}, "final_logit_softcapping must be a number"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e4}}},
            "full_attention is .* must be null",
        ),
        ({"rope_parameters": {"sliding_attention": None, "full_attention": None}}, "must give rope_theta"),
        ({"rope_parameters": 10000}, "rope_parameters must give rope_theta per layer type, found 10000"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "rope_theta": 5e5}},
            r"entries \['rope_theta'\] beside",
        ),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": None}}}, "rope_theta must be a number from 10 to"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": "1e4"}}}, "rope_theta must be a number from 10 to"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta must be a number from 10 to .*found 0$"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta must be a number from 10 to .*found nan"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn' is not Beam's"),
        ({"rope_parameters": {"rope_theta": 1e4, "factor": 4}}, r"unknown entries \['factor'\]"),
        # A scalar beside the nested form has no effect in the published class: nobody can tell which was meant.
        ({"rope_theta": 5e5}, "unknown field rope_theta = 500000.0"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_"),
        ({"text_config": {"hidden_size": 5120}}, "unknown field text_config"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers must be at most 1024"),
        ({"num_hidden_layers": 2**20, "layer_types": None}, "num_hidden_layers must be at most 1024"),
        ({"hidden_size": 10**30}, "hidden_size must be at most 2147483647"),
        ({"dtype": "8"}, "dtype is '8', Beam is published in 'bfloat16'"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype is 'float8_e4m3fn'"),
        ({"dtype": float("nan")}, "dtype is nan"),
    ],
)
def test_bad_values_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        BeamConfig(**{**copy.deepcopy(PUBLISHED), **change})


# What transformers 5.24.0 writes for its BeamConfig (to_json_string, use_diff=False) beside the fields of PUBLISHED.
WRITTEN_BESIDE = {
    "_name_or_path": "", "architectures": None, "bos_token_id": None, "chunk_size_feed_forward": 0, "dtype": None,
    "eos_token_id": None, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_range": 0.02,
    "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "output_attentions": False,
    "output_hidden_states": False, "output_router_logits": False, "pad_token_id": None, "problem_type": None,
    "return_dict": True, "transformers_version": "5.24.0", "use_cache": True,
}  # fmt: skip


@pytest.mark.parametrize(
    "rope",
    [
        {"full_attention": None, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        {"sliding_attention": {"rope_type": "default", "rope_theta": 10000}, "full_attention": None},
        {"sliding_attention": {"rope_theta": 10000.0}},
        {"rope_theta": 10000.0, "rope_type": "default"},
    ],
)
@pytest.mark.parametrize("dtype", [{"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}, {"dtype": None}])
def test_files_as_transformers_writes_them_are_read(tmp_path, rope, dtype):
    """Every key it writes, rope in each form, the type under its new and its old name."""
    layers = {"layer_types": BeamConfig().layer_types, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 49}
    content = {**PUBLISHED, **WRITTEN_BESIDE, **layers, **dtype, "rope_parameters": rope}
    if "torch_dtype" in dtype:
        content.pop("dtype")
    (tmp_path / "config.json").write_text(json.dumps(content))
    config = BeamConfig.from_pretrained(tmp_path)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert config.absent_fields == []
    assert str(config.dtype) == ("None" if dtype == {"dtype": None} else "torch.bfloat16")
    assert config.architectures == ["BeamForCausalLM"]
    for name, value in PUBLISHED.items():
        if name not in ("rope_parameters", "architectures"):
            assert getattr(config, name) == value, name


def test_off_switches_and_agreeing_synonyms_are_accepted():
    BeamConfig(scoring_func="sigmoid", topk_method="noaux_tc", n_shared_experts=0, index_topk=None, use_mtp=False)


@pytest.mark.parametrize(
    "beside",
    [
        {"rope_theta": 10000.0},
        {"partial_rotary_factor": 1.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"min_p": 0.05},
        {"pad_token_id": -1},
    ],
)
def test_what_only_says_the_same_again_is_accepted(beside):
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    config = BeamConfig(**{"rope_parameters": rope, **beside})
    assert config.rope_parameters == rope
    assert not hasattr(config, "rope_theta")


def test_vllm_reads_the_checkpoint_with_this_class(checkpoint):
    from harness import plugins

    plugins()
    from vllm.transformers_utils.config import get_config

    config = get_config(str(checkpoint("grid8")), trust_remote_code=False)
    assert type(config) is BeamConfig
    assert config.absent_fields == []
