# SPDX-License-Identifier: Apache-2.0
"""Whether the cost of searching for a regular expression may explode."""

from __future__ import annotations

from typing import Any

from vllm.parser.chat_format.patterns import parse, sre, sre_parser

# A repeat of at most so many is as good as written out.
_FEW = 16


def may_explode(pattern: str) -> bool:
    """Whether a search may take more than quadratic time in the text: True for two repeats without a small bound, side
    by side or nested, and for what cannot be taken apart. A search that is timed costs several times as much as one
    that is not, so those that cannot explode are not."""
    nodes = parse(pattern)
    return nodes is None or _long_repeats(nodes) > 1


def _long_repeats(item: Any) -> int:
    if isinstance(item, sre_parser.SubPattern):
        return _long_repeats(item.data)
    if not isinstance(item, (list, tuple)):
        return 0
    if len(item) == 2 and item[0] in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        _, high, body = item[1]
        return int(high is sre.MAXREPEAT or high > _FEW) + _long_repeats(body)
    return sum(map(_long_repeats, item))
