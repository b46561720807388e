# SPDX-License-Identifier: Apache-2.0
"""Grammar of one argument's value under its property's JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.parser.chat_format import json_text
from vllm.parser.chat_format.conversion import JsonConversion, convert
from vllm.parser.turn_grammar import formats as f
from vllm.parser.turn_grammar.definitions import Definitions
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.json_schemas import excludable
from vllm.parser.turn_grammar.strings import literals, may_write, string_value

JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})


_UNTYPED = frozenset({"title", "description", "default", "examples", "deprecated", "enum", "const"})


def _reads_as_text(schema: Mapping[str, Any]) -> bool:
    """Whether a schema without a type admits any text, or only strings that no parser takes for something else."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return (
        _UNTYPED.issuperset(schema)
        and isinstance(values, list)
        and all(isinstance(item, str) and not _is_json(item) for item in values)
    )


def _is_json(text: str) -> bool:
    try:
        json_text.loads(text)
    except ValueError:
        return False
    return True


def declared_types(schema: Any) -> tuple[str, ...]:
    """Types a property declares, in order: `type`, else its `anyOf`/`oneOf` members', then
    `null` if `nullable`. Empty when a type is unknown or missing anywhere, unless the schema asks for no more than
    text."""
    if not isinstance(schema, Mapping):
        return ()
    named = schema.get("type")
    members = schema.get("anyOf") or schema.get("oneOf") or []
    if not isinstance(named, (str, list, type(None))) or not isinstance(members, list):
        return ()
    types = [named] if isinstance(named, str) else list(named or ())
    if not types:
        for member in members:
            inner = declared_types(member)
            if not inner:
                return ()
            types += inner
    if types and schema.get("nullable") is True:
        types.append("null")
    if not types and _reads_as_text(schema):
        return ("string",)
    if not all(isinstance(name, str) and name in JSON_TYPES for name in types):
        return ()
    return tuple(dict.fromkeys(types))


def value(
    schema: Mapping[str, Any], definitions: Definitions, delimiters: Sequence[str], *, strips: bool = False
) -> f.Format:
    """Format of the text of one value.

    Args:
        schema: the property's schema, typed by `declared_types`.
        definitions: those of the tool's schema; what the property reaches is kept beside it.
        delimiters: substrings the text may not hold.
        strips: the parser strips white space around the text.
    """
    types = declared_types(schema)
    if not types:
        raise NotGrammar("the property declares no type")
    members = schema.get("anyOf") or schema.get("oneOf")
    union = members and "type" not in schema and "nullable" not in schema
    if types == ("string",) and not union:
        return string_value(schema, delimiters, strips=strips)
    if "string" not in types:
        return _json(schema, types, definitions, delimiters)
    if isinstance(values := schema.get("enum"), list) and values:
        return f.any_of(literals(_read_back(values, types), delimiters))
    if union:
        return f.alt(*(value(member, definitions, delimiters, strips=strips) for member in members))
    return f.text(delimiters)


def _read_back(values: Sequence[Any], types: tuple[str, ...]) -> list[str]:
    """The texts of `values` that the parsers read as one of them: beside a type of its own, the text `1` is no string.

    Raises:
        NotGrammar: there is none.
    """

    def member(read: Any) -> bool:
        return any(read == item and isinstance(read, bool) == isinstance(item, bool) for item in values)

    texts = [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in values]
    found = [
        text for text in texts if member(convert(text, types)) and member(json.loads(JsonConversion(types).value(text)))
    ]
    if not found:
        raise NotGrammar("every value of the enumeration is read as another type")
    return found


# Digits are bounded so that every number is a finite float and every integer can be read.
_NUMBERS = {
    "integer": r"-?(?:0|[1-9][0-9]{0,400})",
    "number": r"-?(?:0|[1-9][0-9]{0,200})(?:\.[0-9]{1,200})?(?:[eE][+\-]?[0-9]{1,2})?",
}
_UNBOUNDED = frozenset({"type", "title", "description", "default", "examples"})


def _json(
    schema: Mapping[str, Any], types: Sequence[str], definitions: Definitions, delimiters: Sequence[str]
) -> f.Format:
    if len(types) == 1 and types[0] in _NUMBERS and _UNBOUNDED.issuperset(schema):
        return f.regex(_NUMBERS[types[0]])
    body: dict[str, Any] = dict(schema)
    if body.pop("nullable", None) is True:
        body = {"anyOf": [body, {"type": "null"}]}
    body.update(definitions.beside(body))
    return f.accepted(f.json_value(excludable(body, lambda pattern: may_write(pattern, delimiters)), delimiters))
