# SPDX-License-Identifier: Apache-2.0
"""The Muse reference against transformers' own model: bit for bit in BF16, to rounding in fp32."""

import pytest
import torch
from muse_models import published

from gates.checkpoints import muse
from gates.checkpoints.muse_shapes import SHAPES
from gates.oracle.checkpoint import CheckpointError
from gates.oracle.muse import steps
from gates.oracle.muse.model import MuseReference
from gates.oracle.score import reference

CELLS = [(shape, mxfp4, tokens) for shape in ("tiny", "crossed") for mxfp4 in (False, True) for tokens in (1, 17, 65)]
TOKENS = 17


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def make(shape, mxfp4=False):
        if (shape, mxfp4) not in made:
            path = tmp_path_factory.mktemp(f"muse-{shape}")
            made[shape, mxfp4] = muse.write(path, SHAPES[shape], mxfp4=mxfp4)
        return made[shape, mxfp4]

    return make


@pytest.fixture(scope="module")
def model(folder):
    made = {}

    def make(shape, mxfp4=False, dtype=torch.bfloat16):
        key = (shape, mxfp4, dtype)
        if key not in made:
            made[key] = published(folder(shape, mxfp4), dtype)
        return made[key]

    return make


def streams(model, ids):
    """Residual stream before each layer, and the normed output of the last."""
    seen = []
    hooks = [layer.register_forward_pre_hook(lambda m, a: seen.append(a[0][0].clone())) for layer in model.layers]
    with torch.inference_mode():
        final = model(ids[None], use_cache=False).last_hidden_state[0]
    for hook in hooks:
        hook.remove()
    return seen, final


def run(folder, mode, ids, **options):
    seen = {}
    made = MuseReference(folder, mode, trace=lambda name, value: seen.__setitem__(name, value), **options)
    return made, made(ids), seen


@pytest.mark.parametrize(("shape", "mxfp4", "tokens"), CELLS)
def test_bf16_layers_equal_the_published_ones_bit_for_bit(folder, model, token_ids, shape, mxfp4, tokens):
    """The whole free run: embedding, every layer's stream, final norm."""
    ids = token_ids(17, tokens)
    expected, final = streams(model(shape, mxfp4), ids)
    made, logits, seen = run(folder(shape, mxfp4), "bf16", ids)
    assert made.embed(ids).equal(expected[0])
    for layer, stream in enumerate(expected[1:]):
        assert seen[f"layers.{layer}.post_feedforward_residual_gate"].equal(stream), f"layer {layer}"
    assert seen["norm"].equal(final)
    assert logits.dtype == torch.float32
    assert logits.std() > 0.1, "logits are flat, the comparison would show nothing"


@pytest.mark.parametrize("shape", ["tiny", "crossed"])
def test_fp32_reference_agrees_with_the_published_model_in_fp32(folder, model, token_ids, shape):
    ids = token_ids(17, 65)
    final = streams(model(shape, dtype=torch.float32), ids)[1]
    got = run(folder(shape), "fp32", ids)[2]["norm"]
    difference = float((got - final).abs().max() / final.abs().max())
    print(f"fp32 {shape}: {difference:.2e}")
    assert difference < 1e-5


MODULES = {
    "input_layernorm": "input_layernorm",
    "self_attn.q_proj": "q_proj",
    "self_attn.gate_proj": "gate_proj",
    "post_attention_layernorm": "post_attention_layernorm",
    "post_attention_residual_gate": "post_attention_residual_gate",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "mlp.pre_expert_norm": "latent",
    "mlp.experts": "experts",
    "mlp": "mlp",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
}


def test_every_module_equals_the_published_one_bit_for_bit(folder, model, token_ids):
    ids, seen = token_ids(41, TOKENS), {}
    network = model("crossed")

    def keep(name):
        return lambda module, arguments, output: seen.__setitem__(name, output[0] if "attn" in name else output)

    hooks = [module.register_forward_hook(keep(name)) for name, module in network.named_modules() if name]
    router = [m for n, m in network.named_modules() if n.endswith("mlp.gate")]
    assert len(router) == 7
    streams(network, ids)
    for hook in hooks:
        hook.remove()
    trace = run(folder("crossed"), "bf16", ids)[2]
    for layer in range(8):
        at = f"layers.{layer}."
        for module, name in MODULES.items():
            if at + module not in seen:
                assert layer == 2, "only the dense layer lacks a module"
                continue
            got = seen[at + module]
            assert trace[at + name].equal(got.view(trace[at + name].shape)), at + module
        if layer != 2:
            logits, weights, ids_ = seen[f"{at}mlp.gate"]
            assert trace[f"{at}router_logits"].equal(logits)
            assert trace[f"{at}expert_weights"].equal(weights)
            assert trace[f"{at}expert_ids"].equal(ids_)


