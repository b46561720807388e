# SPDX-License-Identifier: Apache-2.0
"""Host buffers ("stacks") through which parameters are filled, each of them copied to the device once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch

from vllm_gaudi.loader.region import Region, as_matrix


@dataclass(frozen=True)
class Source:
    """A tensor as the model names it: a whole stored tensor or a part of one. `offset` in bytes in `file`; `stored` is
    the checkpoint's own name, where that is known.
    """

    name: str
    file: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stored: str = ""

    @property
    def place(self) -> str:
        """Where it is, for messages: file, the checkpoint's own name, offset."""
        return f"{self.file}: tensor {self.stored or self.name} at offset {self.offset}"

    @property
    def pitch(self) -> int:
        """Bytes of a row."""
        return as_matrix(self.shape)[1] * self.dtype.itemsize


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


@dataclass(frozen=True)
class Part:
    """Rows [row, row + rows) of a parameter of `columns` columns, at byte `at` of a stack; `whole` if all its rows."""

    at: int
    row: int
    rows: int
    columns: int
    whole: bool = True


@dataclass
class Stack:
    """One host buffer for parts of parameters of one dtype."""

    name: str
    dtype: torch.dtype
    nbytes: int = 0
    parts: dict[str, Part] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    zeros: list[Region] = field(default_factory=list)

    def add(self, parameter: str, row: int, rows: int, columns: int, whole: bool = True) -> None:
        """Make room for rows of a parameter behind what is there."""
        self.parts[parameter] = Part(self.nbytes, row, rows, columns, whole)
        self.nbytes += rows * columns * self.dtype.itemsize

    def place(self, parameter: str, host: torch.Tensor) -> torch.Tensor:
        """The part of `host`, the uint8 buffer of this stack, that is for `parameter`: [rows, columns]."""
        part = self.parts[parameter]
        size = part.rows * part.columns * self.dtype.itemsize
        return host[part.at : part.at + size].view(self.dtype).view(part.rows, part.columns)


def split(stack: Stack, limit: int) -> Iterator[Stack]:
    """`stack`, or stacks of at most `limit` bytes (or one row of a parameter) that fill the same in the same order."""
    if stack.nbytes <= limit:
        yield stack
        return
    moves: dict[str, list[Move]] = defaultdict(list)
    for move in stack.moves:
        moves[move.region.parameter].append(move)
    slab = Stack(stack.name, stack.dtype)
    for name, part in stack.parts.items():
        pitch, row = part.columns * stack.dtype.itemsize, 0
        while row < part.rows:
            room = (limit - slab.nbytes) // max(1, pitch)
            if room < 1 and slab.parts:
                yield slab
                slab = Stack(stack.name, stack.dtype)
                continue
            rows = min(max(1, room), part.rows - row)
            slab.add(name, row, rows, part.columns, rows == part.rows)
            pieces = ((move, move.region.clipped(row, row + rows)) for move in moves[name])
            slab.moves += [replace(move, region=region) for move, region in pieces if region]
            zeros = (region.clipped(row, row + rows) for region in stack.zeros if region.parameter == name)
            slab.zeros += [region for region in zeros if region]
            row += rows
    yield slab
