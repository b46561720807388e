# SPDX-License-Identifier: Apache-2.0
"""Group-limited sigmoid routing, in fp32 from the logits to the weights.

The correction bias is a near-constant of about 28: in BF16 its differences, and
with them the choice of experts, are lost. Hence weight, bias and logits are fp32.
"""

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe import GateLinear

from vllm_gaudi.models.beam.config import BeamConfig

EPSILON = 1e-20  # keeps the weights finite when all chosen scores underflow


class BeamRouter(GateLinear):
    """Replicated fp32 projection [T, H] -> [T, E] with the correction bias [E] beside it."""

    def __init__(self, config: BeamConfig, prefix: str) -> None:
        super().__init__(
            config.hidden_size,
            config.num_experts,
            bias=False,
            params_dtype=torch.float32,
            out_dtype=torch.float32,
            prefix=prefix,
        )
        self.e_score_correction_bias = nn.Parameter(
            torch.zeros(config.num_experts, dtype=torch.float32), requires_grad=False
        )
        self.groups, self.kept_groups = config.n_group, config.topk_group

    def select(
        self, hidden_states: torch.Tensor, gating_output: torch.Tensor, topk: int, renormalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """vLLM's routing callback: fp32 logits [T, E] -> (weights [T, k] fp32, ids [T, k] int64)."""
        return route(gating_output, self.e_score_correction_bias, self.groups, self.kept_groups, topk)


def route(
    logits: torch.Tensor, bias: torch.Tensor, groups: int, kept_groups: int, top_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose `top_k` experts a token out of the `kept_groups` best groups.

    The bias takes part in the choice only; a group's score is the sum of its two
    best corrected scores. Weights are the plain sigmoid scores over their sum
    plus 1e-20. Ids fall by corrected score; ties are as torch.topk leaves them.
    """
    scores = torch.sigmoid(logits.float())
    choice = (scores + bias).unflatten(-1, (groups, -1))
    best = choice.topk(2, dim=-1).values.sum(dim=-1).topk(kept_groups, dim=-1).indices
    # fp32, as vLLM's own grouped routing: a bool scatter is not an operator of every device.
    keep = torch.zeros(choice.shape[:-1], dtype=scores.dtype, device=logits.device).scatter(-1, best, 1.0)
    choice = choice.masked_fill(keep.unsqueeze(-1) == 0, float("-inf")).flatten(-2)
    ids = choice.topk(top_k, dim=-1).indices
    weights = scores.gather(-1, ids)
    return weights / (weights.sum(dim=-1, keepdim=True) + EPSILON), ids
