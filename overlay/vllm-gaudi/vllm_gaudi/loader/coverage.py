# SPDX-License-Identifier: Apache-2.0
"""Whether what is read fills a parameter exactly once."""

from __future__ import annotations

import numpy as np

from vllm_gaudi.loader.headers import CheckpointError
from vllm_gaudi.loader.region import Region
from vllm_gaudi.loader.stacks import Move


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
