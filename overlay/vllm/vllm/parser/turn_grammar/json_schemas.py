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


def mapped(schema: Any, change: Callable[[str, Any], Any]) -> Any:
    """`schema` with `change(keyword, value)` in place of each value that is neither a schema nor data."""
    if isinstance(schema, list):
        return [mapped(member, change) for member in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value
        if key in _DATA
        else {name: mapped(member, change) for name, member in value.items()}
        if key in _MAPS and isinstance(value, Mapping)
        else mapped(value, change)
        if isinstance(value, (list, Mapping))
        else change(key, value)
        for key, value in schema.items()
    }


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
