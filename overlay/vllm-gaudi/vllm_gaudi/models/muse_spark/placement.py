# SPDX-License-Identifier: Apache-2.0
"""Which part of which experts a rank holds: expert groups times tensor slices, by rank arithmetic.

With G groups over W ranks, rank r is slice r % (W/G) of group r // (W/G). A group owns a run of experts; each of its
ranks holds one slice of the intermediate size of all of them. No process group beyond the tensor-parallel one: the sum
over all ranks adds the slices of the owning group and exact zeros of the others.
"""

from dataclasses import dataclass

import torch

GROUP = 32  # columns that share a scale


@dataclass(frozen=True)
class Placement:
    """The share of one rank.

    Args:
        rank, world: tensor-parallel rank and size.
        groups: expert groups; `world` is pure expert parallelism, 1 pure tensor parallelism.
        experts: experts of a layer.
        latent, inner: input width and intermediate size of an expert.

    Raises:
        ValueError: sizes that do not divide, or slices that would cut a scale group.
    """

    rank: int
    world: int
    groups: int
    experts: int
    latent: int
    inner: int

    def __post_init__(self) -> None:
        if self.world % self.groups:
            raise ValueError(f"VLLM_MUSE_EXPERT_GROUPS={self.groups} does not divide tensor parallel size {self.world}")
        if self.experts % self.groups:
            raise ValueError(f"num_local_experts {self.experts} cannot be split into {self.groups} expert groups")
        if self.latent % GROUP:
            raise ValueError(f"moe_hidden_size {self.latent} is no multiple of {GROUP}, the columns of one scale")
        if self.inner % self.slices or (self.inner // self.slices) % GROUP:
            raise ValueError(
                f"moe_intermediate_size {self.inner} over {self.slices} ranks gives slices that are no multiple of "
                f"{GROUP}; use more expert groups (VLLM_MUSE_EXPERT_GROUPS)"
            )

    @property
    def slices(self) -> int:
        """Ranks that share an expert."""
        return self.world // self.groups

    @property
    def local_experts(self) -> int:
        """Experts of this rank's group."""
        return self.experts // self.groups

    @property
    def first_expert(self) -> int:
        """Global id of this rank's first expert."""
        return self.rank // self.slices * self.local_experts

    @property
    def width(self) -> int:
        """Intermediate columns of this rank."""
        return self.inner // self.slices

    def local_index(self, expert: int) -> int | None:
        """Place of a global `expert` in this rank's list, None when it belongs to another group."""
        index = expert - self.first_expert
        return index if 0 <= index < self.local_experts else None

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a gate or up tensor [inner, ...], weight or scale."""
        return tensor.narrow(0, self.rank % self.slices * self.width, self.width)

    def columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's columns of a down tensor [latent, inner / n], where n values share an element."""
        per_rank = tensor.shape[1] // self.slices
        return tensor.narrow(1, self.rank % self.slices * per_rank, per_rank)
