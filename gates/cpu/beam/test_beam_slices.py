# SPDX-License-Identifier: Apache-2.0
"""Experts run in slices: the numerics of tensor parallelism under expert parallelism, and refusals."""

from types import SimpleNamespace

import pytest
import torch

from gates.oracle.beam.model import BeamReference
from gates.oracle.beam.weights import LayerWeights
from vllm_gaudi.models.beam.expert_slices import SlicedExperts, slice_after_loading

LAYER = "model.layers.3."
FLAG = "VLLM_BEAM_EXPERT_SLICES"


@pytest.fixture(scope="module")
def case(run_pass):
    """(routed experts layer, its input, ids, bf16 weights, the pass)."""
    run = run_pass("grid8", 17, 129, fp8=True)
    layer = run.harness.model.get_submodule(LAYER + "mlp.experts.routed_experts")
    x, logits = run.inputs(LAYER + "mlp.experts")
    weights, ids = layer.custom_routing_function(x.to("hpu"), logits.to("hpu"), layer.top_k, layer.renormalize)
    return layer, x.to("hpu"), ids, weights, run


def call(operator, x, ids, weights):
    with torch.inference_mode():
        return operator(x, ids, weights.to(x.dtype), permuted_weights=True, activation="silu").cpu()


@pytest.mark.parametrize("slices", [2, 4])
def test_slices_match_the_reference_with_as_many_slices(case, checkpoint, slices):
    layer, x, ids, weights, run = case
    got = call(SlicedExperts(layer.moe_op, layer, slices), x, ids, weights)
    reference = BeamReference(checkpoint("grid8", 17, fp8=True), "w8a8", expert_slices=slices)
    read = LayerWeights(reference.checkpoint, LAYER, "w8a8")
    expected = reference._combine_w8a8(read, x.cpu(), weights.cpu(), ids.cpu())
    whole = run.output(LAYER + "mlp.experts").reshape(expected.shape)
    size = expected.abs().max()
    assert (got - expected).abs().max() <= size / 16
    # Nearer to the sliced reference than to the unsliced kernel: the slices do something.
    assert (got - expected).abs().float().mean() < (got - whole).abs().float().mean()


def test_one_slice_is_the_kernel_itself(case):
    layer, x, ids, weights, run = case
    got = call(SlicedExperts(layer.moe_op, layer, 1), x, ids, weights)
    assert got.equal(run.output(LAYER + "mlp.experts").reshape(got.shape))


def test_slices_multiply_the_entries_and_keep_the_rank_range(case):
    layer = case[0]
    sliced = SlicedExperts(layer.moe_op, layer, 4).operator
    assert (sliced.num_experts, sliced.experts_min, sliced.experts_max) == (64, 0, 63)
    assert sliced.w2_list[5].weight.shape == (64, 8)


def test_refusals_name_the_setting(case, model):
    layer = case[0]
    with pytest.raises(ValueError, match=f"{FLAG}=2: only with --enable-expert-parallel"):
        slice_after_loading(layer, 2, LAYER)
    shaped = SimpleNamespace(use_ep=True, w2_weight=layer.w2_weight, w13_weight_scale=layer.w13_weight_scale)
    with pytest.raises(ValueError, match=f"{FLAG}=3: does not divide moe_intermediate_size 32"):
        slice_after_loading(shaped, 3, LAYER)
    with pytest.raises(ValueError, match="are not FP8"):
        slice_after_loading(SimpleNamespace(use_ep=True), 2, LAYER)


def test_operator_is_replaced_after_the_weights_are_processed(case):
    """In the order vLLM processes a layer: first its own method, then the slices of what that built."""
    layer = case[0]
    method = SimpleNamespace(process_weights_after_loading=lambda module: setattr(module, "moe_op", layer.moe_op))
    module = SimpleNamespace(
        use_ep=True,
        quant_method=method,
        local_num_experts=layer.local_num_experts,
        **{name: getattr(layer, name) for name in ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")},
    )
    slice_after_loading(module, 2, LAYER)
    assert not hasattr(module, "moe_op")
    method.process_weights_after_loading(module)
    assert isinstance(module.moe_op, SlicedExperts)
    # The slices are copies; with the stacks kept as well, the experts would not fit a card.
    assert module.w13_weight.numel() == module.w2_weight.numel() == 0
    assert layer.w13_weight.numel() > 0, "another holder of the stacks keeps them"
