# SPDX-License-Identifier: Apache-2.0
"""Reads of one stack, cut into jobs for reader threads, and their execution.

A job reads one contiguous file range with `preadv`. Where file and stack agree
in layout and dtype the bytes go straight to their place (several neighbouring
pieces in one call); otherwise through a buffer of the thread. What the ranks of
a node share is taken from their common memory instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vllm_gaudi.loader.headers import CheckpointError, open_regular
from vllm_gaudi.loader.host_memory import HostMemory, Scratch
from vllm_gaudi.loader.region import as_matrix
from vllm_gaudi.loader.stacks import Move, Stack
from vllm_gaudi.loader.transform import check, place

MAX_BUFFERS = 512  # below IOV_MAX


@dataclass(frozen=True)
class Piece:
    """Rows [first, first + rows) of a move's region: file range [offset, offset + nbytes), `direct` if copied as is."""

    move: Move
    first: int
    rows: int
    offset: int
    nbytes: int
    direct: bool


@dataclass(frozen=True)
class Job:
    """Pieces that follow each other in one file; more than one only when all are direct."""

    stack: Stack
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes read."""
        return sum(piece.nbytes for piece in self.pieces)


def is_direct(move: Move, stack: Stack) -> bool:
    """Whether the bytes of the file are, in order, those of the stack (but for the rescale)."""
    region, source = move.region, move.source
    width, columns = as_matrix(source.shape)[1], stack.parts[region.parameter].columns
    return region.columns == width == columns and source.dtype == stack.dtype


def cut(move: Move, stack: Stack, limit: int, first: int, last: int) -> list[Piece]:
    """Rows [first, last) of a move in pieces of at most `limit` bytes, or one row."""
    region, source = move.region, move.source
    item, pitch, direct = source.dtype.itemsize, source.pitch, is_direct(move, stack)
    pieces, step = [], max(1, limit // max(1, pitch))
    for row in range(first, last, step):
        rows = min(step, last - row)
        offset = source.offset + (region.row + row) * pitch + region.column * item
        pieces.append(Piece(move, row, rows, offset, (rows - 1) * pitch + region.columns * item, direct))
    return pieces


def join(stack: Stack, pieces: list[Piece], limit: int) -> list[Job]:
    """The jobs of a stack in the order of files and offsets, each of about `limit` bytes at most."""
    pieces.sort(key=lambda piece: (piece.move.source.file, piece.offset))
    runs: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        last = runs[-1][-1] if runs else None
        joins = (
            last is not None
            and last.direct
            and piece.direct
            and last.move.source.file == piece.move.source.file
            and last.offset + last.nbytes == piece.offset
            and size + piece.nbytes <= limit
            and len(runs[-1]) < MAX_BUFFERS
        )
        if joins:
            runs[-1].append(piece)
            size += piece.nbytes
        else:
            runs.append([piece])
            size = piece.nbytes
    return [Job(stack, tuple(run)) for run in runs]


class Files:
    """Open files by name, shared by all threads (`preadv` takes no position from them)."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def read(self, file: str, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill `buffers` from `offset` on.

        Raises:
            OSError: as the file system reports it.
            EOFError: the file ends before they are full.
        """
        pending = [buffer for buffer in buffers if len(buffer)]
        handle = self._handle(file) if pending else -1
        while pending:
            count = os.preadv(handle, pending, offset)
            if count == 0:
                raise EOFError(offset)
            offset += count
            while pending and count >= len(pending[0]):
                count -= len(pending.pop(0))
            if count:
                pending[0] = pending[0][count:]

    def _handle(self, file: str) -> int:
        with self._lock:
            if file not in self._open:
                with open_regular(file) as handle:
                    self._open[file] = os.dup(handle.fileno())
            return self._open[file]

    def close(self) -> None:
        """Close all."""
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])


def fill(files: Files, file: str, name: Callable[[], str], buffers: Sequence[np.ndarray], offset: int) -> None:
    """Fill uint8 arrays from `offset` of `file` on.

    Raises:
        CheckpointError: the file cannot be read or ends early; says where, and of which tensor (`name()`).
    """
    try:
        files.read(file, [memoryview(buffer) for buffer in buffers], offset)
    except (OSError, EOFError) as error:
        at = error.args[0] if isinstance(error, EOFError) else offset
        why = "the file ends here, it has shrunk since its header was read" if isinstance(error, EOFError) else error
        raise CheckpointError(
            f"{file}: tensor {name()} at offset {at}: {why}; check the storage and load again"
        ) from error


class Buffers:
    """What one reader thread works in."""

    def __init__(self, memory: HostMemory) -> None:
        self.stored, self.scaled = Scratch(memory), Scratch(memory)

    def close(self) -> None:
        """Give both back."""
        self.stored.close()
        self.scaled.close()


def run(job: Job, host: torch.Tensor, table: np.ndarray | None, files: Files, buffers: Buffers) -> None:
    """Read `job` into `host`, the uint8 buffer of its stack.

    Raises:
        CheckpointError: the file cannot be read or ends early, or a value is damaged.
    """
    first = job.pieces[0]
    file = first.move.source.file

    def name() -> str:
        return first.move.source.stored or first.move.source.name

    if first.direct:
        places = [target_of(piece, job.stack, host) for piece in job.pieces]
        fill(files, file, name, [target.view(torch.uint8).flatten().numpy() for target in places], first.offset)
        for piece, target in zip(job.pieces, places, strict=True):
            check(piece.move, target)
            if piece.move.rescale:
                place(target, target, True, table, buffers.scaled)
        return
    buffer = buffers.stored.get(first.nbytes)
    fill(files, file, name, [buffer.numpy()], first.offset)
    put(first, buffer, job.stack, host, table, buffers)


def put(
    piece: Piece, stored: torch.Tensor, stack: Stack, host: torch.Tensor, table: np.ndarray | None, buffers: Buffers
) -> None:
    """Bring `stored`, the bytes [nbytes] of `piece` as they are in the file, to their place in `host`."""
    source, region = piece.move.source, piece.move.region
    values = stored.view(source.dtype)
    width = as_matrix(source.shape)[1]
    kept = values.as_strided((piece.rows, region.columns), (width, 1), values.storage_offset())
    check(piece.move, kept)
    place(kept, target_of(piece, stack, host), piece.move.rescale, table, buffers.scaled)


def target_of(piece: Piece, stack: Stack, host: torch.Tensor) -> torch.Tensor:
    """The part of `host` the piece fills, [rows, columns] in the stack's dtype."""
    region = piece.move.region
    matrix = stack.place(region.parameter, host)
    top = region.to_row + piece.first - stack.parts[region.parameter].row
    return matrix[top : top + piece.rows, region.to_column : region.to_column + region.columns]
