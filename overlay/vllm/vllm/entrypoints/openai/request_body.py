# SPDX-License-Identifier: Apache-2.0
"""What is checked of a request's body before anything reads it: chat completions, completions, Responses, Messages.

    fault                                  would otherwise be
    nesting beyond MAX_DEPTH               a RecursionError wherever a reader descends
    an integer that 64 bits cannot hold    an internal error without text, where the request goes to the engine
    an unpaired surrogate                  a complaint of the tokenizer without a place, or an answer nobody can encode
    a field of the wrong kind              an internal error of a validator that reads it unchecked

Each is an error that names the field and what to send.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from vllm.exceptions import VLLMValidationError

MAX_DEPTH = 240
# What the engine's message format can carry: signed and unsigned 64 bits.
INTEGERS = range(-(2**63), 2**64)
# Fields whose integers are text for a template, or checked against the vocabulary.
_DATA = frozenset({"messages", "input", "system", "tools", "chat_template_kwargs", "metadata", "prompt"})
# A call's arguments are repaired where they are read.
_REPAIRED = frozenset({"arguments", "input"})
_CRASHES = (AttributeError, TypeError, LookupError, RecursionError)


def checked_body(cls: Any, data: Any, handler: Callable[[Any], Any]) -> Any:
    """Wrap validator of a request model.

    Raises:
        VLLMValidationError: a fault of the table above. Its `parameter` is the field.
    """
    if not isinstance(data, dict):
        return handler(data)
    # Names with an underscore are the server's own notes on a request.
    body = {name: value for name, value in data.items() if not (isinstance(name, str) and name.startswith("_"))}
    for name, value in body.items():
        _check_text(name, "a name of the body", "body")
        _check_field(name, value)
    _check_json_text(body.get("structured_outputs"))
    try:
        request = handler(body)
    except _CRASHES as error:
        raise _blamed(cls, body, error) from error
    for name, value in request.__dict__.items():
        # Text that spells an integer was taken for one.
        if isinstance(value, int):
            _check_integer(value, name, name)
    return request


def _check_field(name: str, value: Any) -> None:
    """Depth, integers and text of one field, level by level."""
    bounded = name not in _DATA
    kinds = (dict, list, str, int) if bounded else (dict, list, str)
    level: list[tuple[Any, Any, bool]] = [(value, name, True)] if isinstance(value, kinds) else []
    for _ in range(MAX_DEPTH):
        below: list[tuple[Any, Any, bool]] = []
        for node, place, text in level:
            if isinstance(node, str):
                if text:
                    _check_text(node, place, name)
            elif isinstance(node, int):
                _check_integer(node, place, name)
            elif isinstance(node, list):
                below += [(child, (place, key), text) for key, child in enumerate(node) if isinstance(child, kinds)]
            else:
                for key, child in node.items():
                    if text:
                        _check_text(key, (place, key), name)
                    if isinstance(child, kinds):
                        below.append((child, (place, key), text and key not in _REPAIRED))
        if not below:
            return
        level = below
    raise VLLMValidationError(f"{name} nests deeper than {MAX_DEPTH} levels; flatten it", parameter=name)


def _check_integer(value: int, place: Any, name: str) -> None:
    if value not in INTEGERS:
        raise VLLMValidationError(
            f"{_spelled(place)} is an integer of {value.bit_length()} bits; send one of at most 64", parameter=name
        )


def _check_text(text: Any, place: Any, name: str) -> None:
    if not isinstance(text, str) or text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise VLLMValidationError(
            f"{_spelled(place)} holds an unpaired surrogate at character {error.start}; send valid Unicode",
            parameter=name,
        ) from None


def _spelled(place: Any) -> str:
    """A place such as `messages[1].content`, in a text that can be encoded."""
    steps: list[str] = []
    while isinstance(place, tuple):
        place, key = place
        steps.append(f"[{key}]" if isinstance(key, int) else f".{key}"[:65])
    return "".join([str(place), *reversed(steps)]).encode("utf-8", "backslashreplace").decode()


def _check_json_text(constraint: Any) -> None:
    """JSON inside of text is read later, by readers that descend."""
    # Not at the top: the package of the parsers imports the request models.
    from vllm.parser.chat_format import json_text

    for name in ("json", "structural_tag"):
        text = constraint.get(name) if isinstance(constraint, dict) else None
        if not isinstance(text, str):
            continue
        try:
            value = json_text.loads(text)
        except ValueError as error:
            raise VLLMValidationError(
                f"structured_outputs.{name} is not JSON: {error}; send the text of a JSON object",
                parameter="structured_outputs",
            ) from error
        _check_field("structured_outputs", {name: value})


def _blamed(cls: Any, body: dict[str, Any], error: Exception) -> Exception:
    """The error of the field that made a validator crash; `error` itself if every field is of its kind."""
    if isinstance(error, RecursionError):
        return VLLMValidationError("the body nests too deeply; flatten it", parameter="body")
    for strict in (False, True):
        for name, field in cls.model_fields.items():
            value = body.get(name)
            if value is None or (strict and isinstance(value, (dict, list))):
                continue
            try:
                TypeAdapter(field.annotation).validate_python(value, strict=strict)
            except ValidationError as fault:
                first = fault.errors(include_url=False, include_input=False)[0]
                wanted = first["msg"][:1].lower() + first["msg"][1:]
                return VLLMValidationError(f"{name} is {_kind(value)} that cannot be read: {wanted}", parameter=name)
    return error


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number" if isinstance(value, (int, float)) else type(value).__name__)
