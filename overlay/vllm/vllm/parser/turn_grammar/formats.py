# SPDX-License-Identifier: Apache-2.0
"""Constructors for xgrammar structural-tag formats, as plain JSON values.

Only what a turn grammar needs. `seq` and `alt` flatten and drop what is empty, so that the
tag text, which is xgrammar's cache key, stays short and canonical.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.parser.turn_grammar.productive import dead_rules

Format = dict[str, Any]


class NotGrammar(ValueError):
    """The pattern, template or schema cannot be expressed as a grammar."""


NOTHING: Format = {"type": "const_string", "value": ""}


def const(value: str) -> Format:
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}


def text(excludes: Iterable[str] = (), *, max_tokens: int | None = None, max_chars: int | None = None) -> Format:
    """Any text without the given substrings; budgets in model tokens and code points."""
    fmt: Format = {"type": "any_text"}
    if excluded := list(dict.fromkeys(excludes)):
        fmt["excludes"] = excluded
    if max_tokens is not None:
        fmt["max_tokens"] = max_tokens
    if max_chars is not None:
        fmt["max_chars"] = max_chars
    return fmt


# Enough for indentation; a model cannot fill its token limit with white space.
MAX_WHITESPACE = 64


def json_value(schema: bool | dict[str, Any], excludes: Iterable[str] = ()) -> Format:
    fmt: Format = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}
    if excluded := list(dict.fromkeys(excludes)):
        fmt["excludes"] = excluded
    return fmt


def tag(begin: str, content: Format, end: Sequence[str]) -> Format:
    """`begin content end`, where `content` stops at the first of `end`."""
    return {"type": "tag", "begin": begin, "content": content, "end": list(end)}


def seq(*parts: Format) -> Format:
    flat: list[Format] = []
    for part in parts:
        if part == NOTHING:
            continue
        flat.extend(part["elements"] if part["type"] == "sequence" else [part])
    if not flat:
        return NOTHING
    return flat[0] if len(flat) == 1 else {"type": "sequence", "elements": flat}


def alt(*parts: Format) -> Format:
    flat: list[Format] = []
    for part in parts:
        for member in part["elements"] if part["type"] == "or" else [part]:
            if member not in flat:
                flat.append(member)
    if not flat:
        raise ValueError("an alternative needs at least one member")
    return flat[0] if len(flat) == 1 else {"type": "or", "elements": flat}


def any_of(values: Iterable[str]) -> Format:
    return alt(*(const(value) for value in values))


def opt(content: Format) -> Format:
    return NOTHING if content == NOTHING else {"type": "optional", "content": content}


def star(content: Format) -> Format:
    return {"type": "star", "content": content}


def structural_tag(content: Format) -> dict[str, Any]:
    return {"type": "structural_tag", "format": content}


def accepted(fmt: Format) -> Format:
    """`fmt` if xgrammar takes it on its own.

    Raises:
        NotGrammar: it does not (an unresolvable reference, a schema nothing satisfies, a
            pattern outside its dialect), or a schema has a part that no finite JSON satisfies, such as an object
            that must hold one of its kind.
    """
    if (reason := _refusal(json.dumps(structural_tag(fmt)))) is not None:
        raise NotGrammar(reason)
    return fmt


# The library's errors begin with the time and its own source line.
_LOG_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


# By a digest: the texts may be large, and they are a client's.
_KNOWN: dict[bytes, str | None] = {}
_KNOWN_TEXTS = 1024
_LOCK = threading.Lock()
_REASON_CHARS = 500


def _refusal(tag_text: str) -> str | None:
    key = hashlib.sha256(tag_text.encode("utf-8", "surrogatepass")).digest()
    with _LOCK:
        if key in _KNOWN:
            return _KNOWN[key]
    reason = _judged(tag_text)
    with _LOCK:
        if len(_KNOWN) >= _KNOWN_TEXTS:
            _KNOWN.pop(next(iter(_KNOWN)))
        _KNOWN[key] = reason
    return reason


def _judged(tag_text: str) -> str | None:
    import xgrammar as xgr

    try:
        grammar = xgr.Grammar.from_structural_tag(tag_text)
    except Exception as error:  # the library raises RuntimeError and errors of its own
        return _LOG_PREFIX.sub("", str(error)).strip()[:_REASON_CHARS]
    if '"$ref"' in tag_text and dead_rules(grammar):
        return "no finite JSON satisfies all of it; make what refers to itself optional"
    return None
