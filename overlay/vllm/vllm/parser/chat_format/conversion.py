# SPDX-License-Identifier: Apache-2.0
"""From a parameter's text to its JSON value, and when that value is certain to be the text itself.

A conversion reads the text piece by piece (`undecided`) and says whether the finished text could still become something
other than a JSON string. While it could, the text must be held back; once it cannot, it can be streamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import regex
from vllm.parser.chat_format import json_text

_MAX_UNION_DEPTH = 16
_JSON_SPACE = " \t\n\r"
# Text with any other character cannot be read by int() or float() as a finite number.
_NOT_NUMERIC = regex.compile(r"[^\s\d+\-_.eE]")
_NOT_JSON_NUMERIC = regex.compile(r"[^0-9+\-.eE \t\n\r]")
_DIGITS = regex.compile(r"[+-]?[0-9]+")
_WORDS = {"boolean": ("true", "false", "0", "1"), "null": ("null", "None")}


def schema_types(schema: Any, depth: int = 0) -> tuple[str, ...]:
    """The JSON Schema types a property declares, in the order they are tried: `type`, then the members of `anyOf` and
    `oneOf`, then null if `nullable`."""
    if not isinstance(schema, Mapping) or depth > _MAX_UNION_DEPTH:
        return ()
    declared = schema.get("type")
    types = [declared] if isinstance(declared, str) else []
    if isinstance(declared, list):
        types += [name for name in declared if isinstance(name, str)]
    for union in ("anyOf", "oneOf"):
        members = schema.get(union)
        for member in members if isinstance(members, list) else ():
            types += schema_types(member, depth + 1)
    if schema.get("nullable") and "null" not in types:
        types.append("null")
    return tuple(dict.fromkeys(types))


def convert(text: str, types: tuple[str, ...]) -> Any:
    """The value of `text` under the first of `types` that fits; the text itself if none does or only `string` could."""
    for name in types:
        try:
            if name == "integer":
                return _integer(text)
            if name == "number":
                return _number(text)
            if name == "boolean" and text.strip().lower() in _WORDS["boolean"]:
                return text.strip().lower() in ("true", "1")
            if name == "null" and text.strip() in _WORDS["null"]:
                return None
            if name in ("object", "array"):
                value = json_text.loads(text)
                json_text.dumps(value)
                if isinstance(value, dict if name == "object" else list):
                    return value
        except (ValueError, OverflowError):
            continue
    return text


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> int | float:
    number = float(text)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("not a finite number")
    if not number.is_integer() or "." in text:
        return number
    # A float holds 53 bits; digits alone are read as they are written.
    return int(text) if _DIGITS.fullmatch(text.strip()) else int(number)


class SchemaConversion:
    """Beam's rule: the declared types decide, `convert`."""

    def __init__(self, types: tuple[str, ...]):
        self.types = types
        self._words = tuple(word for name in types for word in _WORDS.get(name, ()))
        self._numeric = "integer" in types or "number" in types
        self._openers = ("{" if "object" in types else "") + ("[" if "array" in types else "")
        self._start = ""
        self._container = False

    def undecided(self, piece: str) -> bool:
        """Take the next piece; whether the whole text may still convert."""
        if self._container:
            return True
        if not self._start:
            if self._openers and (stripped := piece.lstrip(_JSON_SPACE)):
                if stripped[0] in self._openers:
                    self._container = True
                    return True
                # Nor may a later piece begin one: white space that is none of JSON's makes the text no JSON.
                self._openers = ""
            piece = piece.lstrip()
        if self._numeric and _NOT_NUMERIC.search(piece):
            self._numeric = False
        # Words are short: a few characters more than the longest are enough to rule them out.
        self._start = (self._start + piece)[:16] if piece else self._start
        word = self._start.rstrip()
        self._words = tuple(w for w in self._words if (w if w[0] in "nN" else w.lower()).startswith(_case(w, word)))
        return self._numeric or bool(self._words) or (not self._start and bool(self._openers))

    def value(self, text: str) -> str:
        """The JSON text of the finished parameter."""
        return json_text.dumps(convert(text, self.types))


def _case(word: str, text: str) -> str:
    return text if word in _WORDS["null"] else text.lower()


class JsonConversion:
    """Muse's rule: JSON if the text is JSON, else the text. With `types` that admit strings, JSON of an undeclared type
    is text too, and so is a JSON string: a string is written bare, so its quotes are the value's."""

    def __init__(self, types: tuple[str, ...] = ()):
        self._types = types if "string" in types else ()
        self._start = ""
        self._kind = ""

    def undecided(self, piece: str) -> bool:
        if not self._start:
            piece = piece.lstrip(_JSON_SPACE)
            if not piece:
                return True
            first = piece[0]
            if first == '"' and self._types:
                return False
            self._kind = "container" if first in '{["' else "number" if first in "-0123456789" else "word"
        if self._kind == "container":
            self._start = self._start or piece[0]
            return True
        self._start = (self._start + piece)[:16]
        if self._kind == "number":
            return not _NOT_JSON_NUMERIC.search(piece)
        word = self._start.rstrip(_JSON_SPACE)
        return any(name.startswith(word) for name in ("true", "false", "null"))

    def value(self, text: str) -> str:
        try:
            value = json_text.loads(text)
            if self._types and (isinstance(value, str) or not any(_is_type(value, name) for name in self._types)):
                value = text
            return json_text.dumps(value)
        except ValueError:
            return json_text.dumps(text)


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, (int, float)):
        # An integer may be too large for a float.
        return name == "number" or (name == "integer" and (isinstance(value, int) or value.is_integer()))
    kinds = {"string": str, "object": dict, "array": list, "null": type(None)}
    return isinstance(value, kinds.get(name, ()))
