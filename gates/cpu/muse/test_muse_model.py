# SPDX-License-Identifier: Apache-2.0
"""The model on the emulated device against the CPU reference: whole in fp32, step by step as served."""

import logging

import pytest
import torch
import torch.nn.functional as F

from gates.hpusim import meters
from gates.oracle.muse import steps
from gates.oracle.muse.model import MuseReference
from vllm_gaudi.models.muse_spark import attention, experts, moe, norms
from vllm_gaudi.models.muse_spark.model import NOTICE

STEP = 2.0**-8  # one bf16 step
COUNT = 129  # more than a page of 128 tokens
# fp32 sums in another order, amplified by routing and gain layer by layer; published implementations differ by 1e-4.
FP32_LIMIT = 1e-3


@pytest.mark.parametrize("count", [1, 17, COUNT])
@pytest.mark.parametrize("shape", ["tiny", "crossed"])
def test_whole_network_in_fp32_agrees_with_the_reference(model, checkpoint, tokens, shape, count):
    got = model(shape, dtype="float32").logits(tokens(count))
    expected = MuseReference(checkpoint(shape), "fp32")(tokens(count))
    difference = float((got - expected).abs().max())
    print(f"fp32 {shape} {count}: {difference:.2e}")
    assert got.dtype == torch.float32
    assert difference < FP32_LIMIT
    assert expected.std() > 0.1


class Recorded:
    """One prompt pass in bf16 on MXFP4 experts, beside the served-numerics reference."""

    def __init__(self, harness, folder, ids):
        self.harness, self.ids = harness, ids
        self.seen = harness.record(ids)
        self.reference = MuseReference(folder, "w4a16")
        self.shape, self.place = self.reference.shape, torch.arange(ids.shape[0])

    def _flat(self, value):
        value = value.cpu()
        return value[0] if value.dim() > 2 and value.shape[0] == 1 else value

    def output(self, name):
        return self._flat(self.seen[name][1])

    def inputs(self, name):
        return [self._flat(value) for value in self.seen[name][0]]

    def layers(self, sparse=False):
        for index in range(self.shape.num_hidden_layers):
            if not sparse or self.shape.is_sparse(index):
                yield index, f"model.layers.{index}.", self.reference.weights(index)


@pytest.fixture(scope="module", params=["tiny", "crossed"])
def run(request, model, checkpoint, tokens):
    return Recorded(model(request.param, True), checkpoint(request.param, True), tokens(COUNT))


def relative(got, expected):
    assert got.dtype == expected.dtype
    return float((got.reshape(expected.shape).float() - expected.float()).abs().max() / expected.float().abs().max())


def test_embedding_norms_and_blends_are_equal_to_the_last_bit(run):
    shape = run.shape
    assert run.output("model.embed_norm").equal(run.reference.embed(run.ids))
    for _, at, weights in run.layers():
        for name in ("input_layernorm", "pre_feedforward_layernorm"):
            x, weight = run.inputs(at + name)[0], weights.tensor(f"{name}.weight")
            assert run.output(at + name).equal(
                steps.centred_norm(x, weight, shape.rms_norm_eps, True, torch.bfloat16)
            ), at + name
        x = run.inputs(f"{at}post_attention_layernorm")[0]
        expected = steps.unit_norm(x, shape.post_norm_eps, torch.float32)
        assert run.output(f"{at}post_attention_layernorm").equal(expected)
        name = "post_feedforward_layernorm"
        x, weight = run.inputs(at + name)[0], weights.tensor(f"{name}.weight")
        expected = steps.input_scaled_norm(x, weight, shape.post_norm_eps, True, torch.float32)
        assert run.output(at + name).equal(expected)
        for name in ("post_attention_residual_gate", "post_feedforward_residual_gate"):
            stream, branch = run.inputs(at + name)
            assert stream.dtype == branch.dtype == torch.float32
            gate = weights.fp32(f"{name}.gate")
            expected = steps.residual_gate(stream, branch, gate, shape.residual_gate_temperature)
            assert run.output(at + name).equal(expected), at + name
    x = run.inputs("model.norm")[0]
    weight = run.reference.weights().tensor("norm.weight")
    assert run.output("model.norm").equal(steps.final_norm(x, weight, shape.rms_norm_eps, torch.bfloat16))


def test_modules_are_wired_in_the_published_order(run):
    stream = run.output("model.embed_norm")
    for _, at, _ in run.layers():
        blended = run.output(f"{at}post_attention_residual_gate")
        edges = {
            "input_layernorm": (0, stream),
            "post_attention_layernorm": (0, run.output(f"{at}self_attn")),
            "post_attention_residual_gate": (0, stream),
            "pre_feedforward_layernorm": (0, blended),
            "post_feedforward_layernorm": (0, run.output(f"{at}mlp")),
            "post_feedforward_residual_gate": (0, blended),
        }
        for name, (place, value) in edges.items():
            assert run.inputs(at + name)[place].reshape(value.shape).equal(value), at + name
        stream = run.output(f"{at}post_feedforward_residual_gate")


