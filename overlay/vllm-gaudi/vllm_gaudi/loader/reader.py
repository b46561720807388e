# SPDX-License-Identifier: Apache-2.0
"""Reads of one stack, cut into jobs for reader threads, and their execution.

A job reads one contiguous file range with `preadv`. Where file and stack agree
in layout and dtype the bytes go straight to their place (several neighbouring
pieces in one call); otherwise through a buffer of the thread. The rescale acts
on the kept bytes, in the reader's thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vllm_gaudi.loader.headers import CheckpointError
from vllm_gaudi.loader.placement import as_matrix
from vllm_gaudi.loader.plan import Move, Stack
from vllm_gaudi.loader.rescale import E4M3, translate

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


def cut(move: Move, stack: Stack, limit: int) -> list[Piece]:
    """Pieces of at most `limit` bytes, or one row."""
    region, source = move.region, move.source
    item, (_, width) = source.dtype.itemsize, as_matrix(source.shape)
    shape = as_matrix(stack.parameters[region.parameter][1])
    direct = region.columns == width == shape[1] and source.dtype == stack.dtype
    pieces, pitch = [], width * item
    step = max(1, limit // max(1, pitch))
    for first in range(0, region.rows, step):
        rows = min(step, region.rows - first)
        offset = source.offset + (region.row + first) * pitch + region.column * item
        pieces.append(Piece(move, first, rows, offset, (rows - 1) * pitch + region.columns * item, direct))
    return pieces


def jobs_of(stack: Stack, limit: int) -> list[Job]:
    """The jobs of a stack in the order of files and offsets, each of about `limit` bytes at most."""
    pieces = [piece for move in stack.moves for piece in cut(move, stack, limit)]
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
                self._open[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            return self._open[file]

    def close(self) -> None:
        """Close all."""
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])


def run(job: Job, host: torch.Tensor, table: np.ndarray | None, files: Files) -> None:
    """Read `job` into `host`, the uint8 buffer of its stack.

    Raises:
        CheckpointError: the file cannot be read or ends early, with tensor and offset.
    """
    first = job.pieces[0]
    file, offset = first.move.source.file, first.offset
    try:
        if first.direct:
            places = [_place(piece, job.stack, host) for piece in job.pieces]
            files.read(file, [memoryview(place.view(torch.uint8).flatten().numpy()) for place in places], offset)
            for piece, place in zip(job.pieces, places, strict=True):
                _check(piece, place)
                if piece.move.rescale:
                    _rescale(place, place, table)
            return
        buffer = torch.empty(first.nbytes, dtype=torch.uint8, device="cpu")
        files.read(file, [memoryview(buffer.numpy())], offset)
    except (OSError, EOFError) as error:
        at = error.args[0] if isinstance(error, EOFError) else offset
        why = "the file ends here, it has shrunk since its header was read" if isinstance(error, EOFError) else error
        raise CheckpointError(
            f"{file}: tensor {first.move.source.name} at offset {at}: {why}; check the storage and load again"
        ) from error
    source, region = first.move.source, first.move.region
    pitch = as_matrix(source.shape)[1]
    kept = buffer.view(source.dtype).as_strided((first.rows, region.columns), (pitch, 1))
    _check(first, kept)
    place = _place(first, job.stack, host)
    if first.move.rescale and source.dtype == place.dtype:
        _rescale(kept, place, table)
    elif first.move.rescale:
        scaled = torch.empty(kept.shape, dtype=kept.dtype, device="cpu")
        _rescale(kept, scaled, table)
        place.copy_(scaled)
    elif source.dtype == place.dtype and source.dtype.itemsize == 1:
        place.view(torch.uint8).copy_(kept.view(torch.uint8))
    else:
        place.copy_(kept)


def _check(piece: Piece, values: torch.Tensor) -> None:
    if piece.move.check is not None:
        piece.move.check(piece.move.source.name, values)


def _place(piece: Piece, stack: Stack, host: torch.Tensor) -> torch.Tensor:
    """The part of `host` the piece fills, [rows, columns] in the stack's dtype."""
    region = piece.move.region
    at, shape = stack.parameters[region.parameter]
    rows, columns = as_matrix(shape)
    matrix = host[at : at + rows * columns * stack.dtype.itemsize].view(stack.dtype).view(rows, columns)
    top = region.to_row + piece.first
    return matrix[top : top + piece.rows, region.to_column : region.to_column + region.columns]


def _rescale(source: torch.Tensor, target: torch.Tensor, table: np.ndarray | None) -> None:
    """The adjustment of [R, C] in its own dtype: E4M3 by table, anything else doubled."""
    if source.dtype != E4M3:
        torch.mul(source, 2.0, out=target) if target is not source else target.mul_(2.0)
        return
    given, made = source.view(torch.uint8), target.view(torch.uint8)
    if given.is_contiguous() and made.is_contiguous():
        given, made = given.flatten(), made.flatten()
    translate(table, given.numpy(), made.numpy())
