# SPDX-License-Identifier: Apache-2.0
"""Recorded cases and the joining of stream pieces, shared by the parser tests."""

from __future__ import annotations

import json
from pathlib import Path

from toy_tokenizer import ToyTokenizer
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser.parser_manager import ParserManager

DATA = Path(__file__).parent / "data"


def recorded(name):
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def chunks_of(text, stream):
    if stream["chunking"] == "whole":
        return [text]
    pieces, start = [], 0
    for size in stream.get("sizes") or [1] * len(text):
        pieces.append(text[start : start + size])
        start += size
    return pieces


def request_for(options, tools):
    """The request of a recorded case, by the API it names."""
    given = dict(options["request"])
    api = given.pop("api", "chat")
    listed = given.pop("tools", tools)
    if api == "responses":
        flat = [{"type": "function", "strict": False, "parameters": None, **tool["function"]} for tool in listed]
        return ResponsesRequest(model="m", input="Hi", tools=flat, **given)
    if listed:
        given["tools"] = listed
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "Hi"}], **given)


def parser_class(options):
    return ParserManager.get_parser(
        tool_parser_name=options["tool_parser"],
        reasoning_parser_name=options["reasoning_parser"],
        enable_auto_tools=options["enable_auto_tools"],
    )


def tokenizer_for(data, case):
    templates = data.get("templates")
    return ToyTokenizer(data["special_tokens"], templates[case["template"]] if templates else None)


def build(data, case):
    """(parser, request, prompt ids) of a recorded case."""
    tokenizer = tokenizer_for(data, case)
    request = request_for(case["options"], data["tools"])
    parser = parser_class(case["options"])(tokenizer, request.tools)
    return parser, request, tokenizer.encode(case["prompt"])


def full(data, case):
    parser, request, prompt = build(data, case)
    parser.set_prompt_token_ids(prompt)
    reasoning, content, calls = parser.parse(
        case["text"], request, enable_auto_tools=case["options"]["enable_auto_tools"]
    )
    calls = [{"name": call.name, "arguments": call.arguments} for call in calls or []]
    return {"reasoning": reasoning, "content": content, "tool_calls": calls}


def stream(data, case, pieces):
    """Deltas of the case fed as `pieces`; the last piece finishes the stream."""
    parser, request, prompt = build(data, case)
    return [
        parser.parse_delta(piece, [], request, prompt, finished=index == len(pieces) - 1)
        for index, piece in enumerate(pieces)
    ]


def join(deltas):
    """The message that a client builds from `deltas`. Checks that ids and names come once and calls do not
    interleave."""
    reasoning, content, calls = "", "", []
    for delta in deltas:
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for call in delta.tool_calls:
            if call.id is not None:
                assert call.type == "function"
                assert call.index == len(calls)
                calls.append({"name": call.function.name, "arguments": ""})
            else:
                assert call.function.name is None
                assert call.type is None
            assert call.index == len(calls) - 1, "fragments of two calls interleave"
            calls[-1]["arguments"] += call.function.arguments
    return {"reasoning": reasoning or None, "content": content or None, "tool_calls": calls}


def text_deltas(deltas):
    """[chunk index, "r" or "c", text] for each delta with reasoning or content."""
    found = []
    for index, delta in enumerate(deltas):
        for name in ("reasoning", "content"):
            if delta is not None and getattr(delta, name):
                found.append([index, name[0], getattr(delta, name)])
    return found
