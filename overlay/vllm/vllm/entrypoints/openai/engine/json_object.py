# SPDX-License-Identifier: Apache-2.0
"""What a request class may be made from."""

from __future__ import annotations

from typing import Any


def refuse_other_than_object(data: Any) -> None:
    """Called before any check of a request class reads `data` as a dictionary.

    Raises:
        ValueError: `data` is JSON, but no object. What only Python code can pass (an instance) is left alone.
    """
    if data is None or isinstance(data, list | str | int | float):
        kind = "null" if data is None else "a list" if isinstance(data, list) else f"{data!r:.40}"
        raise ValueError(f"a JSON object is expected, not {kind}")
