# SPDX-License-Identifier: Apache-2.0
"""Declared types behind references and fixed values, as tools written with Pydantic and Zod have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_MAX_DEPTH = 16
# Schemas looked at for one property; members of unions that refer to unions would double at each level.
_MAX_SCHEMAS = 256
_UNIONS = ("anyOf", "oneOf")
# In the order in which a text is tried.
_KINDS = {"integer": int, "number": float, "boolean": bool, "null": type(None), "object": Mapping, "array": list}


def followed(schema: Any, root: Mapping[str, Any]) -> Any:
    """`schema` with what decides its type in place: local references, an `allOf` of one, members of unions.

    A reference that leads nowhere, elsewhere or back to itself stays, and gives no type.

    Args:
        root: the schema that `#` stands for, a tool's `parameters`.
    """
    return _followed(schema, root, 0, [_MAX_SCHEMAS])


def _followed(schema: Any, root: Mapping[str, Any], depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or left[0] < 0:
        return schema
    lead = schema.get("allOf")
    if "$ref" in schema:
        target, key = _target(schema["$ref"], root), "$ref"
    elif isinstance(lead, list) and len(lead) == 1:
        target, key = lead[0], "allOf"
    else:
        changed = {
            union: [_followed(member, root, depth + 1, left) for member in schema[union]]
            for union in _UNIONS
            if isinstance(schema.get(union), list)
        }
        return {**schema, **changed} if changed else schema
    if not isinstance(target, Mapping):
        return schema
    rest = {name: value for name, value in schema.items() if name != key}
    return _followed({**target, **rest}, root, depth + 1, left)


def typed_by_values(schema: Any) -> Any:
    """`schema`, followed, with the types of its fixed values where it names none: `Literal["auto", None]`."""
    if not isinstance(schema, Mapping) or not {"type", "$ref", "allOf"}.isdisjoint(schema):
        return schema
    unions = {
        union: list(map(typed_by_values, schema[union])) for union in _UNIONS if isinstance(schema.get(union), list)
    }
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if unions or not isinstance(values, list) or not values:
        return {**schema, **unions}
    kinds = [name for name, kind in _KINDS.items() if any(_is(value, kind) for value in values)]
    return {**schema, "type": kinds + ["string"] * any(isinstance(value, str) for value in values)}


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a JSON pointer behind `#` names; None if nothing."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    node: Any = root
    if reference == "#":
        return node
    for step in unquote(reference[2:]).split("/"):
        if not isinstance(node, Mapping):
            return None
        node = node.get(step.replace("~1", "/").replace("~0", "~"))
    return node
