# SPDX-License-Identifier: Apache-2.0
"""CPU reference of Muse Spark's text model that streams a checkpoint layer by layer.

Three modes, each on BF16 or MXFP4 checkpoints (MXFP4 is decoded exactly):

* `fp32`: every step in fp32.
* `bf16`: every rounding point of the published eager model, bit for bit.
* `w4a16`: as served. BF16 activations between modules, but the residual stream,
  both norms before a blend, gains, the sum over experts and the logits stay
  fp32; the query scale is part of the score scale, scores are fp32.
"""

import torch
import torch.nn.functional as F

from gates.oracle.beam import steps as shared
from gates.oracle.checkpoint import Checkpoint, CheckpointError
from gates.oracle.muse import steps
from gates.oracle.muse.shape import MuseShape
from gates.oracle.muse.weights import MODES, MuseWeights, text_prefix
from gates.oracle.streaming import TILE, TILE_FROM, StreamingReference, Trace, no_trace


class MuseReference(StreamingReference):
    """Reference forward of one sequence of token ids.

    Args:
        path: checkpoint directory.
        mode: `fp32`, `bf16` or `w4a16`.
        expert_slices: `w4a16` only: tensor-parallel ranks that share an expert; the part of each is rounded
            to BF16 before the fp32 sum.
        wide_scores: `w4a16` only: attention scores and probabilities in fp32. A fused kernel may also keep them in
            BF16; the distance between the two is the least that can be asked of it.
        trace: called with (step name, tensor) for every step.
    """

    def __init__(
        self,
        path: str,
        mode: str = "bf16",
        expert_slices: int = 1,
        wide_scores: bool = True,
        trace: Trace = no_trace,
    ) -> None:
        if mode not in MODES:
            raise CheckpointError(f"mode {mode!r}: choose one of {', '.join(MODES)}")
        self.checkpoint = Checkpoint(path)
        self.shape = MuseShape.from_config(self.checkpoint.config)
        self.prefix = text_prefix(self.checkpoint)
        self.mode, self.dtype, self.trace = mode, MODES[mode], trace
        self.wide, self.expert_slices = mode == "w4a16", expert_slices
        self.stream_dtype = torch.float32 if self.wide else self.dtype
        self.score_dtype = self.stream_dtype if wide_scores else self.dtype

    def weights(self, layer: int | None = None) -> MuseWeights:
        """Weights of `layer`, or those outside the layers."""
        return MuseWeights(self.checkpoint, self.prefix + ("" if layer is None else f"layers.{layer}."), self.mode)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Residual stream [T, H] of token `ids` [T]: the rows of the table, normed without a weight."""
        rows = F.embedding(ids, self.weights().tensor("embed_tokens.weight"))
        return steps.unit_norm(rows, self.shape.rms_norm_eps, self.stream_dtype)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits [T, V] from the residual stream after the last layer."""
        shape = self.shape
        normed = steps.final_norm(hidden, self.weights().tensor("norm.weight"), shape.rms_norm_eps, self.dtype)
        self.trace("norm", normed)
        raw = MuseWeights(self.checkpoint, "", self.mode).matrix("lm_head")(normed)
        return steps.transform_logits(raw, shape.output_multiplier, shape.final_logit_softcapping, self.wide)

    def layer(self, index: int, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """One decoder layer on the residual stream [T, H]."""
        shape, weights = self.shape, self.weights(index)

        def note(name: str, value: torch.Tensor) -> torch.Tensor:
            self.trace(f"layers.{index}.{name}", value)
            return value

        def norm(name: str) -> torch.Tensor:
            weight = weights.tensor(f"{name}.weight")
            return note(name, steps.centred_norm(hidden, weight, shape.rms_norm_eps, self.wide, self.dtype))

        def blend(name: str, branch: torch.Tensor) -> torch.Tensor:
            gate = weights.fp32(f"{name}.gate")
            return note(name, steps.residual_gate(hidden, branch, gate, shape.residual_gate_temperature))

        branch = self._attention(index, weights, norm("input_layernorm"), positions, note)
        branch = steps.unit_norm(branch, shape.post_norm_eps, self.stream_dtype)
        hidden = blend("post_attention_residual_gate", note("post_attention_layernorm", branch))
        x = norm("pre_feedforward_layernorm")
        branch = note("mlp", self._moe(weights, x, note) if shape.is_sparse(index) else self._mlp(weights, x))
        branch = self._input_scaled("post_feedforward_layernorm", weights, branch, self.stream_dtype)
        return blend("post_feedforward_residual_gate", note("post_feedforward_layernorm", branch))

    def _input_scaled(self, name: str, weights: MuseWeights, x, dtype: torch.dtype) -> torch.Tensor:
        return steps.input_scaled_norm(x, weights.tensor(f"{name}.weight"), self.shape.post_norm_eps, self.wide, dtype)

    def _attention(self, index: int, weights: MuseWeights, x, positions, note) -> torch.Tensor:
        shape = self.shape
        q, k, v, gate = (
            note(f"{name}_proj", weights.matrix(f"self_attn.{name}_proj")(x)) for name in ("q", "k", "v", "gate")
        )
        q, k, v = (value.view(x.shape[0], -1, shape.head_dim) for value in (q, k, v))
        q, k = steps.unit_norm(q, shape.rms_norm_eps), steps.unit_norm(k, shape.rms_norm_eps)
        scale = shape.head_dim**-0.5
        if self.wide:
            scale *= shape.qk_scale_factor
        else:
            q = q * shape.qk_scale_factor
        theta = shape.layer_rope_theta[index]
        if theta:
            tables = shared.rope_tables(positions, shape.head_dim, theta)
            cos, sin = tables if self.wide else (table.to(self.dtype) for table in tables)
            q, k = shared.rotate(q, cos, sin), shared.rotate(k, cos, sin)
        note("q", q)
        note("k", k)
        tile = TILE if x.shape[0] > TILE_FROM else None
        q, k, v = (value.to(self.score_dtype) for value in (q, k, v))
        attended = shared.attention(q, k, v, positions, shape.window(index), tile, scale).to(self.dtype)
        note("attn", attended)
        normed_dtype = torch.float32 if self.wide else self.dtype
        normed = steps.unit_norm(attended, shape.rms_norm_eps, normed_dtype).flatten(1)
        gated = note("gated", steps.gate_output(normed, gate, self.wide))
        return note("self_attn", weights.matrix("self_attn.o_proj")(gated))

    def _mlp(self, weights: MuseWeights, x) -> torch.Tensor:
        gate, up = weights.matrix("mlp.gate_proj")(x), weights.matrix("mlp.up_proj")(x)
        return weights.matrix("mlp.down_proj")(steps.swiglu(gate, up))

    def _moe(self, weights: MuseWeights, x, note) -> torch.Tensor:
        """Latent mixture of experts; the router reads the hidden states before they are pooled."""
        shape = self.shape
        logits, route_weights, ids = steps.route(
            x,
            weights.fp32("mlp.gate.weight"),
            weights.fp32("mlp.gate.e_score_correction_bias"),
            shape.output_multiplier,
            shape.num_experts_per_tok,
            shape.routed_scaling_factor,
        )
        note("router_logits", logits)
        note("expert_ids", ids)
        note("expert_weights", route_weights)
        pooled = weights.matrix("mlp.pre_expert_proj")(x)
        norm = weights.tensor("mlp.pre_expert_norm.weight")
        latent = note("latent", steps.centred_norm(pooled, norm, shape.rms_norm_eps, self.wide, self.dtype))
        combined = note("experts", self.combine(weights, latent, route_weights, ids))
        return weights.matrix("mlp.post_expert_proj")(combined)

    def combine(self, weights: MuseWeights, latent, route_weights, ids) -> torch.Tensor:
        """[T, L] -> [T, L]: every expert row is normed, then weighted, then added.

        Experts by rising id, rounded after each add; as served, in fp32 with one rounding.
        """
        total = torch.zeros(latent.shape, dtype=self.stream_dtype)
        for expert in ids.unique().tolist():
            # Rows of one expert in order of (route, token), as the published model gathers them.
            route, token = torch.where(ids.T.eq(expert))
            gate_up, down = weights.expert(expert)
            gate, up = gate_up(latent[token]).chunk(2, dim=-1)
            rows = self._down(down, steps.swiglu(gate, up))
            rows = self._input_scaled("mlp.experts.post_expert_norm", weights, rows, self.stream_dtype)
            total.index_add_(0, token, (rows * route_weights[token, route, None]).to(total.dtype))
        return total.to(self.dtype)

    def _down(self, down, x: torch.Tensor) -> torch.Tensor:
        if not self.wide:
            return down(x)
        parts = zip(x.chunk(self.expert_slices, -1), down.weight.chunk(self.expert_slices, -1), strict=True)
        return sum(F.linear(part, weight).float() for part, weight in parts)
