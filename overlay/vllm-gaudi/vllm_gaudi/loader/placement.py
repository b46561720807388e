# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint tensor goes on this rank, as rectangles.

The rules state for each kind of vLLM layer what its weight loader does; a layer or loader without a rule is refused
rather than guessed. A module with experts of its own making states its rule itself:

    expert_regions(expert, part, kind) -> ((rows, columns) of the whole tensor, Region of it that is kept or None)

with `part` gate, up or down, `kind` as in the tensor's name, and the region's parameter named within the module.
"""

from __future__ import annotations

import re
from dataclasses import replace

from torch import nn
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.utils import WeightsMapper

from vllm_gaudi.loader.headers import CheckpointError
from vllm_gaudi.loader.region import Region, as_matrix
from vllm_gaudi.loader.rescale import Rescale

EXPERT = re.compile(r"(?P<experts>.*\.experts)\.(?P<index>\d+)\.(?P<part>gate|up|down)_proj\.(?P<kind>[^.]+)")
USE_AUTO = "load with --load-format auto"
LAYERS = (QKVParallelLinear, MergedColumnParallelLinear, ColumnParallelLinear, RowParallelLinear, ReplicatedLinear,
          VocabParallelEmbedding, RoutedExperts)  # fmt: skip


def has_rule(module: nn.Module | None) -> bool:
    """Whether `module` states itself what it keeps of each expert."""
    return hasattr(module, "expert_regions")


class Placement:
    """The rules applied to one model on this rank.

    Raises (from `regions`):
        CheckpointError: no parameter for a tensor, or another shape than the layer takes.
        NotImplementedError: a layer or weight loader that has no rule.
    """

    def __init__(self, model: nn.Module, rescale: Rescale) -> None:
        self.modules = dict(model.named_modules())
        self.parameters = dict(model.named_parameters())
        self.mapper: WeightsMapper = getattr(model, "hf_to_vllm_mapper", None) or WeightsMapper()
        self.rescale = rescale
        self.rescaled: set[str] = set()
        self._checked: set[str] = set()
        self._local: dict[str, dict[int, int]] = {}

    def regions(self, name: str, shape: tuple[int, ...]) -> list[Region]:
        """What this rank keeps of tensor `name` with full `shape`; empty when other ranks keep it all."""
        mapped = self.mapper._map_name_with_shard(name)
        if mapped is None:
            return []
        target, shard = mapped
        expert = EXPERT.fullmatch(target)
        if expert and has_rule(self.modules.get(expert["experts"])):
            return self._own_rule(name, shape, expert)
        if expert and isinstance(self.modules.get(expert["experts"] + ".routed_experts"), RoutedExperts):
            return self._expert(name, shape, expert)
        if target not in self.parameters:
            raise CheckpointError(f"{name}: the model has no parameter {target}; the checkpoint is of another model")
        region, full = self._dense(target, shard)
        if as_matrix(shape) != full:
            raise CheckpointError(f"{name}: shape {shape} is {as_matrix(shape)} as a matrix, {target} takes {full}")
        return [region]

    def padding(self) -> list[Region]:
        """Parameter rows that no tensor fills and that must be zero (source part of the region unused)."""
        rows = []
        for name, parameter in self.parameters.items():
            layer = self.modules[name.rpartition(".")[0]]
            if isinstance(layer, VocabParallelEmbedding) and getattr(parameter, "output_dim", None) == 0:
                kept = layer.shard_indices.org_vocab_end_index - layer.shard_indices.org_vocab_start_index
                held, columns = as_matrix(tuple(parameter.shape))
                if kept < held:
                    rows.append(Region(name, 0, 0, held - kept, columns, kept))
        return rows

    def _check_loader(self, name: str) -> None:
        """The function that would load the parameter must be one whose rule is stated here."""
        if name in self._checked:
            return
        self._checked.add(name)
        rescaled, loader = self.rescale.of(self.parameters[name])
        if rescaled:
            self.rescaled.add(name)
        layer = type(self.modules[name.rpartition(".")[0]])
        known = {default_weight_loader, None}
        for kind in LAYERS:
            if issubclass(layer, kind):
                known |= {getattr(kind, method, None) for method in ("weight_loader", "weight_loader_v2")}
        if loader not in known and not getattr(loader, "shards_rows", False):
            raise NotImplementedError(f"{name}: no placement rule for loader {loader.__qualname__}; {USE_AUTO}")

    def _dense(self, target: str, shard: str | int | None) -> tuple[Region, tuple[int, int]]:
        """(region, full source matrix) of a tensor that goes to parameter `target`."""
        self._check_loader(target)
        parameter, layer = self.parameters[target], self.modules[target.rpartition(".")[0]]
        rows, columns = as_matrix(tuple(parameter.shape))
        output, entry = getattr(parameter, "output_dim", None), getattr(parameter, "input_dim", None)
        loader = self.rescale.of(parameter)[1]
        if getattr(loader, "shards_rows", False):
            start = get_tensor_model_parallel_rank() * rows
            return Region(target, start, 0, rows, columns), (rows * get_tensor_model_parallel_world_size(), columns)
        whole = Region(target, 0, 0, rows, columns), (rows, columns)
        if isinstance(layer, VocabParallelEmbedding) and output == 0:
            start, end = layer.shard_indices.org_vocab_start_index, layer.shard_indices.org_vocab_end_index
            return Region(target, start, 0, end - start, columns), (layer.org_vocab_size, columns)
        if isinstance(layer, QKVParallelLinear | MergedColumnParallelLinear) and (shard is None or output != 0):
            raise NotImplementedError(f"{target}: no placement rule for a merged or packed tensor; {USE_AUTO}")
        if isinstance(layer, QKVParallelLinear):
            size, at = layer._get_shard_size_mapping(shard), layer._get_shard_offset_mapping(shard)
            rank = layer.tp_rank if shard == "q" else layer.tp_rank // layer.num_kv_head_replicas
            heads = layer.total_num_heads if shard == "q" else layer.total_num_kv_heads
            head = layer.v_head_size if shard == "v" else layer.head_size
            return Region(target, rank * size, 0, size, columns, at), (heads * head, columns)
        if isinstance(layer, MergedColumnParallelLinear):
            size = layer.output_sizes[shard] // layer.tp_size
            at = sum(layer.output_sizes[:shard]) // layer.tp_size
            return Region(target, layer.tp_rank * size, 0, size, columns, at), (layer.output_sizes[shard], columns)
        if isinstance(layer, ColumnParallelLinear) and output == 0:
            return Region(target, layer.tp_rank * rows, 0, rows, columns), (rows * layer.tp_size, columns)
        if isinstance(layer, RowParallelLinear) and entry == 1:
            return Region(target, 0, layer.tp_rank * columns, rows, columns), (rows, columns * layer.tp_size)
        if isinstance(layer, LinearBase) and not isinstance(layer, ReplicatedLinear | RowParallelLinear):
            raise NotImplementedError(f"{target}: no placement rule for {type(layer).__name__}; {USE_AUTO}")
        return whole

    def _own_rule(self, name: str, shape: tuple[int, ...], found: re.Match[str]) -> list[Region]:
        path = found["experts"]
        full, region = self.modules[path].expert_regions(int(found["index"]), found["part"], found["kind"])
        if as_matrix(shape) != full:
            raise CheckpointError(f"{name}: shape {shape}, {path} takes {full} per expert")
        return [] if region is None else [replace(region, parameter=f"{path}.{region.parameter}")]

    def _local_experts(self, path: str) -> dict[int, int]:
        """Global expert id -> its place in the stacks of this rank."""
        if path not in self._local:
            ids = self.modules[path].expert_map_manager.get_local_expert_ids()
            self._local[path] = {expert: index for index, expert in enumerate(ids)}
        return self._local[path]

    def _expert(self, name: str, shape: tuple[int, ...], found: re.Match[str]) -> list[Region]:
        path = found["experts"] + ".routed_experts"
        layer, part = self.modules[path], found["part"]
        target = f"{path}.{'w2' if part == 'down' else 'w13'}_{found['kind']}"
        if target not in self.parameters or self.parameters[target].dim() != 3:
            raise CheckpointError(f"{name}: the experts have no stack {target}; the checkpoint is of another layout")
        self._check_loader(target)
        _, rows, columns = self.parameters[target].shape
        parallel = layer.moe_config.moe_parallel_config
        row = column = at = 0
        full = (rows, columns)
        if part != "down":
            rows //= 2
            row, at, full = parallel.tp_rank * rows, (rows if part == "up" else 0), (rows * parallel.tp_size, columns)
        elif found["kind"] == "weight":
            column, full = parallel.tp_rank * columns, (rows, columns * parallel.tp_size)
        elif columns != 1:
            raise NotImplementedError(f"{target}: no placement rule for grouped scales; {USE_AUTO}")
        if as_matrix(shape) != full:
            raise CheckpointError(f"{name}: shape {shape}, {target} takes {full} per expert")
        local = self._local_experts(path).get(int(found["index"]))
        if local is None:
            return []
        stride = self.parameters[target].shape[1]
        return [Region(target, row, column, rows, columns, local * stride + at, 0)]
