# SPDX-License-Identifier: Apache-2.0
"""`--hf-overrides` are judged like the file: none is taken unseen, none has no effect without a word."""

import json
import shutil
from types import SimpleNamespace

import pytest
from harness import plugins
from transformers import PretrainedConfig
from vllm.engine.arg_utils import EngineArgs

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import SHAPES
from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.config_values import ConfigError
from vllm_gaudi.models.judged_config import JudgedConfig
from vllm_gaudi.models.muse_spark.config import MuseSparkConfig

NESTED = {"full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 1e6}}
FLAT = {"rope_type": "default", "rope_theta": 1e6}


def served(folder, overrides):
    """The config as the model finds it, with the check of its constructor."""
    plugins()
    arguments = EngineArgs(model=str(folder), max_model_len=256, skip_tokenizer_init=True, hf_overrides=overrides)
    config = arguments.create_engine_config().model_config.hf_config
    config.check()
    return config


REFUSED = [
    ({"layer_types": ["full_attention"] * 8}, "layer_types differs from Beam's pattern"),
    ({"num_hidden_layers": 4}, "layer_types has 8 entries for 4 layers"),
    ({"n_group": 3}, "num_experts 16 is no multiple of n_group 3"),
    ({"topk_group": 0}, "topk_group must be a positive whole number"),
    ({"num_experts_per_tok": 17}, "num_experts_per_tok 17 exceeds the 8 experts"),
    ({"sliding_window": 0}, "sliding_window must be a positive whole number"),
    ({"final_logit_softcapping": 0}, "final_logit_softcapping must be a number from 0.1"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
    ({"routed_scaling_factor": 1e300}, "routed_scaling_factor must be a number"),
    ({"head_dim": None}, "head_dim must be a positive whole number, found None"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu', Beam has 'silu'"),
    ({"norm_topk_prob": False}, "norm_topk_prob is False"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
    ({"num_shared_experts": 1}, "num_shared_experts is 1, Beam has 0"),
    ({"rope_theta": 1e6}, "unknown field rope_theta = 1000000.0; .*RoPE is what rope_parameters says"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.sliding_attention must give rope_theta"),
    ({"rope_parameters": {**FLAT, "rope_type": "yarn"}}, "rope_type 'yarn' is not Beam's"),
    ({"rope_parameters": {"rope_type": "default"}}, "must give rope_theta"),
    ({"rope_parameters": None}, "must give rope_theta"),
    ({"architectures": ["LlamaForCausalLM"]}, r"architectures is \['LlamaForCausalLM'\], Beam has"),
    ({"eos_token_id": "350"}, "eos_token_id must be a token id or a list of them, found '350'"),
    ({"attention_sinks": {"a": 1}}, "unknown field attention_sinks"),
    ({"quantization_config": {"fp8_dtype_flavor": "x"}}, "quantization_config must name its quant_method"),
    ({"model_type": "gpt_oss"}, "model_type is 'gpt_oss', Beam has 'beam'"),
    ({"architectures": "BeamForCausalLM"}, "architectures cannot be 'BeamForCausalLM'"),
    ({"attribute_map": {}}, "attribute_map is no name of a field"),
    ({"absent_fields": []}, "absent_fields is no name of a field"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_overrides_a_file_could_not_hold_are_refused(checkpoint, overrides, message):
    with pytest.raises(ValueError, match=rf"--hf-overrides: .*{message}"):
        served(checkpoint("grid8"), overrides)


def test_without_the_judgement_overrides_would_be_taken(checkpoint, monkeypatch):
    """Control: the checks above are what refuses, nothing else on the way does."""
    monkeypatch.setattr(JudgedConfig, "update", PretrainedConfig.update)
    monkeypatch.setattr(JudgedConfig, "check", lambda self: None)
    for overrides in ({"n_group": 3}, {"hidden_act": "gelu"}, {"rms_norm_eps": float("nan")}, {"rope_theta": 1e6}):
        served(checkpoint("grid8"), overrides)


def test_a_callable_override_is_judged_before_serving(checkpoint):
    def change(config):
        config.n_group = 3
        return config

    with pytest.raises(ValueError, match="--hf-overrides: num_experts 16 is no multiple of n_group 3"):
        served(checkpoint("grid8"), change)


@pytest.mark.parametrize("rope", [NESTED, FLAT])
def test_rope_may_be_overridden_in_either_form(checkpoint, rope):
    config = served(checkpoint("grid8"), {"rope_parameters": rope, "routed_scaling_factor": 2.0})
    assert config.rope_parameters == FLAT
    assert config.routed_scaling_factor == 2.0


def test_facts_the_file_lacks_may_be_given(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("grid8"), tmp_path / "bare")
    content = json.loads((folder / "config.json").read_text())
    bare = {name: content[name] for name in content if name not in ("max_position_embeddings", "rope_parameters")}
    (folder / "config.json").write_text(json.dumps(bare))
    assert served(folder, {}).absent_fields == ["max_position_embeddings", "rope_parameters"]
    assert served(folder, {"max_position_embeddings": 512}).absent_fields == ["rope_parameters"]
    assert served(folder, {"max_position_embeddings": 512, "rope_parameters": FLAT}).absent_fields == []
    guesses = {"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    assert served(folder, guesses).absent_fields == [], "given is given, also where it is what would have been guessed"


def test_a_guess_is_not_written_as_a_fact(tmp_path):
    BeamConfig().save_pretrained(tmp_path)
    again = BeamConfig.from_pretrained(tmp_path)
    assert again.absent_fields == ["max_position_embeddings", "rope_parameters"]


def test_lists_of_layers_may_be_left_to_the_pattern(checkpoint):
    cut = {"num_hidden_layers": 7, "layer_types": None, "mlp_layer_types": None}
    config = served(checkpoint("grid8"), cut)
    assert [len(config.layer_types), len(config.mlp_layer_types)] == [7, 7]


def test_a_refused_override_changes_nothing():
    config = BeamConfig()
    before = config.to_dict()
    with pytest.raises(ConfigError, match="num_attention_heads 48 is no multiple"):
        config.update({"routed_scaling_factor": 2.0, "num_key_value_heads": 7})
    assert config.to_dict() == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"text_config": {"hidden_act": "gelu"}}, "hidden_act is 'gelu', Muse Spark has 'silu'"),
        ({"text_config": {"num_experts_per_tok": 17}}, "num_experts_per_tok 17 exceeds num_local_experts 16"),
        ({"text_config": {"rope_parameters": {"rope_theta": 1e6}}}, "must be 0 .* or rope_theta 1e"),
        ({"text_config": {"model_type": "llama"}}, "model_type is 'llama', Muse Spark has 'muse_spark_text'"),
        ({"max_position_embeddings": 64}, "max_position_embeddings = 64 is beside text_config and not read there"),
        ({"text_config": {"attention_sinks": 1}}, "unknown field attention_sinks"),
        ({"num_experts_per_tok": 1}, "num_experts_per_tok = 1 is beside text_config"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters = .* is beside text_config and not read there"),
        ({"architectures": ["LlamaForCausalLM"]}, "architectures is"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
    ],
)
def test_overrides_of_muse_spark_are_judged_too(tmp_path, overrides, message):
    with pytest.raises(ValueError, match=rf"--hf-overrides: .*{message}"):
        served(muse.write(tmp_path, SHAPES["tiny"]), overrides)


def test_an_override_of_muse_spark_reaches_the_text_config(tmp_path):
    config = served(muse.write(tmp_path, SHAPES["tiny"]), {"text_config": {"routed_scaling_factor": 2.0}})
    assert isinstance(config, MuseSparkConfig)
    assert config.text_config.routed_scaling_factor == 2.0


def test_serving_judges_what_came_after_the_config_was_built():
    """The stand-in of a server whose config was changed field by field."""
    from vllm_gaudi.models.muse_spark.serving_checks import check_serving

    config = MuseSparkConfig(text_config=dict(SHAPES["tiny"]))
    config.text_config.num_local_experts = 2
    server = SimpleNamespace(
        model_config=SimpleNamespace(disable_sliding_window=False, hf_config=config),
        parallel_config=None,
        quant_config=None,
    )
    with pytest.raises(ConfigError, match="num_experts_per_tok 3 exceeds num_local_experts 2"):
        check_serving(server)