def test_logits_transform_is_the_published_one():
    raw = (torch.randn(64, 50, generator=torch.Generator().manual_seed(2)) * 30).to(torch.bfloat16)
    expected = torch.tanh(raw * 0.1767766952966369 / 20.0) * 20.0
    assert steps.transform_logits(raw, 0.1767766952966369, 20.0, wide=False).equal(expected.float())


def test_bias_changes_the_choice_and_not_the_weights(folder, token_ids):
    trace = run(folder("tiny"), "bf16", token_ids(17, 65))[2]
    scores = trace["layers.4.router_logits"].sigmoid()
    ids = trace["layers.4.expert_ids"]
    plain = scores.topk(3, dim=-1).indices
    assert (ids.sort(-1).values != plain.sort(-1).values).any(-1).float().mean() > 0.2
    assert torch.allclose(trace["layers.4.expert_weights"].sum(-1), torch.tensor(2.5))
    chosen = scores.gather(1, ids)
    torch.testing.assert_close(trace["layers.4.expert_weights"], 2.5 * chosen / chosen.sum(-1, keepdim=True))


def teacher_forced(folder, mode, exact, ids, **options):
    """Largest relative difference of one layer's output on the exact stream, over the layers."""
    made, place, worst = MuseReference(folder, mode, **options), torch.arange(ids.shape[0]), []
    stream = exact.embed(ids)
    with torch.inference_mode():
        for layer in range(8):
            after = exact.layer(layer, stream, place)
            got = made.layer(layer, stream.to(made.stream_dtype), place).float()
            worst.append(float((got - after).norm() / after.norm()))
            stream = after
    return worst


def test_served_numerics_stay_nearer_to_fp32_than_the_published_rounding(folder, token_ids):
    """One layer at a time on the fp32 stream: rounding apart, all three modes are one model."""
    exact = MuseReference(folder("crossed", True), "fp32")
    served = teacher_forced(folder("crossed", True), "w4a16", exact, token_ids(17, TOKENS))
    rounded = teacher_forced(folder("crossed", True), "bf16", exact, token_ids(17, TOKENS))
    print("served", served, "published", rounded)
    assert sorted(served)[4] < sorted(rounded)[4] < 0.02
    assert max(served) < 0.05


def test_expert_slices_are_another_rounding_of_the_same_sum(folder, token_ids):
    exact = MuseReference(folder("tiny", True), "fp32")
    served = teacher_forced(folder("tiny", True), "w4a16", exact, token_ids(17, TOKENS), expert_slices=4)
    assert max(served) < 0.05


@pytest.mark.parametrize("fault", ["norm-after-weight", "gain-without-one", "router-on-latent-multiplier"])
def test_a_known_fault_shows(folder, model, token_ids, monkeypatch, fault):
    ids = token_ids(17, TOKENS)
    good = run(folder("tiny"), "bf16", ids)[2]["norm"]
    if fault == "norm-after-weight":

        def combine(self, weights, latent, route_weights, chosen):
            # The router weight before the norm, which then erases it.
            ones = torch.ones_like(route_weights) / route_weights.shape[-1]
            return original(self, weights, latent, ones, chosen)

        original = MuseReference.combine
        monkeypatch.setattr(MuseReference, "combine", combine)
    elif fault == "gain-without-one":
        monkeypatch.setattr(steps, "gain", lambda weight, wide: weight.float())
    else:
        route = steps.route
        monkeypatch.setattr(steps, "route", lambda x, w, b, m, k, s: route(x, w, b, 1.0, k, s))
    assert not run(folder("tiny"), "bf16", ids)[2]["norm"].equal(good)


@pytest.mark.parametrize(("width", "first"), [(7, 7), (9, 8)])
def test_a_window_of_another_width_differs_first_at_its_edge(folder, token_ids, width, first):
    from dataclasses import replace

    ids = token_ids(17, TOKENS)
    made = MuseReference(folder("tiny"), "bf16")
    right = made(ids)
    made.shape = replace(made.shape, sliding_window=width)
    assert int((right != made(ids)).any(-1).nonzero()[0]) == first


def test_score_knows_muse_and_refuses_unknown_modes(folder):
    assert isinstance(reference(folder("tiny"), "w4a16"), MuseReference)
    with pytest.raises(CheckpointError, match="mode 'w8a8': choose one of fp32, bf16, w4a16"):
        MuseReference(folder("tiny"), "w8a8")
