# SPDX-License-Identifier: Apache-2.0
"""An assistant's turn as each model family writes it, with what of it is a lesson."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Part = tuple[str, bool]  # text, and whether the model is to produce it


@dataclass(frozen=True)
class Call:
    """One tool call: the tool's name and its arguments."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A turn: a thought, then an answer in words or tool calls.

    Attributes:
        content: the words; used where there are no calls.
        free: what stands before the words because the server dictates it (a schema), so that no lesson is in it.
        dictated: the server demanded the call: only the values are a lesson.
    """

    thought: str
    content: str = ""
    free: str = ""
    calls: tuple[Call, ...] = ()
    dictated: bool = False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _beam(answer: Answer) -> list[Part]:
    start = "<|start|>assistant"
    head = f"<|channel|>analysis<|message|>{answer.thought}<|end|>{start}"
    if not answer.calls:
        head += "<|channel|>final<|message|>"
        return [(head, True), (answer.free, False), (answer.content, True), ("<|return|>", True)]
    lesson = not answer.dictated
    parts: list[Part] = [(head, True)]
    for number, call in enumerate(answer.calls):
        target = f" to={call.name}<|channel|>analysis <|constrain|>xml<|message|>"
        parts += [(start, True)] if number else []  # a further call follows without a thought between them
        parts += [(target, lesson)]
        for key, value in call.arguments.items():
            parts += [(f'<rfl:parameter name="{key}">\n', lesson), (f"{_text(value)}\n</rfl:parameter>", True)]
        parts += [("<|end|>" if number < len(answer.calls) - 1 else "<|call|>", lesson)]
    return parts


def _muse(answer: Answer) -> list[Part]:
    start = "<|start|>assistant"
    head = f" to=self<|message|>{answer.thought}<|eom|>{start}"
    if not answer.calls:
        head += " to=user<|message|>"
        return [(head, True), (answer.free, False), (answer.content, True), ("<|eot|>", True)]
    lesson = not answer.dictated
    parts: list[Part] = [(head, True)]
    for number, call in enumerate(answer.calls):
        name = f"{call.name}.{call.name}"  # a tool without a namespace is called by its name in its own
        parts += [(start, True)] if number else []
        parts += [(f' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n', lesson)]
        for key, value in call.arguments.items():
            parts += [(f'<atem:parameter name="{key}">', lesson), (f"{_text(value)}</atem:parameter>\n", True)]
        end = "<|eom|>" if number < len(answer.calls) - 1 else "<|eot|>"
        parts += [(f"</atem:invoke>\n</atem:function_calls>{end}", lesson)]
    return parts


@dataclass(frozen=True)
class Turns:
    """How a family writes turns: `parts` of an answer, and the marker that ends a thought."""

    parts: Callable[[Answer], Sequence[Part]]
    end_of_thought: str


BEAM = Turns(_beam, "<|end|>")
MUSE = Turns(_muse, "<|eom|>")
