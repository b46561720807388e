# SPDX-License-Identifier: Apache-2.0
"""Tensors and parameters seen as matrices, and the rectangles that are kept of them. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns) of a shape: rows are the product of all dimensions but the last; a vector is one column."""
    return (prod(shape), 1) if len(shape) < 2 else (prod(shape[:-1]), shape[-1])


@dataclass(frozen=True)
class Region:
    """Rows [row, row + rows) and columns [column, column + columns) of a tensor, and their place in a parameter."""

    parameter: str
    row: int
    column: int
    rows: int
    columns: int
    to_row: int = 0
    to_column: int = 0

    def clipped(self, start: int, end: int) -> Region | None:
        """What of it lands in rows [start, end) of the parameter; None when nothing does."""
        first, last = max(self.to_row, start), min(self.to_row + self.rows, end)
        if first >= last:
            return None
        row = self.row + first - self.to_row
        return Region(self.parameter, row, self.column, last - first, self.columns, first, self.to_column)
