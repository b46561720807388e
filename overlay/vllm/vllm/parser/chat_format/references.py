# SPDX-License-Identifier: Apache-2.0
"""Declared types behind references: tools written with pydantic declare nested parameters as `$ref` into `$defs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_MAX_DEPTH = 16
# Schemas looked at for one property; members of unions that refer to unions would double at each level.
_MAX_SCHEMAS = 256
_UNIONS = ("anyOf", "oneOf")


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


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a JSON pointer behind `#` names; None if nothing."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    node: Any = root
    for step in unquote(reference[2:]).split("/"):
        if not isinstance(node, Mapping):
            return None
        node = node.get(step.replace("~1", "/").replace("~0", "~"))
    return node
