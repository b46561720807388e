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


MUSE_CONTROL = ("<|end_of_text|>", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
MUSE_TEMPLATE = """\
{%- if reasoning_strength %}<|start|>system<|message|>Reasoning strength: {{ reasoning_strength }}.<|eot|>{% endif -%}
{%- for message in messages -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|eot|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""


def muse(folder: Path) -> Path:
    """A small checkpoint of another architecture with Muse's markers and message format."""
    from gates.checkpoints import beam_chat
    from gates.hpusim import checkpoints

    tokens, merges = beam_chat.vocabulary()
    closers = ("</atem:parameter>\n", "</atem:invoke>\n</atem:function_calls>")
    ids = {token: len(tokens) + index for index, token in enumerate((*MUSE_CONTROL, *closers))}
    stops = [ids["<|eot|>"], ids["<|end_of_text|>"]]
    path = checkpoints.make(
        "llama",
        folder,
        vocab_size=-(-(len(tokens) + len(ids)) // 64) * 64,
        eos_token_id=stops[0],
        pad_token_id=stops[1],
        bos_token_id=stops[1],
    )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {
            "id": ids[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token in MUSE_CONTROL,
        }
        for token in ids
    ]
    (path / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": added,
                "normalizer": None,
                "pre_tokenizer": byte_level,
                "post_processor": None,
                "decoder": byte_level,
                "model": {"type": "BPE", "vocab": tokens, "merges": merges, "ignore_merges": False},
            }
        )
    )
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|eot|>",
                "pad_token": "<|end_of_text|>",
                "clean_up_tokenization_spaces": False,
                "model_max_length": 2048,
                "chat_template": MUSE_TEMPLATE,
            }
        )
    )
    (path / "chat_template.jinja").write_text(MUSE_TEMPLATE)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return path
