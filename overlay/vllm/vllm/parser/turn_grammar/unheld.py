# SPDX-License-Identifier: Apache-2.0
"""Keywords of JSON Schema that xgrammar passes over: an answer by such a schema may be invalid under it.

Seen with xgrammar 0.2.9; each has a case in the tests, with the invalid text that the grammar admits. What JSON Schema
itself makes a note (`format` names that nobody defines, `contentEncoding`) is none of them, nor is a `oneOf` whose
members overlap: it is held as `anyOf`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from vllm.parser.turn_grammar.definitions import TABLES, Definitions
from vllm.parser.turn_grammar.json_schemas import schemas_within

_NEVER = ("contains", "not", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
_MEETS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_NUMBERS = tuple(_MEETS)
_LENGTHS = ("minLength", "maxLength")
_WANTS_TYPE = (*_NUMBERS, *_LENGTHS, "pattern", "multipleOf")
_KINDS = ("type", "$ref", "enum", "const", "anyOf", "oneOf", "allOf")
_SHAPES = ("properties", "items", "prefixItems", "pattern", "patternProperties")
# What would constrain a value beside a reference or a union; names that JSON Schema does not define are notes.
_ASSERTS = frozenset(
    {*_KINDS, *_SHAPES, *_WANTS_TYPE, "required", "additionalProperties", "propertyNames", "minItems", "maxItems"}
    | {"minProperties", "maxProperties", "unevaluatedProperties", "unevaluatedItems"}
)
# Formats that xgrammar writes by a rule of its own: none is empty, and few are as long as their usual bounds.
_FORMATS = (
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer",
)  # fmt: skip
_USUAL_BOUND = 253  # characters: host names and, with one more, mailboxes (RFC 1035, RFC 5321)
_RAW = re.compile(r'["\x00-\x1f]|\\[\\nrtfv]')
_CLASSES = re.compile(r"[\[.*+?{(|]")
_LOOKS = re.compile(r"(?<!\\)\(\?(?:=|!|<=|<!)")


def unheld(schema: Any) -> str | None:
    """The first such keyword of `schema` with its place, for a message; None if there is none."""
    if isinstance(schema, Mapping):
        # Definitions that nothing refers to hold nothing.
        rest = {key: value for key, value in schema.items() if key not in TABLES}
        schema = {**rest, **Definitions(schema).beside(rest)}
    idle: list[str] = []
    for place, node in schemas_within(schema):
        if any(place == name or place.startswith(f"{name}.") for name in idle):
            continue
        if "if" in node and not ("then" in node or "else" in node):
            idle.append(f"{place}.if".lstrip("."))
        for keyword in _passed_over(node, typed=place.rpartition(".")[2] == "propertyNames"):
            return f"{keyword} at {place or 'the top'}"[:200]
    return None


def _passed_over(node: Mapping[str, Any], typed: bool) -> Iterator[str]:
    """typed: the place allows strings only, so that no type need be named."""
    yield from (repr(name) for name in _NEVER if name in node)
    if node.get("uniqueItems") is True:
        yield "'uniqueItems'"
    if "if" in node and ("then" in node or "else" in node):
        yield "'if'"
    types = node.get("type")
    if "multipleOf" in node and "number" in (types if isinstance(types, list) else [types]):
        yield "'multipleOf'"
    if "enum" in node or "const" in node:
        yield from _of_fixed(node)
    else:
        yield from _of_strings(node)
        if not typed and not any(kind in node for kind in _KINDS):
            yield from (f"{name!r} without a type" for name in _WANTS_TYPE if name in node)
    yield from _of_objects(node)
    yield from _of_references(node)


def _of_fixed(node: Mapping[str, Any]) -> Iterator[str]:
    """What the library admits of fixed values though it is against the rest of their schema."""
    name = "enum" if "enum" in node else "const"
    values = node["enum"] if isinstance(node.get("enum"), list) else [node.get("const")]
    numbers = [value for value in values if _is(value, "number")]
    for bound, meets in _MEETS.items():
        if _is(limit := node.get(bound), "number") and not all(meets(value, limit) for value in numbers):
            yield f"{bound!r} beside {name!r}"
    if (types := node.get("type")) is not None:
        named = [*(types if isinstance(types, list) else [types]), *["null"] * (node.get("nullable") is True)]
        if not all(any(_is(value, kind) for kind in named) for value in values):
            yield f"'type' beside {name!r} of another type"


def _is(value: Any, kind: Any) -> bool:
    if kind in ("integer", "number"):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return not isinstance(value, bool) and (whole or (kind == "number" and isinstance(value, float)))
    kinds = {"string": str, "boolean": bool, "object": Mapping, "array": list, "null": type(None)}
    return isinstance(kind, str) and kind in kinds and isinstance(value, kinds[kind])


def _of_strings(node: Mapping[str, Any]) -> Iterator[str]:
    low, high = node.get("minLength", 0), node.get("maxLength", _USUAL_BOUND)
    if "pattern" in node and any(name in node for name in _LENGTHS):
        yield "a length beside 'pattern'"
    elif node.get("format") in _FORMATS and not (low in (0, 1) and isinstance(high, int) and high >= _USUAL_BOUND):
        yield "a length beside 'format'"
    if isinstance(pattern := node.get("pattern"), str):
        if _LOOKS.search(pattern):
            yield "a look-around in 'pattern'"
        # A pattern of literals alone is written as it stands, which is no JSON.
        if _RAW.search(pattern) and not _CLASSES.search(pattern):
            yield "a character that JSON escapes in 'pattern'"


def _of_objects(node: Mapping[str, Any]) -> Iterator[str]:
    properties, required = node.get("properties", {}), node.get("required")
    if isinstance(properties, Mapping):
        if "propertyNames" in node and "properties" in node:
            yield "'propertyNames' beside 'properties'"
        named = required if isinstance(required, list) else []
        missing = [name for name in named if not isinstance(name, str) or name not in properties]
        if missing:
            yield f"'required' of {str(missing[0])[:40]!r}, which 'properties' lacks,"


def _of_references(node: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in node:
        if not (isinstance(node["$ref"], str) and node["$ref"].startswith("#")):
            yield "a '$ref' to another document"
        elif node["$ref"][1:2] not in ("", "/"):
            yield "a '$ref' to an anchor"
        yield from (f"{name!r} beside '$ref'" for name in node if name in _ASSERTS and name not in ("$ref", "type"))
        return
    if isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1:
        yield "'allOf' of more than one"
    for union in ("anyOf", "oneOf", "allOf"):
        members = node.get(union)
        if not isinstance(members, list):
            continue
        beside = [name for name in node if name in _ASSERTS and name not in (union, "type")]
        if beside:
            yield f"{beside[0]!r} beside {union!r}"
        shaped = (isinstance(m, Mapping) and any(k in m for k in (*_KINDS, *_SHAPES)) for m in members)
        if "type" in node and not all(shaped):
            yield f"a member of {union!r} without a type"
