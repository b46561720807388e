# SPDX-License-Identifier: Apache-2.0
"""API checks 65-76 and 140: tool arguments as they stream, with the longest silence measured."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from gates.core.errors import Skip
from gates.core.schemas import WEATHER, WRITE, problem
from gates.core.suite import Api, Suite, as_plain, expect, held_back, marker_in
from gates.device.api_tool_choice import joined_calls

SUITE = Suite("api-tool-stream", "arguments arrive as fragments that join to the final string")
FORCED = {"type": "function", "function": {"name": "write_file"}}
LONG = "Write a file story.txt with a story of about 800 words."


def _pieces(stream: Any) -> list[tuple[float, dict[str, Any]]]:
    out = []
    for chunk, now in zip(stream.chunks, stream.times_s, strict=True):
        for choice in chunk.get("choices") or []:
            out += [(now, piece) for piece in (choice.get("delta") or {}).get("tool_calls") or []]
    return out


def _forced(api: Api, **options: Any) -> Any:
    return api.stream(LONG, tools=[WRITE], tool_choice=FORCED, **options)


@SUITE.check(65, "the first delta of a call has id and name")
def _first(api: Api) -> None:
    pieces = _pieces(_forced(api))
    expect(pieces, "no tool delta")
    first = pieces[0][1]
    expect(first.get("id") and (first.get("function") or {}).get("name") == "write_file", f"first {first}")


@SUITE.check(66, "later deltas have arguments and index only")
def _later(api: Api) -> None:
    for _, piece in _pieces(_forced(api))[1:]:
        expect(not piece.get("id") and not (piece.get("function") or {}).get("name"), f"delta {piece}")


@SUITE.check(67, "a long argument arrives in many fragments")
def _many(api: Api) -> None:
    stream = _forced(api)
    total = sum(len(c["arguments"]) for c in joined_calls(stream))
    parts = [p for _, p in _pieces(stream) if (p.get("function") or {}).get("arguments")]
    expect(len(parts) >= max(2, total // 200), f"{len(parts)} fragments for {total} characters")


@SUITE.check(68, "the longest silence inside a call is short against its length")
def _silence(api: Api) -> None:
    stream = _forced(api)
    late = held_back(stream)
    expect(not late, late)
    times = [now for now, _ in _pieces(stream)]
    expect(len(times) > 2, "too few deltas")
    longest = max(b - a for a, b in pairwise(times))
    expect(longest <= max(1.0, 0.5 * (times[-1] - times[0])), f"{longest:.2f} s of {times[-1] - times[0]:.2f} s")


@SUITE.check(69, "fragments join to valid JSON")
def _joined(api: Api) -> None:
    stream = _forced(api)
    if stream.finish_reasons() == ["length"]:
        raise Skip("the call was cut off")  # an open call is judged by check 74
    calls = joined_calls(stream)
    wrong = problem(calls[0]["arguments"], WRITE["function"]["parameters"])
    expect(not wrong, wrong)


@SUITE.check(70, "a stream equals the plain answer")
def _equal(api: Api) -> None:
    if _forced(api).finish_reasons() == ["length"]:
        raise Skip("the call was cut off")
    as_plain(lambda: _calls(_forced(api)), lambda: _plain_calls(api, LONG, tools=[WRITE], tool_choice=FORCED))


def _calls(stream: Any) -> list[tuple[str, str]]:
    return [(call["name"], call["arguments"]) for call in joined_calls(stream)]


def _plain_calls(api: Api, asked: str, **options: Any) -> list[tuple[str, str]]:
    calls = api.message(asked, **options).get("tool_calls") or []
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@SUITE.check(71, "what has been sent is never taken back")
def _prefix(api: Api) -> None:
    stream = _forced(api)
    final, sent = joined_calls(stream)[0]["arguments"], ""
    for _, piece in _pieces(stream):
        sent += (piece.get("function") or {}).get("arguments") or ""
        expect(final.startswith(sent), "a fragment is no prefix")


@SUITE.check(72, "parallel calls are not interleaved")
def _order(api: Api) -> None:
    stream = api.stream("Weather in Paris and in Rome.", tools=[WEATHER], tool_choice="required")
    order = [piece["index"] for _, piece in _pieces(stream)]
    expect(order == sorted(order) and order and order[0] == 0, f"indices {order[:20]}")


@SUITE.check(73, "a converted argument arrives whole and valid")
def _array(api: Api) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "plot",
            "parameters": {
                "type": "object",
                "properties": {"points": {"type": "array", "items": {"enum": [0, 1]}, "minItems": 1, "maxItems": 6}},
                "required": ["points"],
                "additionalProperties": False,
            },
        },
    }
    stream = api.stream("Plot 0 1 0 1.", tools=[tool], tool_choice="required")
    wrong = problem(joined_calls(stream)[0]["arguments"], tool["function"]["parameters"])
    expect(not wrong, wrong)


@SUITE.check(74, "a call cut by max_tokens ends with length and keeps what was sent")
def _cut(api: Api) -> None:
    stream = _forced(api, max_tokens=max(12, api.room // 3))
    if stream.finish_reasons() == ["length"]:
        for call in joined_calls(stream):
            expect(
                call["arguments"] == "" or call["arguments"].startswith("{"), f"arguments {call['arguments'][:40]!r}"
            )
    else:
        expect(len(stream.finish_reasons()) == 1, "no finish reason")


@SUITE.check(75, "escapes are exact")
def _escapes(api: Api) -> None:
    api.needs("code argument")
    text = 'a\\b "c"\n\td'
    stream = api.stream(f"Write exactly this to e.txt:\n{text}", tools=[WRITE], tool_choice=FORCED)
    expect(json.loads(joined_calls(stream)[0]["arguments"]).get("text", "").strip() == text, "text differs")


@SUITE.check(76, "the Responses API streams arguments likewise")
def _responses(api: Api) -> None:
    tool = {"type": "function", **WRITE["function"]}
    body = {
        "model": api.client.model,
        "input": LONG,
        "tools": [tool],
        "tool_choice": "required",
        "max_output_tokens": api.room,
        "temperature": 0,
    }
    stream = api.events("/v1/responses", body)
    deltas = [c["delta"] for c in stream.chunks if c.get("type") == "response.function_call_arguments.delta"]
    whole = [c["arguments"] for c in stream.chunks if c.get("type") == "response.function_call_arguments.done"]
    expect(deltas, "no argument deltas")
    if whole:
        expect("".join(deltas).startswith(whole[0]) or "".join(deltas) == "".join(whole), "deltas and done differ")


@SUITE.check(140, "a call that the model chooses to make streams as the plain answer has it")
def _chosen(api: Api) -> None:
    api.needs("call")
    asked = "What is the weather in Paris in celsius?"
    stream = api.stream(asked, tools=[WEATHER])
    expect(_calls(stream), "no call")
    as_plain(lambda: _calls(api.stream(asked, tools=[WEATHER])), lambda: _plain_calls(api, asked, tools=[WEATHER]))
    expect(stream.finish_reasons() == ["tool_calls"], f"finish reasons {stream.finish_reasons()}")
    seen: set[int] = set()
    for _, piece in _pieces(stream):
        named = bool(piece.get("id")), bool((piece.get("function") or {}).get("name"))
        first = piece["index"] not in seen
        seen.add(piece["index"])
        expect(named == (first, first), f"delta {piece}")
    found = marker_in(stream.joined("content"))
    expect(not found, f"{found} in the content")


GATE = SUITE.gate("dropped-argument", "late-arguments", "lost-auto-argument")
