# SPDX-License-Identifier: Apache-2.0
"""Lines of a bucket file (VLLM_BUCKETING_FROM_FILE) that cannot be used are skipped with a warning, never fatal."""

from __future__ import annotations

import ast
from collections.abc import Callable

from vllm_gaudi.extension.logger import logger

# What literal_eval raises on hostile text, and what the expansion of `range(...)` may add.
_UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, OverflowError)


def skip_malformed(expand: Callable[[str], str], line: str, number: int, file_name: str) -> bool:
    """Whether a line is no bucket; if so, the reason is logged with file and line number.

    A bucket is a tuple of three entries, each a whole number of at least 0, a list of them, or a range.

    Args:
        expand: upstream's expansion of `range(...)` in the text of a line.
        line: the stripped line.
        number: its number in the file, from 1.
        file_name: for the message.
    """
    try:
        bucket = ast.literal_eval(expand(line))
    except _UNREADABLE as exc:
        reason = f"not readable ({type(exc).__name__})"
    else:
        reason = _problem(bucket)
    if reason:
        logger().warning("Skipping line %d of bucket file %s: %s: %.80r", number, file_name, reason, line)
    return bool(reason)


def _problem(bucket: object) -> str:
    if not isinstance(bucket, tuple) or len(bucket) != 3:
        return "not three entries"
    for name, entry in zip(("batch size", "query length", "blocks"), bucket, strict=True):
        values = entry if isinstance(entry, list) else [entry]
        if not values:
            return f"no value for {name}"
        if any(type(value) is not int or value < 0 for value in values):
            return f"{name} is not made of whole numbers"
    return ""
