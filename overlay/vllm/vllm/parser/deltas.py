# SPDX-License-Identifier: Apache-2.0
"""Stream deltas without validation: up to three are made for a token, and validation costs more than the parsing.

The result is the same as that of the models' constructors: every field has a value, and only those given count as set.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel
from vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall

Model = TypeVar("Model", bound=BaseModel)
_set = object.__setattr__


def _made(cls: type[Model], values: dict[str, Any], given: set[str], extra: dict[str, Any] | None) -> Model:
    made = cls.__new__(cls)
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", given)
    _set(made, "__pydantic_extra__", extra)
    _set(made, "__pydantic_private__", None)
    return made


def message(reasoning: str, content: str, calls: list[DeltaToolCall]) -> DeltaMessage | None:
    """A delta with the parts that are not empty; None if all are."""
    given = {name for name, part in (("reasoning", reasoning), ("content", content), ("tool_calls", calls)) if part}
    if not given:
        return None
    values = {"role": None, "content": content or None, "reasoning": reasoning or None, "tool_calls": calls}
    return _made(DeltaMessage, values, given, {})


def call_start(index: int, call_id: str, name: str, arguments: str) -> DeltaToolCall:
    """The first delta of a call: the only one with id, type and name."""
    function = _made(DeltaFunctionCall, {"name": name, "arguments": arguments}, {"name", "arguments"}, None)
    values = {"id": call_id, "type": "function", "index": index, "function": function}
    return _made(DeltaToolCall, values, {"id", "type", "index", "function"}, {})


def call_fragment(index: int, arguments: str) -> DeltaToolCall:
    """A later delta of a call: more of its arguments."""
    function = _made(DeltaFunctionCall, {"name": None, "arguments": arguments}, {"arguments"}, None)
    return _made(
        DeltaToolCall, {"id": None, "type": None, "index": index, "function": function}, {"index", "function"}, {}
    )