def test_router_chooses_and_weighs_as_the_reference(run):
    shape = run.shape
    for _, at, weights in run.layers(sparse=True):
        x = run.inputs(f"{at}mlp.gate")[0]
        arguments = (weights.fp32("mlp.gate.weight"), weights.fp32("mlp.gate.e_score_correction_bias"))
        _, expected, ids = steps.route(
            x, *arguments, shape.output_multiplier, shape.num_experts_per_tok, shape.routed_scaling_factor
        )
        got_weights, got_ids = run.inputs(f"{at}mlp.experts")[1:]
        assert got_ids.sort(-1).values.equal(ids.sort(-1).values)
        order, other = got_ids.argsort(-1), ids.argsort(-1)
        torch.testing.assert_close(got_weights.gather(-1, order), expected.gather(-1, other), rtol=1e-5, atol=1e-6)


def test_experts_and_latent_projections_match_the_reference(run):
    for _, at, weights in run.layers(sparse=True):
        latent, route_weights, ids = run.inputs(f"{at}mlp.experts")
        expected = run.reference.combine(weights, latent, route_weights, ids)
        assert relative(run.output(f"{at}mlp.experts"), expected) <= 2 * STEP
        pooled = weights.matrix("mlp.pre_expert_proj")(run.inputs(f"{at}mlp")[0])
        norm = weights.tensor("mlp.pre_expert_norm.weight")
        expected = steps.centred_norm(pooled, norm, run.shape.rms_norm_eps, True, torch.bfloat16)
        assert latent.equal(expected)
        unpooled = weights.matrix("mlp.post_expert_proj")(run.output(f"{at}mlp.experts"))
        assert run.output(f"{at}mlp").equal(unpooled)


def attention_difference(run):
    """Largest difference of queries and keys (absolute) and of attention outputs (relative), over the layers."""
    shape, exact, scored = run.shape, 0.0, 0.0
    for index, at, weights in run.layers():
        x = run.inputs(f"{at}input_layernorm")[0]
        x = steps.centred_norm(x, weights.tensor("input_layernorm.weight"), shape.rms_norm_eps, True, torch.bfloat16)
        notes = {}

        def note(name, value, notes=notes):
            return notes.setdefault(name, value)

        expected = run.reference._attention(index, weights, x, run.place, note)
        q, k = run.inputs(f"{at}self_attn.attn")[:2]
        for got, name in ((q, "q"), (k, "k")):
            exact = max(exact, float((got.view(notes[name].shape).float() - notes[name].float()).abs().max()))
        scored = max(scored, relative(run.output(f"{at}self_attn"), expected))
    return exact, scored


def test_attention_matches_the_reference_in_windowed_full_rope_and_nope_layers(run):
    exact, scored = attention_difference(run)
    print(f"q and k {exact}, output {scored / STEP:.2f} bf16 steps")
    assert exact <= STEP * 4  # RoPE: the two products may be contracted; one bf16 step of values up to 4
    assert scored <= 6 * STEP


def test_every_layer_matches_the_reference_on_its_own_input(run):
    with torch.inference_mode():
        for index, at, _ in run.layers():
            stream = run.inputs(f"{at}input_layernorm")[0]
            got = run.output(f"{at}post_feedforward_residual_gate")
            expected = run.reference.layer(index, stream, run.place)
            # A routing choice may flip at a near-tie after a rounding difference: median token, not the worst.
            error = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
            assert error.median() < 4 * STEP, f"layer {index}: {error.median():.3g}"


def test_logits_are_scaled_and_softcapped_in_fp32(run):
    hidden = run.output("model.norm")
    raw = F.linear(hidden, run.reference.checkpoint.get("lm_head.weight"))
    with torch.inference_mode():
        got = run.harness.model.compute_logits(hidden.to("hpu")).cpu()
    shape = run.shape
    expected = steps.transform_logits(raw, shape.output_multiplier, shape.final_logit_softcapping, True)
    assert got.dtype == torch.float32
    assert (got - expected).abs().max() < 1e-6


def _wrong_gain(self, x):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight.float()).to(self.dtype)


def _plain_residual(self, residual, branch):
    return residual + branch


def _multiplier_forgotten(self, x):
    scores = torch.sigmoid(F.linear(x.float(), self.weight))
    ids = torch.topk(scores + self.e_score_correction_bias, self.top_k, dim=-1).indices
    weights = scores.gather(-1, ids)
    return weights / weights.sum(-1, keepdim=True) * self.scale, ids


