# SPDX-License-Identifier: Apache-2.0
"""JSON schemas and tools that several API gates send, and validation of what comes back (jsonschema library)."""

from __future__ import annotations

import json
from typing import Any

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ALARM: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "set_alarm",
        "description": "Set an alarm at a full hour.",
        "parameters": {
            "type": "object",
            "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 9}, "loud": {"type": "boolean"}},
            "required": ["hour", "loud"],
            "additionalProperties": False,
        },
    },
}
PING: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "ping",
        "description": "Check that the service is up.",
        "parameters": {"type": "object", "properties": {}},
    },
}
WRITE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write text to a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            "required": ["path", "text"],
            "additionalProperties": False,
        },
    },
}
FLAT: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "point": {
            "type": "object",
            "properties": {"x": {"enum": [0, 1]}, "y": {"enum": [0, 1]}},
            "required": ["x", "y"],
            "additionalProperties": False,
        }
    },
    "required": ["point"],
    "additionalProperties": False,
}
ENUM: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
ARRAY: dict[str, Any] = {
    "type": "object",
    "properties": {"items": {"type": "array", "minItems": 1, "maxItems": 3, "items": ENUM}},
    "required": ["items"],
    "additionalProperties": False,
}
SCHEMAS = {"flat": FLAT, "nested": NESTED, "enum": ENUM, "array": ARRAY}


def problem(text: str | None, schema: dict[str, Any]) -> str:
    """What is wrong with a JSON text under a schema; "" where nothing is."""
    import jsonschema  # here, as the tiny model's training wants the tools and has no use for the validator

    try:
        jsonschema.validate(json.loads(text or ""), schema)
    except (ValueError, RecursionError) as error:  # a model that loops nests without end
        return f"not JSON ({error}): {str(text)[:80]!r}"
    except jsonschema.ValidationError as error:
        return f"invalid: {error.message}"
    return ""


def call_problem(call: dict[str, Any], tools: list[dict[str, Any]]) -> str:
    """What is wrong with one tool call: unknown name, no id, or arguments that the tool's schema refuses."""
    function = call.get("function") or {}
    names = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    if call.get("type") != "function" or not call.get("id"):
        return f"a call without id or type: {call}"
    if function.get("name") not in names:
        return f"unknown tool {function.get('name')!r}"
    return problem(function.get("arguments"), names[function["name"]])


def response_format(schema: dict[str, Any], name: str = "answer") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
