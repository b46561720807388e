# SPDX-License-Identifier: Apache-2.0
"""The config classes: published defaults, wrapper and text, every refusal by name."""

import copy
import json

import pytest

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import PUBLISHED, SHAPES
from vllm_gaudi.models.muse_spark.config import MetaNativeConfig, MuseSparkConfig, MuseSparkTextConfig


def test_defaults_are_the_published_model():
    config = MuseSparkTextConfig()
    for name, value in PUBLISHED.items():
        assert getattr(config, name) == value, name
    full = [i for i in range(62) if config.window(i) is None]
    assert full == list(range(1, 62, 4))
    assert [i for i in range(62) if not config.has_rope(i)] == full
    assert all(config.is_sparse(i) for i in range(62))


def test_window_and_rope_are_read_from_their_own_lists():
    config = MuseSparkTextConfig(**copy.deepcopy(SHAPES["crossed"]))
    assert [config.window(i) for i in range(4)] == [None, 8, None, 8]
    assert [config.has_rope(i) for i in range(4)] == [True, False, False, True]


def test_wrapper_holds_the_text_config_and_survives_its_own_json():
    whole = MuseSparkConfig(text_config=copy.deepcopy(SHAPES["tiny"]), vision_config={"hidden_size": 8})
    again = MuseSparkConfig.from_dict(json.loads(whole.to_json_string(use_diff=False)))
    for config in (whole, again):
        text = config.get_text_config()
        assert isinstance(text, MuseSparkTextConfig)
        assert text.moe_hidden_size == 96
        assert config.architectures == ["MuseSparkForConditionalGeneration"]


def test_vllm_reads_a_checkpoint_without_a_newer_transformers(tmp_path):
    from vllm.transformers_utils.config import get_config

    from vllm_gaudi.models.muse_spark.registration import register

    register()
    folder = muse.write(tmp_path, SHAPES["tiny"], mxfp4=True)
    config = get_config(str(folder), trust_remote_code=False)
    assert isinstance(config, MuseSparkConfig)
    assert config.get_text_config().num_local_experts == 16
    assert config.quantization_config["quant_method"] == "quark"
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": MetaNativeConfig.model_type}))
    with pytest.raises(ValueError, match="'musespark1x_omni' is Meta's native layout"):
        get_config(str(folder), trust_remote_code=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_sinks": True}, "unknown field attention_sinks"),
        ({"num_shared_experts": 1}, "num_shared_experts is 1, Muse Spark has 0"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"sliding_window": None}, "sliding_window must be a positive whole number"),
        ({"post_norm_eps": 0.0}, "post_norm_eps must be a number from 1e-12 to 0.1, found 0.0"),
        ({"num_key_value_heads": 5}, "num_attention_heads 128 is no multiple of num_key_value_heads 5"),
        ({"num_experts_per_tok": 257}, "num_experts_per_tok 257 exceeds num_local_experts 256"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 62 layers"),
        ({"mlp_layer_types": ["moe"] * 62}, "mlp_layer_types holds"),
        ({"layer_rope_theta": [0] * 61}, "layer_rope_theta has 61 entries"),
        ({"layer_rope_theta": [10000.0] * 62}, r"layer_rope_theta\[0\] is 10000.0, must be 0"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type 'yarn'"),
        ({"rope_parameters": {"rope_theta": 500000.0, "factor": 2}}, "unknown entries"),
    ],
)
def test_a_contradiction_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        MuseSparkTextConfig(**change)


def test_wrapper_without_a_text_config_or_with_another_models_is_refused():
    with pytest.raises(ValueError, match="text_config is missing"):
        MuseSparkConfig()
    with pytest.raises(ValueError, match=r"text_config\.model_type is 'llama'"):
        MuseSparkConfig(text_config={"model_type": "llama"})
