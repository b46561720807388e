# SPDX-License-Identifier: Apache-2.0
"""Every step of a Beam prompt pass against the CPU reference, each on its own input.

A check returns the largest difference found over all layers. Steps that are
plain arithmetic must be equal to the last bit; what runs in a kernel of the
device (scores, fused experts, FP8 products) has a tolerance with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from harness import Harness

from gates.oracle.beam import steps
from gates.oracle.beam.model import BeamReference
from gates.oracle.beam.weights import LayerWeights


@dataclass
class Pass:
    """One recorded prompt pass beside its reference (of the mode the checkpoint runs in)."""

    harness: Harness
    reference: BeamReference
    ids: torch.Tensor
    seen: dict = field(init=False)

    def __post_init__(self) -> None:
        self.seen = self.harness.record(self.ids)
        self.shape = self.reference.shape
        self.place = torch.arange(self.ids.shape[0])

    def layers(self, kind: Callable[[int], bool] = lambda index: True) -> Iterator[tuple[int, str, LayerWeights]]:
        """(index, module prefix, weights) of the layers of a kind."""
        for index in range(self.shape.num_hidden_layers):
            if kind(index):
                prefix = f"model.layers.{index}."
                yield index, prefix, LayerWeights(self.reference.checkpoint, prefix, self.reference.mode)

    def output(self, name: str) -> torch.Tensor:
        """Output [T, ...] of a module."""
        return self._flat(self.seen[name][1])

    def inputs(self, name: str) -> list[torch.Tensor]:
        """Inputs [T, ...] of a module."""
        return [self._flat(value) for value in self.seen[name][0]]

    def _flat(self, value: torch.Tensor) -> torch.Tensor:
        value = value.cpu()
        return value[0] if value.dim() > 2 and value.shape[0] == 1 else value

    def heads(self, value: torch.Tensor) -> torch.Tensor:
        return value.reshape(value.shape[0], -1, self.shape.head_dim)


def difference(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference; infinite for another dtype or a NaN."""
    if got.dtype != expected.dtype:
        return float("inf")
    largest = float((got.reshape(expected.shape).double() - expected.double()).abs().max())
    return largest if largest == largest else float("inf")


def norms(run: Pass) -> float:
    worst = 0.0
    eps = run.shape.rms_norm_eps
    names = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for _, at, weights in run.layers():
        for name in [*names, "self_attn.q_norm", "self_attn.k_norm"]:
            expected = steps.rms_norm(run.inputs(at + name)[0], weights.tensor(f"{name}.weight"), eps)
            worst = max(worst, difference(run.output(at + name), expected))
    final = LayerWeights(run.reference.checkpoint, "", run.reference.mode).tensor("model.norm.weight")
    return max(worst, difference(run.output("model.norm"), steps.rms_norm(run.inputs("model.norm")[0], final, eps)))


def wiring(run: Pass) -> float:
    """Number of modules that do not get the output of the module before them."""
    wrong = 0
    stream = run._flat(run.seen["model.embed_tokens"][1])
    for _, at, _ in run.layers():
        qkv, head = run.output(at + "self_attn.qkv_proj"), run.shape.head_dim
        sizes = [run.shape.num_attention_heads * head, *[run.shape.num_key_value_heads * head] * 2]
        q, k, v = qkv.split(sizes, dim=-1)
        attended, fed = run.output(at + "add_attention"), run.output(at + "post_feedforward_layernorm")
        edges = [
            ("input_layernorm", 0, stream),
            ("self_attn", 0, run.output(at + "input_layernorm")),
            ("self_attn.q_norm", 0, q),
            ("self_attn.k_norm", 0, k),
            ("self_attn.attn", 2, v),
            ("post_attention_layernorm", 0, run.output(at + "self_attn")),
            ("add_attention", 0, run.output(at + "post_attention_layernorm")),
            ("add_attention", 1, stream),
            ("pre_feedforward_layernorm", 0, attended),
            ("mlp", 0, run.output(at + "pre_feedforward_layernorm")),
            ("post_feedforward_layernorm", 0, run.output(at + "mlp")),
            ("add_mlp", 0, fed),
            ("add_mlp", 1, attended),
        ]
        wrong += sum(not run.inputs(at + name)[place].reshape(x.shape).equal(x) for name, place, x in edges)
        stream = run.output(at + "add_mlp")
    return float(wrong + (not run.inputs("model.norm")[0].equal(stream)))


