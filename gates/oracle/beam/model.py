# SPDX-License-Identifier: Apache-2.0
"""CPU reference of Beam-1.0 that streams a checkpoint layer by layer.

Three modes:

* `fp32`: every step in fp32 on the dequantised weights.
* `bf16`: every rounding point of the published eager model, bit for bit.
* `w8a8`: FP8 as a Gaudi 2 runs it: halved weights, doubled scales, per-token
  activation scales to 240, routing weights rounded to bf16, the input of each
  expert's down projection quantised per token.

A run may start at any layer from given hidden states and stop after any other,
so parts of a large checkpoint can be scored on their own.
"""

import torch
import torch.nn.functional as F

from gates.oracle import fp8
from gates.oracle.beam import steps
from gates.oracle.beam.shape import BeamShape
from gates.oracle.beam.weights import MODES, LayerWeights
from gates.oracle.checkpoint import Checkpoint, CheckpointError
from gates.oracle.streaming import TILE, TILE_FROM, StreamingReference, Trace, no_trace


class BeamReference(StreamingReference):
    """Reference forward of one sequence.

    Args:
        path: checkpoint directory (BF16 or FP8, experts per tensor or packed).
        mode: `fp32`, `bf16` or `w8a8`.
        row_slices: W8A8 only: tensor-parallel ranks, each of which quantises its
            own part of the input of `o_proj` and of the dense `down_proj`.
        expert_slices: the same for the experts (1 under expert parallelism).
        wide_scores: attention scores and probabilities in fp32, as a fused kernel
            may keep them. The distance to the default is the noise floor.
        trace: called with (step name, tensor) for every step.
    """

    def __init__(
        self,
        path: str,
        mode: str = "bf16",
        row_slices: int = 1,
        expert_slices: int = 1,
        wide_scores: bool = False,
        trace: Trace = no_trace,
    ) -> None:
        if mode not in MODES:
            raise CheckpointError(f"mode {mode!r}: choose one of {', '.join(MODES)}")
        self.checkpoint = Checkpoint(path)
        self.shape = BeamShape.from_config(self.checkpoint.config)
        self.mode, self.dtype, self.trace = mode, MODES[mode], trace
        self.row_slices, self.expert_slices = row_slices, expert_slices
        self.score_dtype = torch.float32 if wide_scores else self.dtype

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Hidden states [T, H] of token `ids` [T]."""
        return F.embedding(ids, self.checkpoint.get("model.embed_tokens.weight").to(self.dtype))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits [T, V] from the residual stream after the last layer."""
        weights = LayerWeights(self.checkpoint, "", self.mode)
        normed = steps.rms_norm(hidden, weights.tensor("model.norm.weight"), self.shape.rms_norm_eps)
        self.trace("norm", normed)
        raw = weights.matrix("lm_head")(normed)
        self.trace("lm_head", raw)
        return steps.softcap(raw, self.shape.final_logit_softcapping).float()

    def layer(self, index: int, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """One decoder layer on the residual stream [T, H]."""
        eps = self.shape.rms_norm_eps
        weights = LayerWeights(self.checkpoint, f"model.layers.{index}.", self.mode)

        def note(name: str, value: torch.Tensor) -> torch.Tensor:
            self.trace(f"layers.{index}.{name}", value)
            return value

        def norm(name: str, x: torch.Tensor) -> torch.Tensor:
            return note(name, steps.rms_norm(x, weights.tensor(f"{name}.weight"), eps))

        x = norm("input_layernorm", hidden)
        x = note("self_attn", self._attention(index, weights, x, positions, note))
        x = norm("post_attention_layernorm", x)
        hidden = note("attention_residual", steps.residual_add(x, hidden, steps.residual_coefficients(index, 0)))
        x = norm("pre_feedforward_layernorm", hidden)
        x = note("mlp", self._moe(weights, x, note) if self.shape.is_sparse(index) else self._mlp(weights, x, note))
        x = norm("post_feedforward_layernorm", x)
        return note("mlp_residual", steps.residual_add(x, hidden, steps.residual_coefficients(index, 1)))

    def _attention(self, index, weights: LayerWeights, x, positions, note) -> torch.Tensor:
        shape = self.shape
        project = {
            name: note(f"{name}_proj", weights.matrix(f"self_attn.{name}_proj")(x)).view(x.shape[0], -1, shape.head_dim)
            for name in ("q", "k", "v", "gate")
        }
        q = note("q_norm", steps.rms_norm(project["q"], weights.tensor("self_attn.q_norm.weight"), shape.rms_norm_eps))
        k = note("k_norm", steps.rms_norm(project["k"], weights.tensor("self_attn.k_norm.weight"), shape.rms_norm_eps))
        if shape.is_full(index):
            window = None
            q = steps.scale_query(q, positions)
        else:
            window = shape.sliding_window
            cos, sin = steps.rope_tables(positions, shape.head_dim, shape.rope_theta)
            q, k = steps.rotate(q, cos, sin), steps.rotate(k, cos, sin)
        note("q", q)
        note("k", k)
        tile = TILE if x.shape[0] > TILE_FROM else None
        scored = (value.to(self.score_dtype) for value in (q, k, project["v"]))
        attended = note("attn", steps.attention(*scored, positions, window, tile).to(self.dtype))
        gated = steps.gate_output(attended, project["gate"], weights.tensor("self_attn.gate_bias"))
        return self._row_parallel(weights.matrix("self_attn.o_proj"), note("gated", gated).flatten(1))

    def _mlp(self, weights: LayerWeights, x, note) -> torch.Tensor:
        gate, up = weights.matrix("mlp.gate_proj")(x), weights.matrix("mlp.up_proj")(x)
        return self._row_parallel(weights.matrix("mlp.down_proj"), note("activation", steps.swiglu(gate, up)))

    def _row_parallel(self, matrix, x: torch.Tensor) -> torch.Tensor:
        """[T, K] -> [T, N] with one partial sum a rank, each rounded before they are added."""
        if matrix.scale is None or self.row_slices == 1:
            return matrix(x)
        return self._sliced(matrix, x, self.row_slices).to(x.dtype)

    def _moe(self, weights: LayerWeights, x, note) -> torch.Tensor:
        shape = self.shape
        logits = note("router_logits", steps.router_logits(x, weights.fp32("mlp.gate.weight")))
        bias = weights.fp32("mlp.gate.e_score_correction_bias")
        route_weights, ids = steps.route(
            logits, bias, shape.n_group, shape.topk_group, shape.num_experts_per_tok, shape.norm_topk_prob
        )
        note("expert_ids", ids)
        note("expert_weights", route_weights)
        combine = self._combine_w8a8 if self.mode == "w8a8" else self._combine
        routed = note("experts", combine(weights, x, route_weights, ids))
        return routed * shape.routed_scaling_factor

    def _combine(self, weights: LayerWeights, x, route_weights, ids) -> torch.Tensor:
        """Experts by rising id; each weighted output is rounded and added to a rounded accumulator."""
        total = torch.zeros_like(x)
        for expert in ids.unique().tolist():
            # Rows of one expert in order of (route, token), as the published model gathers them.
            route, token = torch.where(ids.T.eq(expert))
            gate_up, down = weights.expert(expert)
            gate, up = gate_up(x[token]).chunk(2, dim=-1)
            out = down(steps.swiglu(gate, up)) * route_weights[token, route, None]
            total.index_add_(0, token, out.to(total.dtype))
        return total

    def _combine_w8a8(self, weights: LayerWeights, x, route_weights, ids) -> torch.Tensor:
        """The fused expert kernel: E4M3 input and intermediate, bf16 routing weights, fp32 sum, one rounding.

        What the kernel rounds inside is not published; its products are rounded as those of the linear layers.
        """
        total = torch.zeros(x.shape, dtype=torch.float32)
        route_weights = route_weights.to(x.dtype).float()
        for expert in ids.unique().tolist():
            route, token = torch.where(ids.T.eq(expert))
            gate_up, down = weights.expert(expert)
            gate, up = gate_up(x[token]).chunk(2, dim=-1)
            activation = steps.swiglu(gate, up)
            out = down(activation).float() if down.scale is None else self._sliced(down, activation, self.expert_slices)
            total.index_add_(0, token, out * route_weights[token, route, None])
        return total.to(x.dtype)

    @staticmethod
    def _sliced(matrix, x: torch.Tensor, slices: int) -> torch.Tensor:
        """W8A8 product whose input is quantised per token over each of `slices` parts of K; fp32 sum of the parts."""
        width = x.shape[-1] // slices
        total = torch.zeros(x.shape[0], matrix.weight.shape[0])
        for start in range(0, x.shape[-1], width):
            part = slice(start, start + width)
            total += fp8.w8a8_linear(x[:, part], matrix.weight[:, part], matrix.scale).float()
        return total
