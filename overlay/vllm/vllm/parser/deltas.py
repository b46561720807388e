# SPDX-License-Identifier: Apache-2.0
"""Stream deltas without validation: up to three models are made for a token, and validation costs more than parsing.

The result is the same as that of the models' constructors: every field has a value, and only those given count as set.
The models' slots are set through their descriptors, the shortest way that Python has.

Reasoning has two names in use; a delta carries it under both.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel
from vllm.entrypoints.openai.engine.protocol import DeltaFunctionCall, DeltaMessage, DeltaToolCall

Model = TypeVar("Model", bound=BaseModel)
_new = object.__new__
_fields, _given, _extra, _private = (
    vars(BaseModel)[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


def message(reasoning: str, content: str, calls: list[DeltaToolCall]) -> DeltaMessage | None:
    """A delta with the parts that are not empty; None if all are."""
    given = set()
    if reasoning:
        given = {"reasoning", "reasoning_content"}
    if content:
        given.add("content")
    if calls:
        given.add("tool_calls")
    return _message(content or None, reasoning or None, calls, given) if given else None


def reasoning(text: str) -> DeltaMessage:
    """A delta of reasoning alone."""
    return _message(None, text, [], {"reasoning", "reasoning_content"})


def content(text: str) -> DeltaMessage:
    """A delta of content alone."""
    return _message(text, None, [], {"content"})


def nothing() -> DeltaMessage:
    """A delta without a part, for a chunk that carries something else."""
    return _message(None, None, [], set())


def fragment(index: int, arguments: str) -> DeltaMessage:
    """A delta that only continues the arguments of one call. Most deltas of a call are such, so nothing is called."""
    function = _new(DeltaFunctionCall)
    _fields(function, {"name": None, "arguments": arguments})
    _given(function, {"arguments"})
    _extra(function, None)
    _private(function, None)
    call = _new(DeltaToolCall)
    _fields(call, {"id": None, "type": None, "index": index, "function": function})
    _given(call, {"index", "function"})
    _extra(call, {})
    _private(call, None)
    made = _new(DeltaMessage)
    _fields(made, {"role": None, "content": None, "reasoning": None, "tool_calls": [call]})
    _given(made, {"tool_calls"})
    _extra(made, {})
    _private(made, None)
    return made


def call_start(index: int, call_id: str, name: str, arguments: str) -> DeltaToolCall:
    """The first delta of a call: the only one with id, type and name."""
    function = _made(DeltaFunctionCall, {"name": name, "arguments": arguments}, {"name", "arguments"}, None)
    values = {"id": call_id, "type": "function", "index": index, "function": function}
    return _made(DeltaToolCall, values, {"id", "type", "index", "function"}, {})


def call_fragment(index: int, arguments: str) -> DeltaToolCall:
    """A later delta of a call: more of its arguments."""
    function = _made(DeltaFunctionCall, {"name": None, "arguments": arguments}, {"arguments"}, None)
    values = {"id": None, "type": None, "index": index, "function": function}
    return _made(DeltaToolCall, values, {"index", "function"}, {})


def _message(content: str | None, reasoning: str | None, calls: list[DeltaToolCall], given: set[str]) -> DeltaMessage:
    values = {"role": None, "content": content, "reasoning": reasoning, "tool_calls": calls}
    return _made(DeltaMessage, values, given, {} if reasoning is None else {"reasoning_content": reasoning})


def _made(cls: type[Model], values: dict[str, Any], given: set[str], extra: dict[str, Any] | None) -> Model:
    made = _new(cls)
    _fields(made, values)
    _given(made, given)
    _extra(made, extra)
    _private(made, None)
    return made
