# SPDX-License-Identifier: Apache-2.0
"""Server arguments that would serve another model are refused; the model's window stays in its layers."""

from types import SimpleNamespace

import pytest
import torch

from gates.checkpoints.beam_layout import quantization_config
from vllm_gaudi.models.beam.attention import check_parallel
from vllm_gaudi.models.beam.config import BeamConfig
from vllm_gaudi.models.beam.serving_checks import check_serving


def server(quant: dict | None = None, **change):
    """A stand-in VllmConfig with one value changed, `part.name=value`."""
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig

    config = SimpleNamespace(
        model_config=SimpleNamespace(disable_sliding_window=False, hf_config=BeamConfig(), dtype=torch.bfloat16),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(
            enable_eplb=False,
            pipeline_parallel_size=1,
            use_sequence_parallel_moe=False,
            enable_expert_parallel=False,
            tensor_parallel_size=1,
        ),
        quant_config=None if quant is None else CompressedTensorsConfig.from_config(quant),
    )
    for name, value in change.items():
        part, _, attribute = name.partition("__")
        setattr(getattr(config, part), attribute, value)
    return config


def changed(**fields) -> dict:
    config = quantization_config([])
    config["config_groups"]["group_0"]["weights"].update(fields)
    return config


def test_published_scheme_and_plain_bf16_are_served():
    check_serving(server())
    check_serving(server(quant=quantization_config(["lm_head"])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_config__disable_sliding_window": True}, "--disable-sliding-window"),
        ({"model_config__dtype": torch.float16}, "--dtype torch.float16"),
        ({"cache_config__cache_dtype": "fp8_inc"}, "--kv-cache-dtype fp8_inc"),
        ({"cache_config__cache_dtype": "fp8"}, "--kv-cache-dtype fp8: Beam's KV cache is BF16"),
        ({"parallel_config__enable_eplb": True}, "--enable-eplb"),
        ({"parallel_config__pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
        ({"parallel_config__use_sequence_parallel_moe": True}, "--data-parallel-size"),
        (
            {"parallel_config__enable_expert_parallel": True, "parallel_config__tensor_parallel_size": 3},
            "expert parallel size 3 does not divide num_experts 256",
        ),
        # As --hf-overrides would leave it, after the config class has looked; all cases: test_beam_quantisation.py.
        ({"quant": changed(strategy="tensor")}, "weights.strategy is 'tensor'"),
    ],
)
def test_other_arguments_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        check_serving(server(**change))


def test_other_quantisation_methods_are_refused():
    config = server()
    config.quant_config = SimpleNamespace(get_name=lambda: "awq")
    with pytest.raises(ValueError, match="'awq'"):
        check_serving(config)


@pytest.mark.parametrize(("tp_size", "fits"), [(1, True), (8, True), (16, True), (5, False), (6, False), (12, False)])
def test_heads_must_be_split_or_replicated_evenly(tp_size, fits):
    """48 query and 8 KV heads: more ranks than KV heads replicate them."""
    if fits:
        check_parallel(BeamConfig(), tp_size)
        return
    with pytest.raises(ValueError, match=f"tensor parallel size {tp_size}"):
        check_parallel(BeamConfig(), tp_size)


def test_window_of_the_cache_config_does_not_reach_full_layers(checkpoint, monkeypatch):
    """Were it left there, a layer without a window of its own would take it."""
    from harness import Harness
    from vllm.engine.arg_utils import EngineArgs

    create = EngineArgs.create_engine_config

    def with_window(self, *args, **kwargs):
        config = create(self, *args, **kwargs)
        config.cache_config.sliding_window = 8
        return config

    monkeypatch.setattr(EngineArgs, "create_engine_config", with_window)
    layers = Harness(checkpoint("grid8")).model.model.layers
    assert [layer.self_attn.attn.impl.sliding_window for layer in layers] == [8, 8, 8, 8, 8, None, 8, None]
