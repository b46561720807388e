# SPDX-License-Identifier: Apache-2.0
"""Reasoning that a client sends on an earlier assistant message, as chat completions take it, on the other APIs.

Responses and Messages have items and blocks of their own for it, and would drop `reasoning` or `reasoning_content`
unread. Both become what the API has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.entrypoints.openai.earlier_parts import whole
from vllm.exceptions import VLLMValidationError

_NAMES = ("reasoning", "reasoning_content")


def reasoning_items(cls: Any, data: Any, handler: Callable[[Any], Any]) -> Any:
    """Wrap validator of a Responses request: reasoning on an input item is an item before it, and the text of an item
    is one part.

    Raises:
        VLLMValidationError: the reasoning is no text, or a part of a message nothing known.
    """
    items = data.get("input") if isinstance(data, Mapping) else None
    if not isinstance(items, list):
        return handler(data)
    result: list[Any] = []
    for index, item in enumerate(items):
        if _is_assistants(item):
            item, text = _taken(item, f"input[{index}]", "input")
            before = result[-1] if result else None
            if text is not None and not (isinstance(before, Mapping) and before.get("type") == "reasoning"):
                content = [{"type": "reasoning_text", "text": text}]
                result.append({"type": "reasoning", "summary": [], "content": content})
        result.append(whole(item, f"input[{index}]"))
    return handler({**data, "input": result})


def reasoning_block(cls: Any, data: Any) -> Any:
    """Before-validator of a message of the Messages API: reasoning on it is a thinking block, unless it has one.

    Raises:
        VLLMValidationError: the reasoning is no text.
    """
    if not _is_assistants(data):
        return data
    own, text = _taken(data, "an assistant message", "messages")
    content = own.get("content")
    if text is None or not isinstance(content, (str, list, type(None))):
        return own
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    if not any(isinstance(block, Mapping) and block.get("type") == "thinking" for block in blocks):
        blocks = [{"type": "thinking", "thinking": text}, *blocks]
    return {**own, "content": blocks}


def _is_assistants(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return False
    return item.get("role") == "assistant" or item.get("type") == "function_call"


def _taken(item: Mapping[str, Any], place: str, parameter: str) -> tuple[dict[str, Any], str | None]:
    """`item` without its reasoning, and that text; None without one."""
    own = dict(item)
    found = [value for name in _NAMES if (value := own.pop(name, None)) is not None]
    return own, reasoning_text(found[0], place, parameter) if found else None


def reasoning_text(value: Any, place: str, parameter: str) -> str:
    """Reasoning as a client sends it back: a text, or a list of parts with texts.

    Raises:
        VLLMValidationError: it is neither; names `place` and `parameter`.
    """
    if isinstance(value, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in value
    ):
        value = "".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise VLLMValidationError(
            f"{place}: reasoning is {type(value).__name__}; send the text of `reasoning` from the earlier response as "
            "it was",
            parameter=parameter,
        )
    return value
