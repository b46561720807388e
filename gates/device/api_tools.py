# SPDX-License-Identifier: Apache-2.0
"""API checks 34-49: tools with tool_choice auto."""

from __future__ import annotations

import json
from typing import Any

from gates.core.schemas import ALARM, PING, WEATHER, WRITE, call_problem
from gates.core.suite import Api, Suite, expect, marker_in, reasoning_of

SUITE = Suite("api-tools", "tool calls the model chooses to make")
CODE = 'def f(x):\n    """Doc: \\n & <b>."""\n\treturn {"a": [1, 2], \'q\': x}\n'
TAGS = 'see </rfl:parameter> and <atem:parameter name="x">, "quoted" < > &'
TYPED: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "record",
        "description": "Record one measurement with exactly the values given.",
        "parameters": {
            "type": "object",
            "properties": {
                "count": {"type": "integer"},
                "ratio": {"type": "number"},
                "final": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "origin": {
                    "type": "object",
                    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                    "required": ["x", "y"],
                },
                "note": {"type": ["string", "null"]},
            },
            "required": ["count", "ratio", "final", "tags", "origin"],
        },
    },
}


def _calls(api: Api, text: str, tools: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    return list(api.message(text, tools=tools, **options).get("tool_calls") or [])


def _arguments(api: Api, text: str, tool: dict[str, Any], skill: str = "call") -> dict[str, Any]:
    api.needs(skill)
    calls = _calls(api, text, [tool])
    expect(len(calls) == 1, f"{len(calls)} calls")
    return dict(json.loads(calls[0]["function"]["arguments"]))


@SUITE.check(34, "a call is made when one is needed")
def _made(api: Api) -> None:
    api.needs("call")
    expect(_calls(api, "What is the weather in Paris in celsius?", [WEATHER]), "no call")


@SUITE.check(35, "a turn with calls ends with tool_calls")
def _finish(api: Api) -> None:
    api.needs("call")
    choice = api.choice("What is the weather in Paris in celsius?", tools=[WEATHER])
    expect(choice.get("finish_reason") == "tool_calls", f"finish {choice.get('finish_reason')!r}")


@SUITE.check(36, "call ids are unique and the type is function")
def _ids(api: Api) -> None:
    api.needs("call twice")
    calls = _calls(api, "Weather in Paris and in Rome, both in celsius: make both calls at once.", [WEATHER])
    expect(calls and len({c["id"] for c in calls}) == len(calls), "ids repeat")
    expect(all(c["type"] == "function" for c in calls), "another type")


@SUITE.check(37, "whatever calls are made are valid")
def _valid(api: Api) -> None:
    for text in ("Hello", "What is the weather in Oslo?", "Set an alarm at 7, loud."):
        for call in _calls(api, text, [WEATHER, ALARM, PING]):
            wrong = call_problem(call, [WEATHER, ALARM, PING])
            expect(not wrong, wrong)
    for call in _calls(api, "Weather?", [WEATHER], tool_choice="required"):
        wrong = call_problem(call, [WEATHER])
        expect(not wrong, wrong)


@SUITE.check(38, "argument types follow the schema")
def _types(api: Api) -> None:
    seen = _arguments(
        api, "Record count 3, ratio 0.5, final true, tags a and b, origin x=1 y=2, note null.", TYPED, "typed arguments"
    )
    expect(seen.get("count") == 3 and seen.get("ratio") == 0.5 and seen.get("final") is True, f"scalars {seen}")
    expect(seen.get("tags") == ["a", "b"] and seen.get("origin") == {"x": 1, "y": 2}, f"containers {seen}")
    expect(seen.get("note") is None, f"note {seen.get('note')!r}")


@SUITE.check(39, "an enum is respected")
def _enum(api: Api) -> None:
    seen = _arguments(api, "Weather in Paris, in degrees C.", WEATHER)
    expect(seen.get("unit") in ("celsius", "fahrenheit"), f"unit {seen.get('unit')!r}")


@SUITE.check(40, "a nested object arrives as an object")
def _nested(api: Api) -> None:
    seen = _arguments(api, "Record count 1, ratio 1.5, final false, no tags, origin x=4 y=9.", TYPED, "typed arguments")
    expect(seen.get("origin") == {"x": 4, "y": 9}, f"origin {seen.get('origin')!r}")


@SUITE.check(41, "no call when none is needed")
def _none(api: Api) -> None:
    api.needs("repeat")
    message = api.message("Say hello in French.", tools=[WEATHER])
    expect(not message.get("tool_calls") and message.get("content"), f"message {message}")


@SUITE.check(42, "two calls in one turn")
def _parallel(api: Api) -> None:
    api.needs("call twice")
    calls = _calls(api, "Weather in Paris and in Rome, both in celsius: make both calls at once.", [WEATHER])
    expect(len(calls) == 2, f"{len(calls)} calls")


@SUITE.check(43, "parallel_tool_calls false allows one call at most")
def _single(api: Api) -> None:
    calls = _calls(api, "Weather in Paris and in Rome, both in celsius.", [WEATHER], parallel_tool_calls=False)
    expect(len(calls) <= 1, f"{len(calls)} calls")


@SUITE.check(44, "a tool without parameters gets an empty object")
def _ping(api: Api) -> None:
    calls = _calls(api, "Call ping.", [PING], tool_choice={"type": "function", "function": {"name": "ping"}})
    expect(len(calls) == 1 and json.loads(calls[0]["function"]["arguments"]) == {}, f"calls {calls}")


@SUITE.check(45, "a unicode argument survives")
def _unicode(api: Api) -> None:
    seen = _arguments(api, "Weather in 東京 in celsius. Keep the city's name in Japanese.", WEATHER, "unusual argument")
    expect(seen.get("city") == "東京", f"city {seen.get('city')!r}")


@SUITE.check(46, "multi-line code arrives to the byte")
def _code(api: Api) -> None:
    seen = _arguments(api, f"Write exactly this text to a.py, byte for byte:\n```\n{CODE}```", WRITE, "code argument")
    expect(seen.get("text", "").rstrip("\n") == CODE.rstrip("\n"), f"text {seen.get('text')!r}")


@SUITE.check(47, "text that looks like the format survives in an argument")
def _tags(api: Api) -> None:
    seen = _arguments(api, f"Write exactly this line to notes.txt: {TAGS}", WRITE, "code argument")
    expect(seen.get("text", "").strip() == TAGS, f"text {seen.get('text')!r}")


@SUITE.check(48, "reasoning is kept beside a call")
def _kept(api: Api) -> None:
    message = api.message("Call ping.", tools=[PING], tool_choice="required")
    expect(message.get("tool_calls"), "no call")
    expect(reasoning_of(message), "no reasoning")
    expect(not marker_in(reasoning_of(message)), "a marker in the reasoning")


@SUITE.check(49, "a tool result leads to an answer")
def _round(api: Api) -> None:
    call = {
        "id": "call-1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "celsius"}'},
    }
    messages = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "reasoning_content": "Look it up.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call-1", "content": "31 degrees, thunderstorm"},
    ]
    reply = api.post(api.body(messages, tools=[WEATHER]))
    expect(reply.status == 200, f"status {reply.status}: {reply.text[:160]}")
    content = reply.json()["choices"][0]["message"].get("content") or ""
    expect(not marker_in(content), "a marker in the answer")
    if api.ctx.wording.can("say result"):
        expect("31" in content, f"the result is missing from {content[:80]!r}")


GATE = SUITE.gate("dropped-argument", "marker-in-content")
