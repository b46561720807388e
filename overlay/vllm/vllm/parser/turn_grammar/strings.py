# SPDX-License-Identifier: Apache-2.0
"""Grammar of a raw string value: enumeration, format, pattern, length, or any text.

A raw value has no quotes and no escapes, so a constraint may be used only if nothing it can
write begins a delimiter. Where it could, the value is left to any text without delimiters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.parser.chat_format.patterns import sre as C
from vllm.parser.turn_grammar import formats as f
from vllm.parser.turn_grammar import patterns
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.patterns import Node

MAX_REPEAT_COUNT = 256
# Longest text whose length xgrammar counts.
MAX_CHARS = 2**31 - 1

_HEX = "[0-9a-fA-F]"
_DAY = r"[0-9]{4}\-(?:0[1-9]|1[0-2])\-(?:0[1-9]|[12][0-9]|3[01])"
_CLOCK = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

# RFC 3339 (date, time), RFC 5321 dot-atom mailboxes, RFC 1123 host names, RFC 9562, RFC 3986.
STRING_FORMATS = {
    "date": _DAY,
    "time": _CLOCK,
    "date-time": f"{_DAY}[Tt]{_CLOCK}",
    "email": rf"[A-Za-z0-9_!#$%&'*+/=?^`{{|}}~\-]+(?:\.[A-Za-z0-9_!#$%&'*+/=?^`{{|}}~\-]+)*"
    rf"@{_LABEL}(?:\.{_LABEL})*",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "uuid": rf"{_HEX}{{8}}(?:\-{_HEX}{{4}}){{3}}\-{_HEX}{{12}}",
    "uri": r"[A-Za-z][A-Za-z0-9+.\-]*:(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=\-]|%" + _HEX + "{2})+",
}


def string_value(schema: Mapping[str, Any], delimiters: Sequence[str], *, strips: bool = False) -> f.Format:
    """Format of the raw text of a value whose schema is or admits a string."""
    values = schema["enum"] if "enum" in schema else ([schema["const"]] if "const" in schema else None)
    if values is not None and not isinstance(values, list):
        raise NotGrammar("the enumeration is not a list")
    if values is not None and all(isinstance(value, str) for value in values):
        return f.any_of(literals(values, delimiters))
    starts = {delimiter[0] for delimiter in delimiters if delimiter}
    if (own := _pattern(schema, starts)) is not None:
        return f.regex(own)
    # Stripped white space would not count towards a length.
    return _sized_text(schema, delimiters, starts | set(" \t\r\n") if strips else starts)


def literals(values: Sequence[str], delimiters: Sequence[str]) -> list[str]:
    """Those of `values` that contain no delimiter; raises NotGrammar if none is left."""
    spelled = [value for value in values if not any(delimiter in value for delimiter in delimiters)]
    if not spelled:
        raise NotGrammar("every value of the enumeration contains a delimiter")
    return spelled


def may_write(pattern: str, delimiters: Sequence[str]) -> bool:
    """Whether some match of `pattern` may begin one of `delimiters`; also where that is not certain."""
    try:
        return _writes(unanchored(patterns.nodes(pattern)), {delimiter[0] for delimiter in delimiters if delimiter})
    except NotGrammar:
        return True


def _pattern(schema: Mapping[str, Any], starts: set[str]) -> str | None:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        try:
            items = unanchored(patterns.nodes(pattern))
            if items and not _writes(items, starts):
                return patterns.render(items)
        except NotGrammar:
            pass
        return None
    name = schema.get("format")
    return STRING_FORMATS.get(name) if isinstance(name, str) else None


def unanchored(items: list[Node]) -> list[Node]:
    """`items` without anchors at its ends.

    JSON Schema searches for a pattern; a text that matches it as a whole always contains it,
    so a pattern without anchors is read as the whole text.
    """
    if len(items) == 1 and items[0][0] is C.BRANCH:
        branches = [unanchored(list(branch)) for branch in items[0][1][1]]
        return [(C.BRANCH, (None, branches))]
    edges = (C.AT_BEGINNING, C.AT_END)
    while items and items[0] == (C.AT, edges[0]):
        items = items[1:]
    while items and items[-1] == (C.AT, edges[1]):
        items = items[:-1]
    return items


def _writes(items: list[Node], chars: set[str]) -> bool:
    """True if some match of `items` may contain one of `chars`. Bounds are checked too."""
    for op, arg in items:
        if op is C.LITERAL:
            hit = chr(arg) in chars
        elif op is C.IN:
            hit = _class_admits(arg, chars)
        elif op is C.SUBPATTERN:
            hit = _writes(list(arg[3]), chars)
        elif op is C.BRANCH:
            hit = any(_writes(list(branch), chars) for branch in arg[1])
        elif op in (C.MAX_REPEAT, C.MIN_REPEAT):
            low, high, body = arg
            if low > MAX_REPEAT_COUNT or (high is not C.MAXREPEAT and high > MAX_REPEAT_COUNT):
                raise NotGrammar(f"more than {MAX_REPEAT_COUNT} repetitions")
            hit = _writes(list(body), chars)
        else:
            hit = True
        if hit:
            return True
    return False


def _class_admits(members: list[Node], chars: set[str]) -> bool:
    import re

    body = re.compile(f"[{patterns.class_body(members)}]")
    return any(body.fullmatch(char) for char in chars)


def _sized_text(schema: Mapping[str, Any], delimiters: Sequence[str], starts: set[str]) -> f.Format:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    low = low if type(low) is int and 0 < low <= MAX_REPEAT_COUNT else 0
    high = high if type(high) is int and low <= high <= MAX_CHARS else None
    if not low:
        return f.text(delimiters, max_chars=high)
    # The mandatory characters begin no delimiter, so none can straddle the two parts.
    taken = "".join(sorted(map(patterns.escape_in_class, starts)))
    head = f.regex(f"[^{taken}]{{{low}}}")
    if high == low:
        return head
    return f.seq(head, f.text(delimiters, max_chars=None if high is None else high - low))
