# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as xgrammar takes them beside excluded substrings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_LENGTHS = ("minLength", "maxLength")
_PATTERNS = ("pattern", "patternProperties", "propertyNames")
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
# What a schema says to people; no value depends on it.
ANNOTATIONS = (
    "$schema",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
)
_DATA = frozenset({"enum", "const", "default", "examples", "required"})


MAX_COUNT = 100_000
# One character of a JSON string as it is written; escaped surrogates would count as two.
_CHARACTER = (
    r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|'
    r"[dD][0-7][0-9a-fA-F]{2}))"
)


def sized_strings_as_patterns(schema: Any) -> Any:
    """`schema` with the length of plain strings written as a pattern.

    xgrammar's own form of a length admits raw control characters, which is not JSON. Its
    patterns are matched against the text as written, so escapes are part of this one.
    """
    if isinstance(schema, list):
        return [sized_strings_as_patterns(member) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("type") == "string" and not {"pattern", "format", "enum", "const"} & set(schema):
        low, high = schema.get("minLength", 0), schema.get("maxLength")
        bounded = any(name in schema for name in _LENGTHS)
        if bounded and _counts(low) and (high is None or (_counts(high) and high >= low)):
            rest = {key: value for key, value in schema.items() if key not in _LENGTHS}
            return {**rest, "pattern": f"^{_CHARACTER}{{{low},{'' if high is None else high}}}$"}
    return {
        key: value
        if key in _DATA
        else {name: sized_strings_as_patterns(member) for name, member in value.items()}
        if key in _MAPS and isinstance(value, Mapping)
        else sized_strings_as_patterns(value)
        for key, value in schema.items()
    }


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def schemas_within(schema: Any, place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """`schema` and every schema inside it, each with its place, as `properties.a.items`."""
    if not isinstance(schema, Mapping):
        return
    yield place, schema
    for key, value in schema.items():
        if key in _DATA:
            continue
        here = f"{place}.{key}" if place else key
        if key in _MAPS and isinstance(value, Mapping):
            for name, member in value.items():
                yield from schemas_within(member, f"{here}.{name}")
        elif isinstance(value, list):
            for index, member in enumerate(value):
                yield from schemas_within(member, f"{here}[{index}]")
        else:
            yield from schemas_within(value, here)


def bounds_string_length(schema: Any) -> bool:
    """Whether `minLength` or `maxLength` constrains a string anywhere in `schema`."""
    return without(schema, _LENGTHS) != schema


def has_patterns(schema: Any) -> bool:
    """Whether a pattern constrains a string or a key anywhere in `schema`: xgrammar excludes no substrings there."""
    return without(schema, _PATTERNS) != schema


def excludable(schema: Any, may_write: Callable[[str], bool]) -> Any:
    """`schema` without what xgrammar cannot hold beside excluded substrings: string lengths, for which it would print a
    warning at each compilation, and the patterns of strings that may write the substrings.
    """
    return without(
        schema, _LENGTHS, lambda key, value: key == "pattern" and isinstance(value, str) and may_write(value)
    )


def without(schema: Any, keywords: tuple[str, ...], dropped: Callable[[str, Any], bool] | None = None) -> Any:
    """`schema` without `keywords`, and what else is `dropped` by its keyword and value, at any depth."""
    if isinstance(schema, list):
        return [without(member, keywords, dropped) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in keywords or (dropped is not None and dropped(key, value)):
            continue
        if key in _DATA:
            result[key] = value
        elif key in _MAPS and isinstance(value, Mapping):
            result[key] = {name: without(member, keywords, dropped) for name, member in value.items()}
        else:
            result[key] = without(value, keywords, dropped)
    return result
