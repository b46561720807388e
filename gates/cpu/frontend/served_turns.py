# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and request helpers of the tests that serve turns through the HTTP API.

Weights are random, so only the grammar gives a turn its shape. A bias towards the closers and a
thinking budget keep the turns short; both act on allowed tokens alone.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 12},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "integer", "minimum": 0, "maximum": 30},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "set_alarm",
            "description": "Set an alarm.",
            "parameters": {
                "type": "object",
                "properties": {
                    "on": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2},
                },
                "required": ["on"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "noop", "description": "Nothing.", "parameters": {"type": "object", "properties": {}}},
    },
]
SCHEMAS = {entry["function"]["name"]: entry["function"]["parameters"] for entry in TOOLS}
ANSWER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "enum": ["x", "yy"]},
        "size": {"type": "integer", "maximum": 9},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "ok"],
    "additionalProperties": False,
}


def beam(folder: Path) -> Path:
    """The small Beam checkpoint with its own tokenizer and templates."""
    from gates.checkpoints import beam as checkpoint
    from gates.checkpoints.beam_shapes import SHAPES

    return checkpoint.write(folder / "beam", SHAPES["served"])


def biased(path: Path, markers: tuple[str, ...], bias: float = 30.0) -> dict[str, float]:
    """`logit_bias` towards `markers`, and less towards JSON's own characters: random weights like white space."""
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    closers = {str(entry["id"]): bias for entry in tokenizer["added_tokens"] if entry["content"] in markers}
    return closers | {str(tokenizer["model"]["vocab"][char]): bias / 4 for char in '"{}[]:,'}


class Served:
    """A running server and requests that end soon."""

    def __init__(self, server, bias):
        self.server, self.client, self.bias = server, server.client, bias

    def chat(self, seed: int = 0, extra: dict | None = None, **fields):
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 200,
            "temperature": 1.0,
            "seed": seed,
            "logit_bias": self.bias,
            **fields,
        }
        return self.client.chat.completions.create(**body, extra_body={"thinking_token_budget": 2, **(extra or {})})

    def many(self, count: int = 100, **fields):
        """Choices of `count` requests that differ in their seed, sixteen at a time."""
        with ThreadPoolExecutor(16) as pool:
            return [reply.choices[0] for reply in pool.map(lambda seed: self.chat(seed, **fields), range(count))]

    def stream(self, **fields):
        """(content, reasoning, calls, finish reasons) joined from a stream."""
        content, reasoning, calls, finish = "", "", {}, []
        for chunk in self.chat(stream=True, **fields):
            for choice in chunk.choices:
                finish += [choice.finish_reason] if choice.finish_reason else []
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning", None) or ""
                for call in choice.delta.tool_calls or ():
                    entry = calls.setdefault(call.index, ["", ""])
                    entry[0] += call.function.name or ""
                    entry[1] += call.function.arguments or ""
        return content, reasoning, [calls[index] for index in sorted(calls)], finish


def muse(folder: Path) -> Path:
    """A small checkpoint of another architecture with Muse's markers and message format."""
    from gates.checkpoints import muse_chat
    from gates.hpusim import checkpoints

    ids = muse_chat.MARKERS.ids()
    path = checkpoints.make(
        "llama",
        folder,
        vocab_size=-(-(max(ids.values()) + 1) // 64) * 64,
        eos_token_id=ids["<|eot|>"],
        pad_token_id=ids["<|end_of_text|>"],
        bos_token_id=ids["<|end_of_text|>"],
    )
    muse_chat.write_tokenizer(path)
    return path
