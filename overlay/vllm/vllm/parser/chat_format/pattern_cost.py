# SPDX-License-Identifier: Apache-2.0
"""Whether the cost of searching for a regular expression may explode."""

from __future__ import annotations

from typing import Any

from vllm.parser.chat_format.patterns import parse, sre, sre_parser

# A repeat of at most so many is as good as written out.
_FEW = 16
_CHARACTERS = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)


def may_explode(pattern: str) -> bool:
    """Whether a search may take more than quadratic time in the text: True for a repeat of more than characters, for
    two long repeats, and for what cannot be taken apart. A search that is timed costs several times as much as one that
    is not, so those that cannot explode are not."""
    nodes = parse(pattern)
    return nodes is None or _weight(nodes) > 1


def _weight(item: Any) -> int:
    if isinstance(item, sre_parser.SubPattern):
        return _weight(item.data)
    if not isinstance(item, (list, tuple)):
        return 0
    if len(item) == 2 and item[0] in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        _, high, body = item[1]
        if len(body) == 1 and body[0][0] in _CHARACTERS:
            return int(high > _FEW)
        return _weight(body) + (2 if high > 1 else 0)
    return sum(map(_weight, item))
