# SPDX-License-Identifier: Apache-2.0
"""The published Beam-1.0-501B on eight ranks, on meta tensors: config facts, a rank's shapes, every tensor, log."""

import logging
from collections import Counter

import pytest
import torch
from rank_model import as_rank, build

from gates.checkpoints import beam, beam_chat
from gates.checkpoints.beam_layout import layout
from gates.checkpoints.beam_shapes import PUBLISHED

FULL = [5, 11, 17, 23, 29, 35, 41, 47, 51]
RANK, RANKS = 5, 8


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    beam.write_config(folder, PUBLISHED, fp8=True, bf16_experts=False)
    beam_chat.write_tokenizer(folder)
    return build(folder, RANKS, RANK, True, device="meta")


def tensors(leave_out: str = ""):
    for name, entry in layout(PUBLISHED, fp8=True).items():
        if name != leave_out:
            yield name, torch.empty(entry.shape, dtype=entry.dtype, device="meta")


def test_config_facts(published):
    config, layers = published.config, published.model.layers
    assert config.max_position_embeddings == 1_048_576
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert config.absent_fields == []
    windows = [layer.self_attn.attn.impl.sliding_window for layer in layers]
    assert windows == [None if index in FULL else 512 for index in range(52)]
    assert [layer.self_attn.full for layer in layers] == [index in FULL for index in range(52)]
    assert [hasattr(layer.mlp, "gate") for layer in layers] == [False] * 3 + [True] * 49


def test_parameters_of_a_rank(published):
    """Spec of eight tensor-parallel ranks with experts split: nothing is padded, the router is whole and fp32."""
    e4m3, fp32, bf16 = torch.float8_e4m3fn, torch.float32, torch.bfloat16
    held = {name: (tuple(p.shape), p.dtype) for name, p in published.named_parameters()}
    at = "model.layers.51."
    for name, shape, dtype in (
        ("self_attn.qkv_proj.weight", (1024, 5120), e4m3),
        ("self_attn.qkv_proj.weight_scale", (1024, 1), fp32),
        ("self_attn.output_gate_proj.weight", (768, 5120), e4m3),
        ("self_attn.o_proj.weight", (5120, 768), e4m3),
        ("self_attn.gate_bias", (6,), bf16),
        ("mlp.gate.weight", (256, 5120), fp32),
        ("mlp.gate.e_score_correction_bias", (256,), fp32),
        ("mlp.experts.routed_experts.w13_weight", (32, 5120, 5120), e4m3),
        ("mlp.experts.routed_experts.w2_weight", (32, 5120, 2560), e4m3),
        ("mlp.experts.routed_experts.w13_weight_scale", (32, 5120, 1), fp32),
        ("mlp.experts.routed_experts.w2_weight_scale", (32, 5120, 1), fp32),
    ):
        assert held[at + name] == (shape, dtype), name
    assert held["lm_head.weight"] == held["model.embed_tokens.weight"] == ((18992, 5120), bf16)
    kinds = Counter(dtype for _, dtype in held.values())
    assert kinds[e4m3] == 2 * 49 + 3 * 52 + 2 * 3


def test_every_tensor_is_taken_once_and_one_line_tells_the_facts(published, caplog):
    from vllm.logger import init_logger

    logger = init_logger("vllm.vllm_gaudi.models.beam.loading")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO), as_rank(0, RANKS):
            names = [name for name, _ in published.checked_tensors(tensors())]
    finally:
        logger.removeHandler(caplog.handler)
    assert len(names) == len(set(names)) == 76_267
    assert sum(".experts." in name for name in names) == 75_264
    (line,) = {r.getMessage() for r in caplog.records if r.getMessage().startswith("Beam checkpoint")}
    # 49 x 256 x 3 expert, 52 x 5 attention and 3 x 3 dense matrices with a scale each; 2 x 49 fp32 router tensors.
    assert "76267 tensors (37999 float32, 37901 float8_e4m3fn, 367 bfloat16); 2 ignore entries" in line
    assert "rope_theta 10000.0; 1048576 positions; chat template none (no tokenizer)" in line


@pytest.mark.long
def test_one_tensor_of_76267_that_is_missing_is_named(published):
    name = "model.layers.27.mlp.experts.201.down_proj.weight_scale"
    with pytest.raises(ValueError, match=rf"1 of 76267 tensors are missing, first \['{name}'\]"), as_rank(0, RANKS):
        list(published.checked_tensors(tensors(name)))
