# SPDX-License-Identifier: Apache-2.0
"""Keywords of JSON Schema that xgrammar passes over: an answer by such a schema may be invalid under it.

Seen with xgrammar 0.2.9; each has a case in the tests, with the invalid text that the grammar admits. What JSON Schema
itself makes a note (`format` names that nobody defines, `contentEncoding`) is none of them, nor is a `oneOf` whose
members overlap: it is held as `anyOf`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vllm.parser.turn_grammar.json_schemas import ANNOTATIONS, schemas_within

_NEVER = ("contains", "not", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTHS = ("minLength", "maxLength")
_WANTS_TYPE = (*_NUMBERS, *_LENGTHS, "pattern", "multipleOf")
# Beside a reference or a union these constrain nothing, or nothing more.
_BESIDE = frozenset({*ANNOTATIONS, "$defs", "definitions", "$id", "nullable"})
_KINDS = ("type", "$ref", "enum", "const", "anyOf", "oneOf", "allOf")
_LOOKS = re.compile(r"(?<!\\)\(\?(?:=|!|<=|<!)")


def unheld(schema: Any) -> str | None:
    """The first such keyword of `schema` with its place, for a message; None if there is none."""
    for place, node in schemas_within(schema):
        for keyword in _passed_over(node):
            return f"{keyword} at {place or 'the top'}"[:200]
    return None


def _passed_over(node: Mapping[str, Any]) -> Iterator[str]:
    yield from (repr(name) for name in _NEVER if name in node)
    if node.get("uniqueItems") is True:
        yield "'uniqueItems'"
    if "if" in node and ("then" in node or "else" in node):
        yield "'if'"
    if "multipleOf" in node and node.get("type") not in ("integer", None):
        yield "'multipleOf'"
    fixed = "enum" in node or "const" in node
    if not fixed:
        yield from _of_strings(node)
        if not any(kind in node for kind in _KINDS):
            yield from (f"{name!r} without a type" for name in _WANTS_TYPE if name in node)
    yield from _of_objects(node)
    yield from _of_references(node)


def _of_strings(node: Mapping[str, Any]) -> Iterator[str]:
    shaped = next((name for name in ("pattern", "format") if name in node), None)
    if shaped and any(name in node for name in _LENGTHS):
        yield f"a length beside {shaped!r}"
    if isinstance(pattern := node.get("pattern"), str) and _LOOKS.search(pattern):
        yield "a look-around in 'pattern'"


def _of_objects(node: Mapping[str, Any]) -> Iterator[str]:
    properties, required = node.get("properties"), node.get("required")
    if isinstance(properties, Mapping):
        if "propertyNames" in node:
            yield "'propertyNames' beside 'properties'"
        missing = [n for n in required if n not in properties] if isinstance(required, list) else []
        if missing:
            yield f"'required' of {str(missing[0])[:40]!r}, which 'properties' lacks,"


def _of_references(node: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in node:
        if not (isinstance(node["$ref"], str) and node["$ref"].startswith("#")):
            yield "a '$ref' to another document"
        yield from (f"{name!r} beside '$ref'" for name in node if name not in _BESIDE and name not in ("$ref", "type"))
        return
    if isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1:
        yield "'allOf' of more than one"
    for union in ("anyOf", "oneOf", "allOf"):
        members = node.get(union)
        if not isinstance(members, list):
            continue
        beside = [name for name in node if name not in _BESIDE and name not in (union, "type")]
        if beside:
            yield f"{beside[0]!r} beside {union!r}"
        if "type" in node and not all(isinstance(m, Mapping) and any(k in m for k in _KINDS) for m in members):
            yield f"a member of {union!r} without a type"
