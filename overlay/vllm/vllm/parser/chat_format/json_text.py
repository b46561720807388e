# SPDX-License-Identifier: Apache-2.0
"""JSON that every client can read: RFC 8259 only, whatever the model wrote.

Python's own reader and writer accept `NaN` and `Infinity` and pass unpaired surrogates, which no strict JSON reader and
no UTF-8 encoder takes.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any

import regex

_SURROGATE = regex.compile("[\ud800-\udfff]")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def loads(text: str) -> Any:
    """Read strict JSON. Raises ValueError also for NaN, Infinity and nesting beyond the interpreter's stack."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dumps(value: Any) -> str:
    """Write strict JSON, non-ASCII kept. Raises ValueError for values JSON cannot hold (infinite floats, deep
    nesting)."""
    try:
        return _escape_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def string_body(text: str) -> str:
    """`text` escaped as the inside of a JSON string. Characters are escaped one by one, so pieces may be joined."""
    body = encode_basestring(text)[1:-1]
    return body if body.isascii() else _escape_surrogates(body)


def _escape_surrogates(text: str) -> str:
    if text.isascii():
        return text
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
