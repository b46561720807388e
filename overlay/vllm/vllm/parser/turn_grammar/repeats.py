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
from vllm.parser.turn_grammar.strings import MAX_REPEAT_COUNT

# More digits than these no library counts, nor Python as an integer.
_COUNT = re.compile(r"\{(\d{1,18})(?:,(\d{0,18}))?\}")


def check_repeats(schema: Any, parameter: str) -> None:
    """Refuse patterns whose counted repeats unfold to more than `MAX_REPEATS` characters, or take as long together.

    Raises:
        VLLMValidationError: names the pattern that repeats most.
    """
    found = [*_values(schema, "pattern"), *_values(schema, "patternProperties")]
    counted = [(count, pattern) for pattern in found if (count := unfolded(pattern))]
    if sum(count**2 for count, _ in counted) > MAX_REPEATS**2:
        (count, pattern), others = max(counted), len(counted) - 1
        raise VLLMValidationError(
            f"the pattern {pattern[:64]!r} of the JSON schema repeats {count} times"
            + (f" and {others} others repeat too" if others else "")
            + f", at most {MAX_REPEATS} are served, fewer in many patterns; lower the counts, or send a length",
            parameter=parameter,
        )


def compile_cost(parameters: Any) -> int:
    """What the patterns of a tool's JSON schema take to compile, in the unit whose bound is `MAX_REPEATS` squared.

    A pattern of a string that counts too far for a value is left out of the grammar and costs nothing.
    """
    held = [*_values(parameters, "patternProperties"), *filter(_is_held, _values(parameters, "pattern"))]
    return sum(unfolded(pattern) ** 2 for pattern in held)


def _is_held(pattern: str) -> bool:
    return max(_counts(pattern), default=0) <= MAX_REPEAT_COUNT


def _values(node: Any, keyword: str) -> list[str]:
    """The texts under `keyword`, or the keys of objects under it, at any depth."""
    found, pending = [], [node]
    while pending:
        node = pending.pop()
        if isinstance(node, (list, tuple)):
            pending += node
        elif isinstance(node, Mapping):
            pending += node.values()
            value = node.get(keyword)
            found += [value] if isinstance(value, str) else value if isinstance(value, Mapping) else ()
    return found


def _counts(pattern: str) -> list[int]:
    return [int(high or low) for low, high in _COUNT.findall(pattern[: 16 << 10])]


def unfolded(pattern: str) -> int:
    """Characters of `pattern` that its counted repeats unfold to, 0 if it counts none."""
    if not (counts := _counts(pattern)):
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
