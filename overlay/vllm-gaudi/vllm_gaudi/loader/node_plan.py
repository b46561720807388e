# SPDX-License-Identifier: Apache-2.0
"""Which bytes more than one rank of a node needs, who reads them, and where they lie in the shared ring meanwhile.

Every rank computes the same from what all have published. Bytes that two or more need are cut into blocks of whole
rows, in the order in which every rank fills its parameters. Blocks take places in a ring in that order, and a block is
written once all earlier ones whose place it takes have been taken by all that need them. So the earliest block not
yet taken by all can always be written, and be taken once the parameters before it are filled: the ranks cannot wait
for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vllm_gaudi.loader.plan import Plan

COLUMNS = ("file", "start", "rows", "pitch", "position", "to_row")
FILE, START, ROWS, PITCH, POSITION, TO_ROW = range(len(COLUMNS))
ALIGN = 64  # bytes; any dtype may be viewed at a block's start


@dataclass(frozen=True)
class Block:
    """Bytes [offset, offset + nbytes) of file number `file`, needed by the ranks `takers` (indices within the node).

    It is read by `reader` to byte `at` of the ring once all blocks up to number `after` are taken (-1: at once).
    """

    file: int
    offset: int
    nbytes: int
    takers: tuple[int, ...]
    reader: int
    at: int
    after: int


def needs_of(plan: Plan, files: Sequence[str]) -> np.ndarray:
    """What a rank reads: int64 [N, len(COLUMNS)], one line for each run of rows of a tensor in one of `files`."""
    number = {file: index for index, file in enumerate(files)}
    rows = []
    for stack in plan.stacks:
        for move in stack.moves:
            source, region = move.source, move.region
            if region.rows and source.pitch:
                at = plan.positions[region.parameter]
                start = source.offset + region.row * source.pitch
                rows.append((number[source.file], start, region.rows, source.pitch, at, region.to_row))
    return np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS))


def _intervals(needs: list[np.ndarray]) -> list[tuple[int, ...]]:
    """(position, to_row, file, start, rows, pitch, bit mask of ranks) of what two or more need alike, in fill order."""
    every = np.concatenate(needs)
    rank = np.repeat(np.arange(len(needs)), [len(part) for part in needs])
    found: list[tuple[int, ...]] = []
    for file in np.unique(every[:, FILE]):
        here = every[:, FILE] == file
        part, who = every[here], rank[here]
        ends = part[:, START] + part[:, ROWS] * part[:, PITCH]
        edges = np.unique(np.concatenate([part[:, START], ends]))
        first, last = np.searchsorted(edges, part[:, START]), np.searchsorted(edges, ends)
        counts = last - first
        need = np.repeat(np.arange(len(part)), counts)
        cell = np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        cells = len(edges) - 1
        mask, count = np.zeros(cells, dtype=np.int64), np.zeros(cells, dtype=np.int64)
        np.bitwise_or.at(mask, cell, np.int64(1) << who[need])
        np.add.at(count, cell, 1)
        within = edges[cell] - part[need, START]
        to_row = part[need, TO_ROW] + within // part[need, PITCH]
        facts = np.stack([part[need, POSITION], to_row, part[need, PITCH], within % part[need, PITCH]], axis=1)
        low = np.full((cells, 4), np.iinfo(np.int64).max)
        high = np.full((cells, 4), np.iinfo(np.int64).min)
        np.minimum.at(low, cell, facts)
        np.maximum.at(high, cell, facts)
        ranks = np.array([int(m).bit_count() for m in mask], dtype=np.int64)
        sizes = np.diff(edges)
        # What the ranks do not place alike, or a rank needs twice, each of them reads for itself.
        shared = (ranks > 1) & (ranks == count) & (low == high).all(axis=1) & (low[:, 3] == 0)
        for index in np.flatnonzero(shared):
            position, row, pitch, _ = (int(value) for value in low[index])
            if sizes[index] % pitch == 0:
                start, rows = int(edges[index]), int(sizes[index]) // pitch
                found.append((position, row, int(file), start, rows, pitch, int(mask[index])))
    return sorted(found)


def blocks_of(needs: list[np.ndarray], limit: int, ring_bytes: int) -> tuple[list[Block], int]:
    """(blocks of at most `limit` bytes or one row, in order; bytes of the ring) for the needs of a node's ranks.

    The ring is no larger than `ring_bytes`, nor than all blocks.

    Raises:
        ValueError: a block is larger than `ring_bytes`.
    """
    pieces = []
    for _, _, file, start, rows, pitch, mask in _intervals(needs):
        step = max(1, limit // pitch)
        takers = tuple(index for index in range(len(needs)) if mask >> index & 1)
        for row in range(0, rows, step):
            pieces.append((file, start + row * pitch, min(step, rows - row) * pitch, takers))
    spans = [-(-nbytes // ALIGN) * ALIGN for _, _, nbytes, _ in pieces]
    size = min(ring_bytes // ALIGN * ALIGN, sum(spans))
    if max(spans, default=0) > size:
        raise ValueError(f"a shared block of {max(spans)} bytes does not fit a ring of {ring_bytes}")
    blocks: list[Block] = []
    starts: list[int] = []  # as if the ring had no end
    read = [0] * len(needs)
    head = over = 0
    for (file, offset, nbytes, takers), span in zip(pieces, spans, strict=True):
        if head % size + span > size:
            head += size - head % size
        while over < len(starts) and starts[over] < head + span - size:
            over += 1
        reader = min(takers, key=lambda index: (read[index], index))
        read[reader] += nbytes
        blocks.append(Block(file, offset, nbytes, takers, reader, head % size, over - 1))
        starts.append(head)
        head += span
    return blocks, size
