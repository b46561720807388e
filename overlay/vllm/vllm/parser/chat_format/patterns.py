# SPDX-License-Identifier: Apache-2.0
"""What can be known about a delimiter from the text of its regular expression.

A response template may spell a delimiter as a regex even where it means a few fixed strings. The grammar, the end of
reasoning and the flushing of a cut closer need those strings; the incremental argument parser needs a tag pattern cut
at its groups. Everything here answers None when the pattern does not allow a certain answer. Patterns are taken apart
with CPython's own `re` parser, so what one means is never guessed from its spelling.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

if sys.version_info >= (3, 11):
    from re import _constants as sre
    from re import _parser as sre_parser
else:
    import sre_constants as sre
    import sre_parse as sre_parser

MAX_EXPANSIONS = 64
MAX_REPEATS = 4


@dataclass(frozen=True)
class Expansion:
    """One fixed string that a pattern matches.

    text: the characters consumed. at_start: only at the very start of the input (`^` or `\\A`).
    ahead: characters that must follow without being consumed (a lookahead at the end of the pattern).
    """

    text: str
    at_start: bool = False
    ahead: str = ""


def parse(pattern: str) -> list | None:
    """The nodes of `pattern`; None if it is no pattern, or has flags that change what its characters mean."""
    try:
        parsed = sre_parser.parse(pattern)
    except (sre.error, OverflowError, RecursionError):
        return None
    if parsed.state.flags & (sre.SRE_FLAG_IGNORECASE | sre.SRE_FLAG_VERBOSE | sre.SRE_FLAG_MULTILINE):
        return None
    return list(parsed)


def expand(pattern: str) -> tuple[Expansion, ...] | None:
    """Every string `pattern` matches, in the order the pattern prefers them; None unless it is a finite choice of at
    most MAX_EXPANSIONS literals made of groups, `|`, a few repeats, a leading `^` and a final lookahead."""
    nodes = parse(pattern)
    return None if nodes is None else expand_nodes(nodes)


def expand_nodes(nodes: list) -> tuple[Expansion, ...] | None:
    """`expand` for the nodes of a parsed pattern."""
    found = _sequence(nodes)
    return None if found is None else tuple(dict.fromkeys(found))


def literals(pattern: str) -> tuple[str, ...] | None:
    """`expand` for patterns that need neither the start of the input nor a lookahead; None for all others."""
    found = expand(pattern)
    if not found or any(item.at_start or item.ahead or not item.text for item in found):
        return None
    return tuple(item.text for item in found)


def _sequence(nodes: list) -> list[Expansion] | None:
    found = [Expansion("")]
    for node in nodes:
        choices = _node(node)
        if choices is None:
            return None
        joined = [_join(head, tail) for head in found for tail in choices]
        if any(item is None for item in joined) or len(joined) > MAX_EXPANSIONS:
            return None
        found = joined
    return found


def _join(head: Expansion, tail: Expansion) -> Expansion | None:
    if head.ahead or (tail.at_start and head.text):
        return None
    return Expansion(head.text + tail.text, head.at_start or tail.at_start, tail.ahead)


def _node(node: tuple) -> list[Expansion] | None:
    op, arg = node
    if op is sre.LITERAL:
        return [Expansion(chr(arg))]
    if op is sre.AT and arg in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
        return [Expansion("", at_start=True)]
    if op is sre.SUBPATTERN:
        _, added, removed, body = arg
        return None if added or removed else _sequence(list(body))
    if op is sre.BRANCH:
        branches = [_sequence(list(branch)) for branch in arg[1]]
        return None if any(branch is None for branch in branches) else [item for branch in branches for item in branch]
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        low, high, body = arg
        if high is sre.MAXREPEAT or high > MAX_REPEATS:
            return None
        runs = [_sequence(list(body) * count) for count in range(low, high + 1)]
        if any(run is None for run in runs):
            return None
        return [item for run in (reversed(runs) if op is sre.MAX_REPEAT else runs) for item in run]
    if op is sre.ASSERT and arg[0] == 1:
        inside = _sequence(list(arg[1]))
        if inside is None or any(item.at_start or item.ahead or not item.text for item in inside):
            return None
        return [replace(item, text="", ahead=item.text) for item in inside]
    if op is sre.IN and all(item[0] is sre.LITERAL for item in arg):
        return [Expansion(chr(item[1])) for item in arg]
    return None


def first_chars(pattern: str) -> frozenset[str] | None:
    """The characters a match of `pattern` can start with; None unless they are few and certain."""
    if (nodes := parse(pattern)) is None:
        return None
    found, may_be_empty = _first(nodes)
    return None if found is None or may_be_empty else frozenset(found)


def _first(nodes: list) -> tuple[set[str] | None, bool]:
    """(first characters, whether the nodes can match nothing); the characters are None if unknown."""
    found: set[str] = set()
    for op, arg in nodes:
        if op is sre.LITERAL:
            chars, empty = {chr(arg)}, False
        elif op is sre.IN and all(item[0] is sre.LITERAL for item in arg):
            chars, empty = {chr(item[1]) for item in arg}, False
        elif op is sre.SUBPATTERN and not arg[1] and not arg[2]:
            chars, empty = _first(list(arg[3]))
        elif op is sre.BRANCH:
            branches = [_first(list(branch)) for branch in arg[1]]
            known = [chars for chars, _ in branches if chars is not None]
            chars = set().union(*known) if len(known) == len(branches) else None
            empty = any(empty for _, empty in branches)
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            chars, empty = _first(list(arg[2]))
            empty = empty or arg[0] == 0
        else:
            return None, True
        if chars is None:
            return None, True
        found |= chars
        if not empty:
            return found, False
    return found, True


def split_group(pattern: str, name: str) -> tuple[str, str, str] | None:
    """Cut `pattern` around its named group: (before, body, after), as source text.

    None if the group is missing, repeated, optional, or not at the top level of the pattern, where the three parts
    would not be patterns of their own.
    """
    opener = f"(?P<{name}>"
    spans = [span for span in _top_level_groups(pattern) or () if pattern.startswith(opener, span[0])]
    if len(spans) != 1:
        return None
    start, end = spans[0]
    after = pattern[end:]
    if after[:1] in ("*", "+", "?", "{"):
        return None
    return pattern[:start], pattern[start + len(opener) : end - 1], after


def _top_level_groups(pattern: str) -> list[tuple[int, int]] | None:
    """Spans of the parenthesised groups at depth 0; None if a top-level `|` cuts the pattern into alternatives."""
    spans, depth, start, index = [], 0, 0, 0
    while index < len(pattern):
        char = pattern[index]
        if char == "\\":
            index += 2
            continue
        if char == "[":
            index = _class_end(pattern, index)
            continue
        if char == "(":
            if depth == 0:
                start = index
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                spans.append((start, index + 1))
        elif char == "|" and depth == 0:
            return None
        index += 1
    return spans


def _class_end(pattern: str, index: int) -> int:
    """Index after the `]` that ends the character class opened at `index`."""
    index += 1
    if pattern.startswith("^", index):
        index += 1
    if pattern.startswith("]", index):
        index += 1
    while index < len(pattern) and pattern[index] != "]":
        index += 2 if pattern[index] == "\\" else 1
    return index + 1
