# SPDX-License-Identifier: Apache-2.0
"""The sliding window of FusedSDPA: the only place that says which keys `window_size=(left, right)` keeps.

No public source states whether `left` counts the query's own position. The setting is a convention until a card
tells:

| HPUSIM_FSDPA_WINDOW | keys a query at position i attends (right = 0) | number |
|---|---|---|
| `self_included` (default) | i - left + 1 .. i | left |
| `self_excluded` (as in FlashAttention) | i - left .. i | left + 1 |
"""

from __future__ import annotations

import os

import torch

VARIABLE = "HPUSIM_FSDPA_WINDOW"
_EXTRA_KEYS = {"self_included": 0, "self_excluded": 1}


def convention() -> str:
    """The convention in force; ValueError for a name that is none."""
    chosen = os.environ.get(VARIABLE, "self_included")
    if chosen not in _EXTRA_KEYS:
        raise ValueError(f"{VARIABLE}={chosen!r}: expected one of {', '.join(_EXTRA_KEYS)}")
    return chosen


def keys_before(left: int) -> int:
    """Keys before the query's own that a window of `left` keeps, by the convention in force."""
    return left - 1 + _EXTRA_KEYS[convention()]


def allowed(queries: int, keys: int, window: tuple[int, int], device: torch.device) -> torch.Tensor | None:
    """Boolean `[queries, keys]`, True where a query may attend; None when the window is open on both sides.

    Positions are aligned at the end: query r stands at key position `keys - queries + r`. A bound of -1 is open.
    """
    left, right = window
    if left < 0 and right < 0:
        return None
    position = torch.arange(keys - queries, keys, device=device).unsqueeze(1)
    distance = position - torch.arange(keys, device=device).unsqueeze(0)
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if left >= 0:
        mask &= distance <= keys_before(left)
    if right >= 0:
        mask &= distance >= -right
    return mask
