# SPDX-License-Identifier: Apache-2.0
"""The quantisation method: what it claims, what it accepts, and which modules it takes to be packed."""

import copy
from types import SimpleNamespace

import pytest

from gates.checkpoints.muse_layout import quantization_config
from gates.checkpoints.muse_shapes import SHAPES
from vllm_gaudi.quantization.quark_mxfp4 import NAME, QuarkMxfp4Config, register

SECTION = quantization_config(SHAPES["tiny"])
EXPERTS = "model.language_model.layers.{}.mlp.experts"


@pytest.mark.parametrize(
    ("method", "model", "claimed"),
    [
        ("quark", "muse_spark", True),
        ("quark", "muse_spark_text", True),
        ("quark", "llama", False),
        ("mxfp4", "muse_spark", False),
        ("fp8", "muse_spark", False),
    ],
)
def test_only_quark_checkpoints_of_muse_are_claimed(method, model, claimed):
    found = QuarkMxfp4Config.override_quantization_method(
        {"quant_method": method}, None, hf_config=SimpleNamespace(model_type=model)
    )
    assert found == (NAME if claimed else None)


def test_registering_leaves_vllms_own_quark_alone():
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.platforms import current_platform

    before = get_quantization_config("quark")
    register()
    register()
    assert get_quantization_config(NAME) is QuarkMxfp4Config
    assert get_quantization_config("quark") is before
    assert current_platform.supported_quantization.count(NAME) == 1
    assert "quark" not in current_platform.supported_quantization


def changed(path, value):
    section = copy.deepcopy(SECTION)
    at = section
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return section


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("global_quant_config", "weight", "dtype"), "int4", r"weight\.dtype is 'int4'"),
        (("global_quant_config", "weight", "group_size"), 16, r"weight\.group_size is 16"),
        (("global_quant_config", "weight", "scale_format"), "e4m3", r"weight\.scale_format is 'e4m3'"),
        (("global_quant_config", "weight", "qscheme"), "per_channel", r"weight\.qscheme"),
        (("global_quant_config", "weight", "is_dynamic"), True, r"weight\.is_dynamic is True"),
        (("global_quant_config", "weight"), None, r"weight\.dtype is None"),
        (("layer_quant_config",), {"*q_proj": {}}, "layer_quant_config"),
        (("global_quant_config", "weight", "ch_axis"), 0, r"weight\.ch_axis is 0"),
        (("global_quant_config", "weight", "is_scale_quant"), True, r"weight\.is_scale_quant is True"),
        (("global_quant_config", "weight", "mx_element_dtype"), "fp6_e2m3", r"weight\.mx_element_dtype"),
        (("global_quant_config", "weight", "second_scale"), 2.0, r"weight\.second_scale is no known entry"),
        (("global_quant_config", "output_tensors"), {"dtype": "fp4"}, r"output_tensors is set"),
        (("global_quant_config", "bias"), {"dtype": "int8"}, r"bias is set"),
        (("algo_config",), [{"name": "rotation", "online": True}], "rotated activations are not served"),
        (("new_section",), {"a": 1}, "new_section is no known entry"),
        (("export", "weight_format"), "fake_quantized", "fake_quantized"),
        (("export", "kv_cache_group"), ["*k_proj"], "kv_cache_group"),
        (("export",), [], r"export must be an object"),
        (("exclude",), {}, r"exclude must be a list of names, found \{\}"),
        (("exclude",), 0, r"exclude must be a list of names, found 0"),
    ],
)
def test_what_is_not_plain_mxfp4_is_refused_by_name(path, value, message):
    with pytest.raises(ValueError, match=message):
        QuarkMxfp4Config.from_config(changed(path, value))


def test_experts_of_inner_layers_are_packed_and_nothing_else():
    config = QuarkMxfp4Config.from_config(SECTION)
    assert [config.experts_quantized(EXPERTS.format(i), 16) for i in range(8)] == [False] + [True] * 6 + [False]
    for name in ("self_attn.q_proj", "self_attn.gate_proj", "mlp.pre_expert_proj", "mlp.post_expert_proj"):
        assert config.is_excluded(f"model.language_model.layers.3.{name}")
    assert config.is_excluded("lm_head")


def test_plain_names_cover_what_is_below_them_and_no_lookalike():
    config = QuarkMxfp4Config(["model.layers.1"])
    assert config.is_excluded("model.layers.1.mlp.experts.3.up_proj")
    assert not config.is_excluded("model.layers.11.mlp.experts.3.up_proj")


def test_globs_of_an_exclude_list_mean_what_they_match():
    config = QuarkMxfp4Config(["*self_attn*", "model.language_model.layers.[05].*"])
    assert config.is_excluded("model.language_model.layers.3.self_attn.q_proj")
    assert config.is_excluded("model.language_model.layers.5.mlp.experts.3.up_proj")
    assert not config.is_excluded("model.language_model.layers.3.mlp.experts.3.up_proj")


def test_algorithms_that_end_with_the_export_are_accepted():
    QuarkMxfp4Config.from_config(changed(("algo_config",), [{"name": "gptq", "block_size": 128}]))


def test_a_layer_that_is_excluded_in_part_is_refused():
    config = QuarkMxfp4Config([EXPERTS.format(2) + ".5.up_proj"])
    with pytest.raises(ValueError, match=r"some matrices of model\.language_model\.layers\.2\.mlp\.experts only"):
        config.experts_quantized(EXPERTS.format(2), 16)
