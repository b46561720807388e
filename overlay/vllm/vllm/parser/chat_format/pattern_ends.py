# SPDX-License-Identifier: Apache-2.0
"""What can be known about the end of a regular expression's matches, so that a growing text need not be searched before
one can be complete, nor after it is."""

from __future__ import annotations

import itertools
from typing import Any

from vllm.parser.chat_format.patterns import Expansion, expand_nodes, parse, sre


def endings(pattern: str) -> frozenset[str] | None:
    """Strings one of which every match of `pattern` ends with; None if not even the last character is certain."""
    nodes, known = parse(pattern), None
    for start in reversed(range(len(nodes or ()))):
        found = expand_nodes(nodes[start:])  # type: ignore[index]
        if found is None or any(item.ahead or item.at_start for item in found):
            break
        if all(item.text for item in found):
            known = frozenset(item.text for item in found)
    return known


def ends_once(pattern: str) -> bool:
    """Whether at one place `pattern` has at most one match, so that more text cannot make a complete one longer: fixed
    strings, then a run of characters, then fixed strings that begin with a character the run does not admit, none of
    them the beginning of another. False also where that is not certain."""
    nodes = _flat(parse(pattern) or [])
    runs = [index for index, node in enumerate(nodes) if expand_nodes([node]) is None]
    if len(runs) != 1:
        return False
    before, after = expand_nodes(nodes[: runs[0]]), expand_nodes(nodes[runs[0] + 1 :])
    if not (_prefix_free(before) and _prefix_free(after)):
        return False
    op, arg = nodes[runs[0]]
    if op not in (sre.MAX_REPEAT, sre.MIN_REPEAT) or len(arg[2]) != 1:
        return False
    return all(item.text and not _may_be(arg[2][0], item.text[0]) for item in after)  # type: ignore[union-attr]


def _flat(nodes: list) -> list:
    """The nodes with plain groups opened."""
    found = []
    for op, arg in nodes:
        plain = op is sre.SUBPATTERN and not arg[1] and not arg[2]
        found += _flat(list(arg[3])) if plain else [(op, arg)]
    return found


def _prefix_free(found: tuple[Expansion, ...] | None) -> bool:
    if not found or any(item.ahead or item.at_start for item in found):
        return False
    return not any(a.text.startswith(b.text) for a, b in itertools.permutations(found, 2))


def _may_be(node: tuple[Any, Any], char: str) -> bool:
    """Whether a character class may match `char`; True if that is not certain."""
    op, arg = node
    if op is sre.NOT_LITERAL:
        return chr(arg) != char
    if op is not sre.IN:
        return True
    negated = arg[0][0] is sre.NEGATE
    listed = any(_lists(kind, value, ord(char)) for kind, value in arg)
    if negated:
        return not listed
    return listed or any(kind is sre.CATEGORY for kind, _ in arg)


def _lists(kind: Any, value: Any, code: int) -> bool:
    if kind is sre.LITERAL:
        return value == code
    return kind is sre.RANGE and value[0] <= code <= value[1]
