# SPDX-License-Identifier: Apache-2.0
"""What one rank will read, from the headers alone: complete, or refused by name.

Parameters are filled through stacks: one for each expert parameter of a layer, and one for a layer's other parameters
of one dtype. Each stack costs one copy to the device.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

from vllm_gaudi.loader.coverage import check_coverage
from vllm_gaudi.loader.headers import CheckpointError, Stored
from vllm_gaudi.loader.placement import Placement, has_rule
from vllm_gaudi.loader.region import Region, as_matrix
from vllm_gaudi.loader.rescale import Rescale
from vllm_gaudi.loader.stacks import Move, Source, Stack, split

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
LAYER = re.compile(r"(.*?\.layers\.\d+)\.")


@dataclass
class Plan:
    """The stacks in the order they are filled.

    `positions` numbers the parameters in that order, the same on every rank of a pipeline stage. `skipped` counts
    tensors this rank keeps nothing of.
    """

    stacks: list[Stack]
    positions: dict[str, int]
    tensors: int
    skipped: int

    @property
    def kept_bytes(self) -> int:
        """Bytes of the checkpoint this rank keeps."""
        return sum(move.nbytes for stack in self.stacks for move in stack.moves)

    @property
    def largest(self) -> int:
        """Bytes of the largest stack."""
        return max((stack.nbytes for stack in self.stacks), default=0)


def sources_of(model: nn.Module, stored: Iterable[Stored]) -> Iterator[Source]:
    """The checkpoint's tensors as the model wants them, without data.

    A model may define `checked_tensors(pairs)`: given (name, meta tensor) of the
    stored tensors it yields those it wants under its names; views of a stored
    tensor stand for their part of its bytes. It refuses what does not belong.
    """
    files: dict[int, Stored] = {}

    def metas() -> Iterator[tuple[str, torch.Tensor]]:
        for entry in stored:
            dtype = DTYPES.get(entry.dtype)
            if dtype is None:
                raise CheckpointError(f"{entry.file}: tensor {entry.name}: dtype {entry.dtype} cannot be loaded")
            files[0] = entry
            yield entry.name, torch.empty(entry.shape, dtype=dtype, device="meta")
        files.clear()  # what is refused from here on is of no one tensor

    check = getattr(model, "checked_tensors", None)
    for name, tensor in _located(metas() if check is None else check(metas()), files):
        if not tensor.is_contiguous():
            raise CheckpointError(f"{files[0].file}: tensor {name} is no contiguous part of {files[0].name}")
        start = files[0].offset + tensor.storage_offset() * tensor.dtype.itemsize
        yield Source(name, files[0].file, start, tensor.dtype, tuple(tensor.shape), files[0].name)


def _located(wanted: Iterable[tuple[str, torch.Tensor]], at: dict[int, Stored]) -> Iterator[tuple[str, torch.Tensor]]:
    """`wanted`; a refusal while a tensor is looked at says where that lies."""
    try:
        yield from wanted
    except CheckpointError:
        raise
    except ValueError as error:
        if not at:
            raise
        place = f"{at[0].file}: tensor {at[0].name} at offset {at[0].offset}"
        raise CheckpointError(f"{place}: {error}") from error


def make_plan(model: nn.Module, stored: dict[str, Stored], rescale: Rescale, limit: int = 1 << 62) -> Plan:
    """Place every tensor of `stored` and check that every parameter is filled exactly once.

    A stack above `limit` bytes is read and copied in several.

    Raises:
        CheckpointError: a tensor that belongs nowhere or does not fit, or a parameter not filled exactly once.
        NotImplementedError: a layer without a placement rule.
    """
    placement, check = Placement(model, rescale), getattr(model, "check_values", None)
    moves: dict[str, list[Move]] = defaultdict(list)
    tensors = skipped = 0
    for source in sources_of(model, stored.values()):
        tensors += 1
        try:
            regions = placement.regions(source.name, source.shape)
        except CheckpointError as error:
            raise CheckpointError(f"{source.place}: {error}") from None
        skipped += not regions
        for region in regions:
            moves[region.parameter].append(Move(source, region, region.parameter in placement.rescaled, check))
    zeros: dict[str, list[Region]] = defaultdict(list)
    for region in placement.padding():
        zeros[region.parameter].append(region)
    stacks: dict[tuple[str, torch.dtype], Stack] = {}
    for name, parameter in placement.parameters.items():
        if name not in moves and isinstance(_method(placement, name), BaseKVCacheMethod):
            continue  # its default holds when a checkpoint has no scales of the cache
        regions = [move.region for move in moves[name]] + zeros[name]
        check_coverage(name, as_matrix(tuple(parameter.shape)), regions, moves[name])
        key = _stack_of(placement, name), parameter.dtype
        stack = stacks.setdefault(key, Stack(*key))
        stack.add(name, 0, *as_matrix(tuple(parameter.shape)))
        stack.moves += moves[name]
        stack.zeros += zeros[name]
    order = [parameter for stack in stacks.values() for parameter in stack.parts]
    slabs = [slab for stack in stacks.values() for slab in split(stack, limit)]
    return Plan(slabs, {parameter: position for position, parameter in enumerate(order)}, tensors, skipped)


def _method(placement: Placement, name: str) -> object:
    return getattr(placement.modules[name.rpartition(".")[0]], "quant_method", None)


def _stack_of(placement: Placement, name: str) -> str:
    module = placement.modules[name.rpartition(".")[0]]
    if isinstance(module, RoutedExperts) or has_rule(module):
        return name
    layer = LAYER.match(name)
    return layer[1] if layer else name
