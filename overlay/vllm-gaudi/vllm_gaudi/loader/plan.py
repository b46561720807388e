# SPDX-License-Identifier: Apache-2.0
"""What one rank will read, from the headers alone: complete, or refused by name.

Parameters are filled through host buffers ("stacks"): one for each expert
parameter of a layer, and one for a layer's other parameters of one dtype. Each
stack costs one copy to the device.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

from vllm_gaudi.loader.headers import CheckpointError, Stored
from vllm_gaudi.loader.placement import Placement, Region, as_matrix
from vllm_gaudi.loader.rescale import Rescale

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
LAYER = re.compile(r"(.*?\.layers\.\d+)\.")


@dataclass(frozen=True)
class Source:
    """A tensor as the model names it: a whole stored tensor or a part of one. `offset` in bytes in `file`."""

    name: str
    file: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """Read `region` of `source` into the stack; `rescale` says whether it is adjusted on the way.

    `check(name, part)`, if any, sees the values as they are stored, part by part, and raises for damaged ones.
    """

    source: Source
    region: Region
    rescale: bool
    check: Callable[[str, torch.Tensor], None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return self.region.rows * self.region.columns * self.source.dtype.itemsize


@dataclass
class Stack:
    """One host buffer: parameter name -> byte offset and shape in it, all of one dtype."""

    name: str
    dtype: torch.dtype
    nbytes: int = 0
    parameters: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    zeros: list[Region] = field(default_factory=list)


@dataclass
class Plan:
    """The stacks in the model's order. `skipped` counts tensors this rank keeps nothing of."""

    stacks: list[Stack]
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

    check = getattr(model, "checked_tensors", None)
    for name, tensor in metas() if check is None else check(metas()):
        if not tensor.is_contiguous():
            raise CheckpointError(f"{files[0].file}: tensor {name} is no contiguous part of {files[0].name}")
        start = files[0].offset + tensor.storage_offset() * tensor.dtype.itemsize
        yield Source(name, files[0].file, start, tensor.dtype, tuple(tensor.shape))


def make_plan(model: nn.Module, stored: dict[str, Stored], rescale: Rescale) -> Plan:
    """Place every tensor of `stored` and check that every parameter is filled exactly once.

    Raises:
        CheckpointError: a tensor that belongs nowhere or does not fit, or a parameter not filled exactly once.
        NotImplementedError: a layer without a placement rule.
    """
    placement, check = Placement(model, rescale), getattr(model, "check_values", None)
    moves: dict[str, list[Move]] = defaultdict(list)
    tensors = skipped = 0
    for source in sources_of(model, stored.values()):
        tensors += 1
        regions = placement.regions(source.name, source.shape)
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
        stack.parameters[name] = stack.nbytes, tuple(parameter.shape)
        stack.nbytes += parameter.numel() * parameter.dtype.itemsize
        stack.moves += moves[name]
        stack.zeros += zeros[name]
    return Plan(list(stacks.values()), tensors, skipped)


def _method(placement: Placement, name: str) -> object:
    return getattr(placement.modules[name.rpartition(".")[0]], "quant_method", None)


def _stack_of(placement: Placement, name: str) -> str:
    if isinstance(placement.modules[name.rpartition(".")[0]], RoutedExperts):
        return name
    layer = LAYER.match(name)
    return layer[1] if layer else name


def check_coverage(name: str, shape: tuple[int, int], regions: list[Region], moves: list[Move]) -> None:
    """Refuse a parameter of `shape` (rows, columns) that `regions` do not tile.

    The edges of all regions cut the matrix into cells; every cell must be filled once.
    """
    rows = sorted({0, shape[0], *(r.to_row for r in regions), *(r.to_row + r.rows for r in regions)})
    columns = sorted({0, shape[1], *(r.to_column for r in regions), *(r.to_column + r.columns for r in regions)})
    row_at, column_at = ({edge: i for i, edge in enumerate(edges)} for edges in (rows, columns))
    filled = np.zeros((len(rows) - 1, len(columns) - 1), dtype=np.int32)
    for region in regions:
        top, left = row_at[region.to_row], column_at[region.to_column]
        bottom, right = row_at[region.to_row + region.rows], column_at[region.to_column + region.columns]
        filled[top:bottom, left:right] += 1
    if rows[-1] > shape[0] or columns[-1] > shape[1] or (filled > 1).any():
        names = sorted({move.source.name for move in moves})
        raise CheckpointError(f"{name}: {names[:4]} do not fit into it side by side; the checkpoint is inconsistent")
    if (filled == 0).any():
        row, column = (int(i[0]) for i in (filled == 0).nonzero())
        have = sorted({move.source.name for move in moves})[:4] or "no tensor"
        raise CheckpointError(
            f"{name}: nothing in the checkpoint fills it from row {rows[row]}, column {columns[column]} ({have} of it "
            "found); the checkpoint is incomplete"
        )
