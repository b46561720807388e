# SPDX-License-Identifier: Apache-2.0
"""Substrings that a client's own regex, grammar or sized strings may not write.

xgrammar excludes substrings from free text and from JSON without string lengths, and from nothing else: `[^b]` admits
the token that closes an answer. Two grammars are held at once there: the turn with the client's body, and the same turn
with free text in its place, from which the substrings are excluded. A text of both is one of the client's that holds
none of them. The first carries the substrings in a member that xgrammar passes over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from vllm.parser.turn_grammar import formats as f

_MEMBER = "guarded"


def guarded(fmt: f.Format, substrings: Sequence[str]) -> f.Format:
    """`fmt`, to be held to texts without `substrings` by the guard of its tag."""
    return {**fmt, _MEMBER: list(substrings)} if substrings else fmt


def guard_of(tag_text: str) -> str | None:
    """The structural tag of the guard beside `tag_text`, as text; None if it needs none."""
    return None if (found := pair_of(tag_text)) is None else found[1]


def pair_of(tag_text: str) -> tuple[str, str] | None:
    """The structural tags that are held together for `tag_text`, as text: the client's and its guard. None if it needs
    no guard.

    What may close the body is in neither, and the turn ends by its stop token alone. A closer would end the guard's
    reading of the body where the client's still goes on; spelled out, it would end at its last character, which the
    guard excludes, with no token left to go on with.
    """
    if f'"{_MEMBER}"' not in tag_text:
        return None
    tag = json.loads(tag_text)
    held, free = _unclosed(tag, False), _unclosed(tag, True)
    return None if free == held else (json.dumps(held), json.dumps(free))


def _unclosed(node: Any, freed: bool) -> Any:
    if isinstance(node, list):
        closers = {index + 1 for index, member in enumerate(node) if _is_body(member)}
        kept = [m for index, m in enumerate(node) if index not in closers or m["type"] != "optional"]
        return [_unclosed(member, freed) for member in kept]
    if not isinstance(node, dict):
        return node
    if _is_body(node):
        return f.text(node[_MEMBER]) if freed else node
    # A schema may have any member, and is none of ours.
    return {key: value if key == "json_schema" else _unclosed(value, freed) for key, value in node.items()}


def _is_body(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get(_MEMBER), list) and isinstance(node.get("type"), str)