def _rope_everywhere(self, x, tables, original=attention.MuseAttention.forward):
    kept, self.rope = self.rope, True
    try:
        return original(self, x, tables)
    finally:
        self.rope = kept


def _rope_nowhere(self, x, tables, original=attention.MuseAttention.forward):
    return original(self, x, (torch.ones_like(tables[0]), torch.zeros_like(tables[1])))


MUTANTS = {
    "gain without one": (norms.WeightedNorm, "forward", _wrong_gain),
    "ungated residual": (norms.ResidualGate, "forward", _plain_residual),
    "router without multiplier": (moe.MuseRouter, "forward", _multiplier_forgotten),
    "RoPE in every layer": (attention.MuseAttention, "forward", _rope_everywhere),
    "RoPE in no layer": (attention.MuseAttention, "forward", _rope_nowhere),
    "no QK norm": (attention, "unit_norm", lambda x, eps, dtype: x.to(dtype)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_known_fault_shows_in_the_fp32_comparison(model, checkpoint, tokens, monkeypatch, name):
    harness = model("crossed", dtype="float32")
    expected = MuseReference(checkpoint("crossed"), "fp32")(tokens(17))
    assert (harness.logits(tokens(17)) - expected).abs().max() < FP32_LIMIT
    monkeypatch.setattr(*MUTANTS[name])
    assert (harness.logits(tokens(17)) - expected).abs().max() > 10 * FP32_LIMIT


@pytest.mark.parametrize("change", [-1, 1])
def test_a_window_one_key_off_shows(model, checkpoint, tokens, monkeypatch, change):
    """Without cached context the kernel's mask is built from the window handed to the metadata processor."""
    from vllm_gaudi.v1.worker.hpu_model_runner import HPUAttentionMetadataProcessor as Processor

    harness = model("tiny", dtype="float32")
    windows = [layer.self_attn.attn.sliding_window for layer in harness.model.model.layers]
    assert windows == [8, 8, 8, None] * 2
    original = Processor._set_attn_bias_for_sliding_window

    def bias(self, metadata, batch, length, window, device, dtype):
        return original(self, metadata, batch, length, window + change, device, dtype)

    monkeypatch.setattr(Processor, "_set_attn_bias_for_sliding_window", bias)
    expected = MuseReference(checkpoint("tiny"), "fp32")(tokens(17))
    wrong = ((harness.logits(tokens(17)) - expected).abs().amax(-1) > 10 * FP32_LIMIT).nonzero()
    assert int(wrong[0]) == min(8, 8 + change)


def test_both_expert_kernels_give_one_network(model, tokens):
    stock = model("tiny", True).hidden(tokens(17)).cpu().float()
    plain = model("tiny", True, VLLM_MUSE_EXPERT_OP="torch").hidden(tokens(17)).cpu().float()
    error = (stock - plain).norm(dim=-1) / stock.norm(dim=-1)
    assert error.median() < 8 * STEP


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.CRITICAL])
def test_the_notice_is_logged_when_the_model_is_built(level, checkpoint):
    from gates.cpu.beam.harness import Harness
    from vllm_gaudi.models.muse_spark import model as module

    seen = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())
    before = module.logger.level
    module.logger.addHandler(handler)
    module.logger.setLevel(level)
    module.show_notice.cache_clear()
    try:
        Harness(checkpoint("tiny"))
    finally:
        module.logger.removeHandler(handler)
        module.logger.setLevel(before)
    assert NOTICE == "Built with Muse Spark Open"
    assert seen.count(NOTICE) == 1


def test_block_is_not_cut_by_the_plugin_and_rotary_is_shared(model):
    harness = model("tiny")
    names = {type(layer).__name__ for layer in harness.model.model.layers}
    assert not any(name.endswith(("DecoderLayer", "EncoderLayer", "BertLayer")) for name in names)
    tables = [name for name, _ in harness.model.named_buffers() if name.endswith(".cos")]
    assert tables == ["model.positions.cos"]


def test_one_fp32_sum_over_ranks_and_four_tensors_a_local_expert(model, tokens, monkeypatch):
    """Per MoE layer and token chunk. Launch inputs: weight and scale of two matrices an expert, rows, ids, ones."""
    harness, sums = model("tiny", True), []
    monkeypatch.setattr(experts, "tensor_model_parallel_all_reduce", lambda rows: (sums.append(rows), rows)[1])
    with meters.measure() as meter:
        harness.hidden(tokens(17))
    assert [(rows.dtype, tuple(rows.shape)) for rows in sums] == [(torch.float32, (17 * 3, 96))] * 7
    counted = meter.total()
    assert counted.moe_launches == 7
    assert counted.moe_tensor_inputs == 5 * (4 * 16 + 3) + 2 * (2 * 16 + 3)