def residuals(run: Pass) -> float:
    worst = 0.0
    for index, at, _ in run.layers():
        for sublayer, name in enumerate(("add_attention", "add_mlp")):
            branch, stream = run.inputs(at + name)
            expected = steps.residual_add(branch, stream, steps.residual_coefficients(index, sublayer))
            worst = max(worst, difference(run.output(at + name), expected))
    return worst


def projections(run: Pass) -> float:
    """All linear layers but the experts. FP8: relative to the largest output, one bf16 step."""
    worst = 0.0
    fused = {
        "self_attn.qkv_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "self_attn.output_gate_proj": ["self_attn.gate_proj"],
        "self_attn.o_proj": ["self_attn.o_proj"],
        "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp.down_proj": ["mlp.down_proj"],
    }
    for _, at, weights in run.layers():
        for name, parts in fused.items():
            if at + name not in run.seen:
                continue
            x = run.inputs(at + name)[0]
            expected = torch.cat([weights.matrix(part)(x) for part in parts], dim=-1)
            worst = max(worst, difference(run.output(at + name), expected) / _size(run, expected))
    return worst


def _size(run: Pass, value: torch.Tensor) -> float:
    return 1.0 if run.reference.mode != "w8a8" else float(value.abs().max())


def positions(run: Pass) -> float:
    """RoPE or the query scale, from the QK norms to the inputs of the score kernel."""
    worst = 0.0
    for index, at, _ in run.layers():
        q, k = run.heads(run.output(at + "self_attn.q_norm")), run.heads(run.output(at + "self_attn.k_norm"))
        if run.shape.is_full(index):
            q = steps.scale_query(q, run.place)
        else:
            cos, sin = steps.rope_tables(run.place, run.shape.head_dim, run.shape.rope_theta)
            q, k = steps.rotate(q, cos, sin), steps.rotate(k, cos, sin)
        got_q, got_k, _ = run.inputs(at + "self_attn.attn")
        worst = max(worst, difference(run.heads(got_q), q), difference(run.heads(got_k), k))
    return worst


def scores(run: Pass) -> float:
    """Attention core, relative to the largest output: the kernel rounds scores elsewhere."""
    worst = 0.0
    for index, at, _ in run.layers():
        q, k, v = (run.heads(value).float() for value in run.inputs(at + "self_attn.attn"))
        window = None if run.shape.is_full(index) else run.shape.sliding_window
        expected = steps.attention(q, k, v, run.place, window, None)
        got = run.heads(run.output(at + "self_attn.attn")).float()
        worst = max(worst, difference(got, expected) / float(expected.abs().max()))
    return worst


def gates(run: Pass) -> float:
    """Sigmoid output gate with the bias of each head."""
    worst = 0.0
    for _, at, weights in run.layers():
        attended = run.heads(run.output(at + "self_attn.attn"))
        gate = run.heads(run.output(at + "self_attn.output_gate_proj"))
        expected = steps.gate_output(attended, gate, weights.tensor("self_attn.gate_bias"))
        worst = max(worst, difference(run.inputs(at + "self_attn.o_proj")[0], expected.flatten(1)))
    return worst


def activations(run: Pass) -> float:
    """SwiGLU of the dense layers."""
    worst = 0.0
    for _, at, _ in run.layers(lambda i: not run.shape.is_sparse(i)):
        gate, up = run.output(at + "mlp.gate_up_proj").chunk(2, dim=-1)
        worst = max(worst, difference(run.inputs(at + "mlp.down_proj")[0], steps.swiglu(gate, up)))
    return worst


def router_logits(run: Pass) -> float:
    worst = 0.0
    for _, at, weights in run.layers(run.shape.is_sparse):
        expected = steps.router_logits(run.inputs(at + "mlp.gate")[0], weights.fp32("mlp.gate.weight"))
        worst = max(worst, difference(run.output(at + "mlp.gate"), expected))
    return worst


