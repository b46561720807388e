# SPDX-License-Identifier: Apache-2.0
"""How much the patterns of a JSON schema repeat: a short one may take long to compile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.parser.chat_format.patterns import sre as C
from vllm.parser.turn_grammar import patterns
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.limits import MAX_REPEATS

_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def check_repeats(schema: Any, parameter: str) -> None:
    """Refuse patterns whose counted repeats unfold to more than `MAX_REPEATS` characters.

    Raises:
        VLLMValidationError: names the pattern.
    """
    for pattern in _patterns(schema):
        if (count := unfolded(pattern)) > MAX_REPEATS:
            raise VLLMValidationError(
                f"the pattern {pattern[:64]!r} of the JSON schema repeats {count} times, at most {MAX_REPEATS} are "
                "served; lower its counts, or send a length",
                parameter=parameter,
            )


def _patterns(node: Any) -> list[str]:
    found, pending = [], [node]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, Mapping):
            pending += node.values()
            if isinstance(node.get("pattern"), str):
                found.append(node["pattern"])
            if isinstance(node.get("patternProperties"), Mapping):
                found += node["patternProperties"]
    return found


def unfolded(pattern: str) -> int:
    """Characters of `pattern` that its counted repeats unfold to, 0 if it counts none."""
    counts = [int(high or low) for low, high in _COUNT.findall(pattern[: 16 << 10])]
    if not counts:
        return 0
    try:
        return _size(patterns.nodes(pattern), 0)
    except NotGrammar:  # a dialect that Python does not read
        return max(counts)


def _size(items: Any, times: int) -> int:
    """`times`: how often the items are repeated by count, 0 outside of any such repeat."""
    total = 0
    for op, arg in items:
        if op in (C.MAX_REPEAT, C.MIN_REPEAT):
            low, high, body = arg
            count = low if high is C.MAXREPEAT else high
            total += _size(body, max(times, 1) * count if count > 1 else times)
        elif op is C.SUBPATTERN:
            total += _size(arg[3], times)
        elif op is C.BRANCH:
            total += sum(_size(branch, times) for branch in arg[1])
        else:
            total += times
    return total
