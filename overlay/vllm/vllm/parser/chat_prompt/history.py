# SPDX-License-Identifier: Apache-2.0
"""Earlier turns of a conversation, brought into the shape the models' templates need.

Templates want `reasoning`, tool arguments as mappings and the name of the tool a result belongs
to. Clients send `reasoning_content`, JSON text (cut off, when the turn hit its token limit) and
ids. Nothing here drops what a client sent; what cannot be read is a 400 that says what to send.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import partial_json_parser
from vllm.entrypoints.openai.earlier_reasoning import reasoning_text
from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger

logger = init_logger(__name__)


def prepared(messages: list[Any], *, split_calls: bool, parameter: str = "messages") -> list[Any]:
    """Copies of `messages` in the templates' shape.

    Args:
        split_calls: write an assistant message with content and tool calls as two messages,
            for a template that would drop the content.
        parameter: the request's field that holds them.

    Raises:
        VLLMValidationError: a message has no role, or reasoning or arguments of the wrong kind.
    """
    names: dict[str, str] = {}
    result: list[Any] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            result.append(message)
            continue
        own = dict(message)
        if not isinstance(own.get("role"), str):
            # The Responses API passes on what it does not know.
            kind = f"an item of type {str(own['type'])[:64]!r}" if "type" in own else "a message without a role"
            raise VLLMValidationError(
                f"{parameter} holds {kind}, which is not served; leave it out, or send messages, function_call, "
                "function_call_output and reasoning items",
                parameter=parameter,
            )
        if own.get("role") == "assistant":
            _reasoning(own, index)
            _calls(own, names, index)
            result += _split(own) if split_calls else [own]
            continue
        if own.get("role") == "tool" and not own.get("name"):
            call_id = own.get("tool_call_id")
            name = names.get(call_id) if isinstance(call_id, str) else None
            if name is not None:
                own["name"] = name
        result.append(own)
    return result


def _reasoning(message: dict[str, Any], index: int) -> None:
    """One `reasoning` text from either of its names."""
    other = message.pop("reasoning_content", None)
    value = message.get("reasoning")
    value = other if value is None else value
    if value is None:
        message.pop("reasoning", None)
        return
    message["reasoning"] = reasoning_text(value, f"messages[{index}]", "messages")


def _calls(message: dict[str, Any], names: dict[str, str], index: int) -> None:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return
    own_calls = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            own_calls.append(call)  # refused later, with its own message
            continue
        where = f"messages[{index}].tool_calls"
        own = {**call, "function": {**function, "arguments": mapping(function.get("arguments"), where)}}
        if isinstance(call.get("id"), str) and isinstance(function.get("name"), str):
            names[call["id"]] = function["name"]
        own_calls.append(own)
    message["tool_calls"] = own_calls


def mapping(arguments: Any, where: str) -> dict[str, Any]:
    """Tool arguments as a mapping.

    Text that was cut off keeps what it had: a turn that ran into its token limit is part of
    the history and must not stop the next one.

    Raises:
        VLLMValidationError: the arguments are JSON of another kind, which no call of ours is.
    """
    if arguments is None or arguments == "":
        return {}
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = _salvaged(arguments, where)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise VLLMValidationError(
            f"{where}: arguments are a JSON {type(value).__name__}; send a JSON object", parameter="messages"
        )
    return _spellable(dict(value))


def _spellable(value: dict[str, Any]) -> dict[str, Any]:
    """`value` with U+FFFD for unpaired surrogates, which JSON text may escape but no tokenizer takes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (TypeError, ValueError, RecursionError):
        # Not JSON values: the template judges them.
        return value
    return value


def _salvaged(text: str, where: str) -> Any:
    try:
        value = partial_json_parser.loads(text)
    except Exception:  # the library raises several kinds on text that is not JSON at all
        value = None
    if not isinstance(value, Mapping):
        value = {}
    logger.info("%s: arguments are not complete JSON; %d complete entries reach the template.", where, len(value))
    return value


def _split(message: dict[str, Any]) -> list[dict[str, Any]]:
    if not message.get("tool_calls") or not message.get("content"):
        return [message]
    calls = {key: message[key] for key in ("role", "tool_calls")}
    visible = {key: value for key, value in message.items() if key != "tool_calls"}
    return [visible, calls]
