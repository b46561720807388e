# SPDX-License-Identifier: Apache-2.0
"""Routed experts whose rows are normed before they are weighted.

The fused kernel returns the weighted sum over a token's experts, but here every expert's row goes through a norm first,
and the norm needs the sum over the ranks that share the expert. So each (token, route) pair is a row of its own with
one route and weight one; the rows are summed over all ranks in fp32, then normed, weighted and added.
"""

import torch
from torch import nn
from vllm.distributed import tensor_model_parallel_all_reduce

from vllm_gaudi.loader.region import Region
from vllm_gaudi.models.muse_spark.expert_ops import ExpertOperator, ExpertWeights
from vllm_gaudi.models.muse_spark.norms import WeightedNorm
from vllm_gaudi.models.muse_spark.placement import GROUP, Placement

PARTS = {"gate": "w13", "up": "w13", "down": "w2"}


class MuseExperts(nn.Module):
    """Experts of one layer on one rank.

    Args:
        placement: this rank's share.
        packed: MXFP4 instead of BF16.
        eps: of the norm of the rows.
        operator: the expert kernel.
        chunk_bytes: most bytes of fp32 rows at once.
    """

    def __init__(
        self, placement: Placement, packed: bool, eps: float, operator: ExpertOperator, chunk_bytes: int, dtype
    ) -> None:
        super().__init__()
        self.placement, self.packed, self.operator = placement, packed, operator
        self.chunk_bytes, self.dtype = chunk_bytes, dtype
        experts, latent, width = placement.local_experts, placement.latent, placement.width
        shapes = {"w13": (experts, 2 * width, latent), "w2": (experts, latent, width)}
        for name, shape in shapes.items():
            if packed:
                self._empty(name, (*shape[:2], shape[2] // 2), torch.uint8)
                self._empty(f"{name}_scale", (*shape[:2], shape[2] // GROUP), torch.uint8)
            else:
                self._empty(name, shape, dtype)
        self.post_expert_norm = WeightedNorm(latent, eps, "input", torch.float32)

    def _empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.register_parameter(name, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))

    @property
    def weights(self) -> ExpertWeights:
        """The local experts as the operator takes them."""
        scales = (self.w13_scale, self.w2_scale) if self.packed else ()
        return ExpertWeights(self.w13, self.w2, *scales)

    def load(self, expert: int, part: str, kind: str, tensor: torch.Tensor) -> str:
        """Copy this rank's share of one matrix, or nothing when the expert lives elsewhere.

        Args:
            expert: global id.
            part: `gate`, `up` or `down`.
            kind: `weight` or `weight_scale`.
            tensor: the whole matrix [out, in] as stored.

        Returns:
            Name of the parameter.
        """
        name = PARTS[part] + ("_scale" if kind == "weight_scale" else "")
        index = self.placement.local_index(expert)
        if index is not None:
            target = getattr(self, name).data[index]
            if part == "down":
                target.copy_(self.placement.columns(tensor))
            else:
                start = self.placement.width if part == "up" else 0
                target.narrow(0, start, self.placement.width).copy_(self.placement.rows(tensor))
        return name

    def expert_regions(self, expert: int, part: str, kind: str) -> tuple[tuple[int, int], Region | None]:
        """What of one matrix this rank keeps, for a loader that plans (vllm_gaudi.loader.placement).

        Returns:
            (rows, columns) of the whole matrix as stored; its kept part in the parameter as a matrix, None for an
            expert that lives elsewhere.
        """
        placement, name = self.placement, PARTS[part] + ("_scale" if kind == "weight_scale" else "")
        slices = placement.slices
        _, stride, columns = getattr(self, name).shape
        rows = stride if part == "down" else placement.width
        full = (rows, columns * slices) if part == "down" else (rows * slices, columns)
        index = placement.local_index(expert)
        if index is None:
            return full, None
        at, slot = index * stride + (rows if part == "up" else 0), placement.rank % slices
        if part == "down":
            return full, Region(name, 0, slot * columns, rows, columns, at)
        return full, Region(name, slot * rows, 0, rows, columns, at)

    def forward(self, latent: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Latent rows [T, L], routing weights [T, k] fp32, global ids [T, k] -> [T, L], equal on every rank."""
        routes = ids.shape[-1]
        tokens = max(1, self.chunk_bytes // (routes * latent.shape[-1] * 4))
        parts = zip(latent.split(tokens), weights.split(tokens), ids.split(tokens), strict=True)
        return torch.cat([self._combine(*part) for part in parts])

    def rows(self, latent: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """This rank's part of every (token, route) row, fp32 [T * k, L]; zeros for experts of other groups."""
        repeated = latent.repeat_interleave(ids.shape[-1], dim=0)
        return self.operator(repeated, ids.flatten(), self.weights, self.placement.first_expert).float()

    def _combine(self, latent: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        # The all-reduce works in place: the fp32 rows are fresh.
        whole = tensor_model_parallel_all_reduce(self.rows(latent, ids))
        normed = self.post_expert_norm(whole.view(*ids.shape, -1))
        return (normed * weights[..., None]).sum(dim=1).to(self.dtype)