def _selected(run: Pass, at: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel's routing callback returns for the logits it was given."""
    layer = run.harness.model.get_submodule(at + "mlp.experts.routed_experts")
    x, logits = run.inputs(at + "mlp.experts")
    with torch.inference_mode():
        return layer.custom_routing_function(x.to("hpu"), logits.to("hpu"), layer.top_k, layer.renormalize)


def _expected_route(run: Pass, at: str, weights: LayerWeights) -> tuple[torch.Tensor, torch.Tensor]:
    shape = run.shape
    bias = weights.fp32("mlp.gate.e_score_correction_bias")
    logits = run.inputs(at + "mlp.experts")[1]
    return steps.route(logits, bias, shape.n_group, shape.topk_group, shape.num_experts_per_tok)


def expert_ids(run: Pass) -> float:
    """Number of (token, route) places with another expert."""
    wrong = 0
    for _, at, weights in run.layers(run.shape.is_sparse):
        wrong += int((_selected(run, at)[1].cpu().long() != _expected_route(run, at, weights)[1]).sum())
    return float(wrong)


def expert_weights(run: Pass) -> float:
    worst = 0.0
    for _, at, weights in run.layers(run.shape.is_sparse):
        worst = max(worst, difference(_selected(run, at)[0].cpu(), _expected_route(run, at, weights)[0]))
    return worst


def epsilon(run: Pass) -> float:
    """Weights when every score underflows: zero, not NaN."""
    _, at, _ = next(run.layers(run.shape.is_sparse))
    layer = run.harness.model.get_submodule(at + "mlp.experts.routed_experts")
    logits = torch.full((2, run.shape.num_experts), -200.0, device="hpu")
    with torch.inference_mode():
        weights, _ = layer.custom_routing_function(logits, logits, layer.top_k, layer.renormalize)
    return difference(weights.cpu(), torch.zeros(2, layer.top_k))


def experts(run: Pass) -> float:
    """Fused experts before the routed scale, relative to the largest output: sums in another order."""
    worst = 0.0
    for _, at, weights in run.layers(run.shape.is_sparse):
        x = run.inputs(at + "mlp.experts")[0]
        route_weights, ids = _expected_route(run, at, weights)
        if run.reference.mode == "w8a8":
            expected = run.reference._combine_w8a8(weights, x, route_weights, ids)
        else:
            expected = run.reference._combine(weights, x, route_weights, ids)
        got = run.output(at + "mlp.experts").reshape(expected.shape)
        worst = max(worst, difference(got, expected) / float(expected.abs().max()))
    return worst


def routed_scale(run: Pass) -> float:
    worst = 0.0
    for _, at, _ in run.layers(run.shape.is_sparse):
        routed = run.output(at + "mlp.experts")
        expected = routed * run.shape.routed_scaling_factor
        worst = max(worst, difference(run.output(at + "mlp"), expected))
    return worst


def head(run: Pass) -> float:
    """Logits of the recorded final states: head in the model dtype, softcap and result in fp32."""
    hidden = run.output("model.norm")
    weights = LayerWeights(run.reference.checkpoint, "", run.reference.mode)
    raw = F.linear(hidden, weights.tensor("lm_head.weight"))
    with torch.inference_mode():
        got = run.harness.model.compute_logits(hidden.to("hpu")).cpu()
    return difference(got, steps.softcap(raw, run.shape.final_logit_softcapping).float())


@dataclass(frozen=True)
class Check:
    """A measurement and what it may be at most in bf16 and in FP8."""

    measure: Callable[[Pass], float]
    bf16: float = 0.0
    w8a8: float = 0.0

    def limit(self, mode: str) -> float:
        return self.w8a8 if mode == "w8a8" else self.bf16


BF16_STEP = 2.0**-8
CHECKS = {
    "wiring": Check(wiring),
    "norms": Check(norms),
    "residuals": Check(residuals),
    # FP8: fp32 sums in another order, then one rounding to bf16.
    "projections": Check(projections, w8a8=BF16_STEP),
    "positions": Check(positions),
    # Scores and probabilities are rounded at other places: a few bf16 steps of the largest value.
    "scores": Check(scores, bf16=4 * BF16_STEP, w8a8=4 * BF16_STEP),
    "gates": Check(gates),
    "activations": Check(activations),
    # fp32 sums may be taken in another order when the buffer lies elsewhere; the choice below is on equal logits.
    "router_logits": Check(router_logits, bf16=2e-6, w8a8=2e-6),
    "expert_ids": Check(expert_ids),
    "expert_weights": Check(expert_weights),
    "epsilon": Check(epsilon),
    # Routing weights in bf16 and up to eight rounded summands; FP8 also rounds intermediates to E4M3 (1/16).
    "experts": Check(experts, bf16=4 * BF16_STEP, w8a8=1 / 16),
    "routed_scale": Check(routed_scale),
    "head": Check(head),
}
