# SPDX-License-Identifier: Apache-2.0
"""Input items of a Responses request whose text comes in parts: none of it is lost.

What builds the conversation reads the first part of an assistant's message or of a reasoning item, and its text. More
parts, or a refusal, or none at all are one part of text here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.exceptions import VLLMValidationError

_TEXTS = {"output_text": "text", "input_text": "text", "text": "text", "refusal": "refusal"}
_MEDIA = ("input_image", "input_file", "input_audio")


def whole(item: Any, place: str) -> Any:
    """`item` with its parts as one; unchanged if it is of another kind, or holds more than text.

    Raises:
        VLLMValidationError: a part of a message is nothing known; names it by `place`, that of the item.
    """
    if not isinstance(item, Mapping):
        return item
    if item.get("role") == "assistant" and item.get("type", "message") == "message":
        parts = item.get("content")
        text = _joined(parts, _TEXTS)
        if text is None:
            _check_parts(parts, place)
            return item
        given = {name: value for name, value in item.items() if value is not None}
        # No prompt holds annotations.
        return {**given, "type": "message", "content": [{"type": "output_text", "text": text, "annotations": []}]}
    if item.get("type") == "reasoning":
        changed = dict(item)
        # The parts of a summary are paragraphs, those of the text itself follow each other directly.
        for field, kind, between in (("content", "reasoning_text", ""), ("summary", "summary_text", "\n\n")):
            if item.get(field) and (text := _joined(item[field], {kind: "text"}, between)) is not None:
                changed[field] = [{"type": kind, "text": text}]
        return changed
    return item


def _check_parts(parts: Any, place: str) -> None:
    """What no model of the API takes would be passed on unread, as an iterator of its validator."""
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        media = isinstance(part, Mapping) and part.get("type") in _MEDIA
        if not media and _joined([part], _TEXTS) is None:
            raise VLLMValidationError(
                f"{place}.content[{index}] is no part of an assistant's message; send output_text parts with a text, "
                "or refusal parts",
                parameter="input",
            )


def _joined(parts: Any, kinds: Mapping[str, str], between: str = "") -> str | None:
    """The text of `parts`, each of a type of `kinds` and under the name given there; None if there are others."""
    if not isinstance(parts, list):
        return None
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get(kinds[kind]) if isinstance(kind, str) and kind in kinds else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return between.join(texts)
