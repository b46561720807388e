# SPDX-License-Identifier: Apache-2.0
"""Read the regular expressions of a response template as grammar.

Every function raises `NotGrammar` for a construct that has no counterpart in a grammar (back references, look-around
other than the value terminator).
"""

from __future__ import annotations

import re
from typing import Any

from vllm.parser.chat_format.patterns import expand_nodes, sre_parser
from vllm.parser.chat_format.patterns import sre as C
from vllm.parser.turn_grammar.formats import NotGrammar

Node = tuple[Any, Any]

_CATEGORIES = {
    C.CATEGORY_SPACE: r"\s",
    C.CATEGORY_NOT_SPACE: r"\S",
    C.CATEGORY_DIGIT: r"\d",
    C.CATEGORY_NOT_DIGIT: r"\D",
    C.CATEGORY_WORD: r"\w",
    C.CATEGORY_NOT_WORD: r"\W",
}
_REPEATS = (C.MAX_REPEAT, C.MIN_REPEAT)


def nodes(pattern: str) -> list[Node]:
    """Top-level nodes of `pattern`, compiled with DOTALL as templates are."""
    try:
        return list(sre_parser.parse(pattern, re.DOTALL))
    # A ValueError is a flag of bytes alone, or a count too long to read.
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        raise NotGrammar(f"pattern {pattern!r}: {error}") from error


def literal_forms(items: list[Node]) -> list[str]:
    """All strings `items` can match, in order of preference."""
    plain, ahead = split_lookahead(items)
    if ahead:
        raise NotGrammar("a look-ahead is not a literal spelling")
    return plain


def split_lookahead(items: list[Node]) -> tuple[list[str], list[tuple[str, str]]]:
    """Split a terminator into (closing literals, [(literal, what must follow)])."""
    found = expand_nodes(items)
    if found is None:
        raise NotGrammar("not a few literal spellings")
    plain = dict.fromkeys(form.text for form in found if not form.ahead)
    return list(plain), [(form.text, form.ahead) for form in found if form.ahead]


def escape(value: str) -> str:
    """Escape for xgrammar's regex dialect; other characters stand for themselves."""
    return (
        re.sub(r"([\\^$.|?*+()\[\]{}/-])", r"\\\1", value)
        .replace("\n", r"\n")
        .replace("\r", r"\r")
        .replace("\t", r"\t")
    )


def escape_in_class(char: str) -> str:
    return "\\" + char if char in "\\^]-[" else {"\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(char, char)


def render(items: list[Node]) -> str:
    """The regex text of `items` in the dialect xgrammar reads. A start anchor vanishes."""
    return "".join(_render(op, arg) for op, arg in items)


def _render(op: Any, arg: Any) -> str:
    if op is C.LITERAL:
        return escape(chr(arg))
    if op is C.NOT_LITERAL:
        return f"[^{escape_in_class(chr(arg))}]"
    if op is C.ANY:
        return r"[\s\S]"
    if op is C.AT and arg in (C.AT_BEGINNING, C.AT_BEGINNING_STRING):
        return ""
    if op is C.IN:
        return f"[{class_body(arg)}]"
    if op is C.SUBPATTERN:
        return f"(?:{render(list(arg[3]))})"
    if op is C.BRANCH:
        return "(?:" + "|".join(render(list(branch)) for branch in arg[1]) + ")"
    if op in _REPEATS:
        low, high, body = arg
        inner = render(list(body))
        if len(body) != 1 or body[0][0] not in (C.LITERAL, C.IN, C.ANY, C.NOT_LITERAL):
            inner = f"(?:{inner})"
        if high is C.MAXREPEAT:
            return inner + ({0: "*", 1: "+"}.get(low) or f"{{{low},}}")
        return inner + ("?" if (low, high) == (0, 1) else f"{{{low},{high}}}")
    raise NotGrammar(f"{op} has no counterpart in a grammar")


def class_body(members: list[Node]) -> str:
    """Inside of a bracket class, with its leading `^` if negated."""
    out = ""
    for op, arg in members:
        if op is C.NEGATE:
            out += "^"
        elif op is C.LITERAL:
            out += escape_in_class(chr(arg))
        elif op is C.RANGE:
            out += f"{escape_in_class(chr(arg[0]))}-{escape_in_class(chr(arg[1]))}"
        elif op is C.CATEGORY and arg in _CATEGORIES:
            out += _CATEGORIES[arg]
        else:
            raise NotGrammar(f"{op} in a character class")
    return out


def named_group(items: list[Node], pattern: str, name: str) -> tuple[int, list[Node]]:
    """Index among top-level `items` and inner nodes of group `name` of `pattern`."""
    group = re.compile(pattern, re.DOTALL).groupindex.get(name)
    for index, (op, arg) in enumerate(items):
        if op is C.SUBPATTERN and group is not None and arg[0] == group:
            return index, list(arg[3])
    raise NotGrammar(f"group {name!r} is not at the top level of {pattern!r}")


def excluded_class(items: list[Node]) -> str | None:
    """Members of the class if `items` is one or more of one negated class, else None."""
    if len(items) != 1 or items[0][0] is not C.MAX_REPEAT:
        return None
    low, high, body = items[0][1]
    if low != 1 or high is not C.MAXREPEAT or len(body) != 1:
        return None
    op, arg = body[0]
    if op is C.NOT_LITERAL:
        return escape_in_class(chr(arg))
    if op is C.IN and arg[0][0] is C.NEGATE:
        return class_body(arg[1:])
    return None


def is_lazy_text(items: list[Node]) -> bool:
    """True for `.*?` and `.+?`-like values that run to the first terminator."""
    return (
        len(items) == 1 and items[0][0] is C.MIN_REPEAT and len(items[0][1][2]) == 1 and items[0][1][2][0][0] is C.ANY
    )
