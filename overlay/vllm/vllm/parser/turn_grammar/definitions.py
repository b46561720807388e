# SPDX-License-Identifier: Apache-2.0
"""The definitions that a property's schema reaches by its references: what goes into its grammar beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from vllm.parser.turn_grammar.json_schemas import mapped

TABLES = ("$defs", "definitions")


def through_definitions(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` with its references to itself (`#`), or to a place of it outside its definitions, led through an entry
    of `$defs` that holds it: a property's grammar is made of the property and of definitions, and there `#` is the
    property."""
    tables = schema.get("$defs")
    if tables is not None and not isinstance(tables, Mapping):
        return schema
    name = "root"
    while tables and name in tables:
        name += "_"
    changed = False

    def led(key: str, value: Any) -> Any:
        nonlocal changed
        path = value[1:] if key == "$ref" and isinstance(value, str) and value.startswith("#") else None
        if path is None or path[:1] not in ("", "/") or unquote(path[1:]).partition("/")[0] in TABLES:
            return value
        changed = True
        return f"#/$defs/{name}{path}"

    new = mapped(schema, led)
    if not changed:
        return schema
    whole = {key: value for key, value in new.items() if key not in TABLES}
    return {**new, "$defs": {**new.get("$defs", {}), name: whole}}


class Definitions:
    """The `$defs` and `definitions` of one schema."""

    def __init__(self, schema: Mapping[str, Any]):
        self._entries = {
            (table, name): entry
            for table in TABLES
            if isinstance(schema.get(table), Mapping)
            for name, entry in schema[table].items()
        }

    @cached_property
    def _next(self) -> dict[tuple[str, str], frozenset[tuple[str, str]]]:
        return {key: frozenset(self._named(entry)) for key, entry in self._entries.items()}

    @cached_property
    def _bytes(self) -> dict[tuple[str, str], int]:
        return {key: len(json.dumps(entry)) for key, entry in self._entries.items()}

    def _named(self, node: Any) -> Iterator[tuple[str, str]]:
        """Entries that `node` refers to itself."""
        if isinstance(node, Mapping):
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/"):
                table, _, name = unquote(reference[2:]).partition("/")
                for spelled in {name, name.partition("/")[0], name.replace("~1", "/").replace("~0", "~")}:
                    if (table, spelled) in self._entries:
                        yield table, spelled
            node = list(node.values())
        if isinstance(node, list):
            for member in node:
                yield from self._named(member)

    def _reached(self, node: Any) -> Iterator[tuple[str, str]]:
        pending = list(dict.fromkeys(self._named(node)))
        seen = set(pending)
        while pending:
            key = pending.pop()
            yield key
            new = self._next[key] - seen
            seen |= new
            pending += new

    def beside(self, node: Any) -> dict[str, dict[str, Any]]:
        """The tables with the entries that `node` reaches, empty if none."""
        found: dict[str, dict[str, Any]] = {}
        if self._entries:
            for table, name in sorted(self._reached(node)):
                found.setdefault(table, {})[name] = self._entries[table, name]
        return found

    def size(self, node: Any, limit: int) -> int:
        """Bytes of `node` and what it reaches as JSON; counting ends above `limit`."""
        total = len(json.dumps(node))
        if self._entries:
            for key in self._reached(node):
                total += self._bytes[key]
                if total > limit:
                    break
        return total
