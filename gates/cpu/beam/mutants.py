# SPDX-License-Identifier: Apache-2.0
"""Known faults of a Beam port, each as a change to the running model code.

A mutant names the check of `step_checks` (or the measurement below) that must
see it. Faults that the sandwich norms hide from the logits are measured on the
step itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from vllm_gaudi.models.beam import attention, layers, loading, model, moe, router

Patch = Callable[[object], None]  # takes pytest's monkeypatch


@dataclass(frozen=True)
class Mutant:
    """`apply` changes the code; `check` must then exceed its limit on a pass of `tokens` tokens."""

    name: str
    check: str
    apply: Patch
    tokens: int = 129
    fp8: bool = False


def _attribute(owner, name: str, value) -> Patch:
    return lambda patch: patch.setattr(owner, name, value)


def _coefficients(change: Callable[[int, int], int]) -> Patch:
    def wrong(layer: int, sublayer: int) -> tuple[float, float]:
        n = change(layer, sublayer)
        return 1 / math.sqrt(n), math.sqrt((n - 1) / n)

    return _attribute(layers, "residual_coefficients", wrong)


def _norm(formula) -> Patch:
    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return formula(self.weight, wide, x.dtype)

    return _attribute(layers.BeamRMSNorm, "forward", forward)


def _route(**change) -> Patch:
    """The routing rule with one part replaced."""

    def wrong(logits, bias, groups, kept_groups, top_k):
        bias = change.get("bias", lambda b: b)(bias)
        scores = torch.sigmoid(change.get("logits", lambda x: x)(logits.float()))
        choice = change.get("choice", lambda c: c)(scores + bias).unflatten(-1, (groups, -1))
        group = change.get("group", lambda c: c.topk(2, dim=-1).values.sum(-1))(choice)
        best = group.topk(groups if change.get("unlimited") else kept_groups, dim=-1).indices
        keep = torch.zeros(choice.shape[:-1], dtype=torch.bool).scatter(-1, best, True)
        choice = choice.masked_fill(~keep.unsqueeze(-1), float("-inf")).flatten(-2)
        ids = choice.topk(top_k, dim=-1).indices
        weights = change.get("weigh", lambda s, c: s)(scores, scores + bias).gather(-1, ids)
        return change.get("normalize", lambda w: w / (w.sum(-1, keepdim=True) + 1e-20))(weights), ids

    return _attribute(router, "route", wrong)


def _share(weights):
    return weights / (weights.sum(-1, keepdim=True) + 1e-20)


def _bf16_gate(self, x):
    return F.linear(x.float(), self.weight.bfloat16().float()), None


def _position(change) -> Patch:
    return _attribute(attention.BeamAttention, "position", change)


_POSITION = attention.BeamAttention.position


def _rope_everywhere(self, q, k, tables):
    cos, sin, _ = tables
    return layers.rotate(q, cos, sin, self.rounding), layers.rotate(k, cos, sin, self.rounding)


def _no_query_scale(self, q, k, tables):
    return (q, k) if self.full else _rope_everywhere(self, q, k, tables)


def _rope_in_bf16(self, q, k, tables):
    cos, sin, scale = tables
    tables = (cos.bfloat16().float(), sin.bfloat16().float(), scale)
    return _POSITION(self, q, k, tables)


def _scale_without_plus_one(patch) -> None:
    made = layers.Positions.__init__

    def init(self, rows, head_dim, theta):
        made(self, rows, head_dim, theta)
        self.query_scale = torch.exp(0.1 * torch.log1p(torch.arange(rows, dtype=torch.float32) / 2048))

    patch.setattr(layers.Positions, "__init__", init)


def _rope_before_norm(patch) -> None:
    """RoPE on the raw projections of the sliding layers, then the QK norm."""

    def forward(self, x, tables):
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        qkv, _ = self.qkv_proj(x)
        gate, _ = self.output_gate_proj(x)
        q, k, v = qkv.split([q_size, kv_size, kv_size], dim=-1)
        q, k = (t.unflatten(-1, (-1, self.head_dim)) for t in (q, k))
        if not self.full:
            q, k = self.position(q, k, tables)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.full:
            q, k = self.position(q, k, tables)
        attended = self.attn(q.flatten(-2), k.flatten(-2), v)
        gated = self.gate(attended.unflatten(-1, (-1, self.head_dim)), gate.unflatten(-1, (-1, self.head_dim)))
        return self.o_proj(gated.flatten(-2))[0]

    patch.setattr(attention.BeamAttention, "forward", forward)


def _window(change: int) -> Patch:
    made = attention.Attention

    def build(*args, per_layer_sliding_window=None, **kwargs):
        window = None if per_layer_sliding_window is None else per_layer_sliding_window + change
        return made(*args, per_layer_sliding_window=window, **kwargs)

    def apply(patch) -> None:
        patch.setattr(attention, "Attention", build)
        # Without cached context the kernel's mask is built from the model's window, not the layer's.
        from vllm_gaudi.v1.worker.hpu_model_runner import HPUAttentionMetadataProcessor as Processor

        original = Processor._set_attn_bias_for_sliding_window

        def bias(self, metadata, batch, length, window, device, dtype):
            return original(self, metadata, batch, length, window + change, device, dtype)

        patch.setattr(Processor, "_set_attn_bias_for_sliding_window", bias)

    return apply


def _gate(formula) -> Patch:
    return _attribute(attention.BeamAttention, "gate", formula)


def _bf16_silu(gate_up, rounding):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _swapped(gate_up, rounding):
    up, gate = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def _moe_scale(factor: float) -> Patch:
    made = moe.BeamMoE.__init__

    def init(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.routed_scale = factor

    return _attribute(moe.BeamMoE, "__init__", init)


def _experts_mixed_up(patch) -> None:
    """Expert tensors loaded one place further on."""
    original = loading.unpack

    def shifted(name, tensor, config):
        for part, value in original(name, tensor, config):
            head, found, tail = part.partition(".mlp.experts.")
            if found:
                expert, _, rest = tail.partition(".")
                part = f"{head}{found}{(int(expert) + 1) % config.num_experts}.{rest}"
            yield part, value

    patch.setattr(loading, "unpack", shifted)


def _no_rescale(patch) -> None:
    """FP8 weights halved without their scales doubled, as a loader that skips scales would leave them."""
    from vllm_gaudi.extension import ops

    original = ops.gaudi_weight_wrapper

    def wrapper(loader):
        rescaled = original(loader)

        def load(*args, **kwargs):
            tensor = kwargs.get("loaded_weight", args[1] if len(args) > 1 else None)
            return (rescaled if tensor.dtype == torch.float8_e4m3fn else loader)(*args, **kwargs)

        return load

    patch.setattr(ops, "gaudi_weight_wrapper", wrapper)


def _rough_softcap(logits, cap, rounding):
    return torch.tanh(logits / cap) * cap


def _multiplied_softcap(logits, cap, rounding):
    return torch.tanh(logits.float() * (1 / cap)) * cap


MUTANTS = [
    Mutant("residual index one too small", "residuals", _coefficients(lambda i, s: max(2, 2 * (i + 1) + s - 1))),
    Mutant("MLP add reuses the attention index", "residuals", _coefficients(lambda i, s: 2 * (i + 1))),
    Mutant("norm weight is 1 + w", "norms", _norm(lambda w, x, t: ((1 + w.float()) * x).to(t))),
    Mutant("norm rounds before its weight", "norms", _norm(lambda w, x, t: (w * x.to(t)).to(t))),
    Mutant("window one token wider", "scores", _window(+1)),
    Mutant("window one token narrower", "scores", _window(-1)),
    Mutant("RoPE before the QK norm", "wiring", _rope_before_norm),
    Mutant("RoPE on full layers", "positions", _position(_rope_everywhere)),
    Mutant("RoPE tables in bf16", "positions", _position(_rope_in_bf16)),
    Mutant("query scale left out", "positions", _position(_no_query_scale)),
    Mutant("query scale without the + 1", "positions", _scale_without_plus_one),
    Mutant("gate bias dropped", "gates", _gate(lambda self, a, g: (a * torch.sigmoid(g)).to(a.dtype))),
    Mutant(
        "sigmoid of the gate not rounded",
        "gates",
        _gate(lambda self, a, g: (a.float() * torch.sigmoid((g + self.gate_bias[:, None]).float())).to(a.dtype)),
    ),
    Mutant("SiLU in bf16", "activations", _attribute(moe, "swiglu", _bf16_silu)),
    Mutant("gate and up swapped", "activations", _attribute(moe, "swiglu", _swapped)),
    Mutant("router logits in bf16", "expert_weights", _route(logits=lambda x: x.bfloat16().float())),
    Mutant("router weight cast to bf16", "router_logits", _attribute(router.BeamRouter, "forward", _bf16_gate)),
    Mutant("corrected scores in bf16", "expert_ids", _route(choice=lambda c: c.bfloat16().float())),
    Mutant("correction bias stored in bf16", "expert_ids", _route(bias=lambda b: b.bfloat16().float())),
    Mutant("correction bias left out", "expert_ids", _route(bias=torch.zeros_like)),
    Mutant("correction bias in the weights", "expert_weights", _route(weigh=lambda s, c: c)),
    Mutant("group scored by its best expert", "expert_ids", _route(group=lambda c: c.amax(-1))),
    Mutant("no group limit", "expert_ids", _route(unlimited=True)),
    Mutant("weights not normalised", "expert_weights", _route(normalize=lambda w: w)),
    Mutant("weights in bf16", "expert_weights", _route(normalize=lambda w: _share(w).bfloat16().float())),
    Mutant("epsilon left out", "epsilon", _route(normalize=lambda w: w / w.sum(-1, keepdim=True))),
    Mutant("routed scale in the weights", "expert_weights", _route(normalize=lambda w: 2.5 * _share(w))),
    Mutant("routed scale missing", "routed_scale", _moe_scale(1.0)),
    Mutant("experts loaded one place on", "experts", _experts_mixed_up),
    Mutant("FP8 scales not doubled", "projections", _no_rescale, fp8=True),
    Mutant("softcap in bf16", "head", _attribute(model, "softcap", _rough_softcap)),
    Mutant("softcap by 1/30", "head", _attribute(model, "softcap", _multiplied_softcap)),
]
