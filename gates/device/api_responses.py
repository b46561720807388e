# SPDX-License-Identifier: Apache-2.0
"""API checks 127-133: the Responses API."""

from __future__ import annotations

import json
from typing import Any

from gates.core.schemas import ENUM, PING, WEATHER, problem
from gates.core.suite import Api, Suite, expect, marker_in

SUITE = Suite("api-responses", "the Responses API: items, events, tools, round trip")


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"]}


def _create(api: Api, said: Any = "Hello", **options: Any) -> dict[str, Any]:
    body = {"model": api.client.model, "input": said, "max_output_tokens": api.room, "temperature": 0, **options}
    reply = api.post(body, "/v1/responses")
    expect(reply.status == 200, f"status {reply.status}: {reply.text[:200]}")
    return reply.json()


def _items(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [item for item in answer.get("output") or [] if item.get("type") == kind]


def _text(answer: dict[str, Any], kind: str = "message", part_type: str = "output_text") -> str:
    parts = [part for item in _items(answer, kind) for part in item.get("content") or []]
    return "".join(part["text"] for part in parts if part.get("type") == part_type)


@SUITE.check(127, "an answer has a reasoning and a message item without markers")
def _kinds(api: Api) -> None:
    answer = _create(api)
    expect(_items(answer, "reasoning"), "no reasoning item")
    found = marker_in(json.dumps(answer.get("output"), ensure_ascii=False))
    expect(not found, f"{found} in the output")
    if answer.get("status") == "completed":
        expect(_items(answer, "message"), "no message item")


@SUITE.check(128, "a function_call item has JSON arguments")
def _call(api: Api) -> None:
    calls = _items(_create(api, "Weather?", tools=[_flat(WEATHER)], tool_choice="required"), "function_call")
    expect(calls, "no call")
    wrong = problem(calls[0]["arguments"], WEATHER["function"]["parameters"])
    expect(not wrong, wrong)


@SUITE.check(129, "stream events come in order with rising numbers, and spell the final answer")
def _events(api: Api) -> None:
    body = {"model": api.client.model, "input": "Hello", "max_output_tokens": api.room, "temperature": 0}
    events = api.events("/v1/responses", body).chunks
    kinds = [e.get("type") for e in events]
    expect(kinds and kinds[0] == "response.created", f"first event {kinds[:1]}")
    expect(kinds[-1] in ("response.completed", "response.incomplete"), f"last event {kinds[-1]}")
    numbers = [e["sequence_number"] for e in events if "sequence_number" in e]
    expect(len(numbers) == len(events), f"{len(numbers)} sequence numbers for {len(events)} events")
    expect(numbers == sorted(set(numbers)), "sequence numbers do not rise")
    final = events[-1].get("response") or {}
    for kind, name in (("message", "output_text"), ("reasoning", "reasoning_text")):
        whole = _text(final, kind, name)
        joined = "".join(e["delta"] for e in events if e.get("type") == f"response.{name}.delta")
        if kind == "message":
            plain = _text(_create(api))
            expect(whole or not plain, f"no {name}, {plain!r} in the plain answer")
        # reasoning may be told at the end only
        expect(
            joined == whole or (kind == "reasoning" and not joined), f"{name} {joined!r} in deltas, {whole!r} in all"
        )


@SUITE.check(130, "text.format json_schema is kept")
def _format(api: Api) -> None:
    answer = _create(
        api, "Answer.", text={"format": {"type": "json_schema", "name": "answer", "schema": ENUM, "strict": True}}
    )
    wrong = problem(_text(answer), ENUM)
    expect(not wrong, wrong)


@SUITE.check(131, "a named tool is called")
def _named(api: Api) -> None:
    answer = _create(api, "Hi", tools=[_flat(PING), _flat(WEATHER)], tool_choice={"type": "function", "name": "ping"})
    calls = _items(answer, "function_call")
    expect([c["name"] for c in calls] == ["ping"], f"calls {calls}")


@SUITE.check(132, "earlier items come back as input")
def _round(api: Api) -> None:
    first = _create(api, "Check the service.", tools=[_flat(PING)], tool_choice="required")
    calls = _items(first, "function_call")
    expect(calls, "no call")
    history = [
        {"role": "user", "content": "Check the service."},
        *first["output"],
        {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "up"},
    ]
    _create(api, history, tools=[_flat(PING)])


@SUITE.check(133, "usage and status are there")
def _usage(api: Api) -> None:
    answer = _create(api, max_output_tokens=4)
    expect(answer.get("status") in ("completed", "incomplete"), f"status {answer.get('status')!r}")
    expect((answer.get("usage") or {}).get("output_tokens") == 4, f"usage {answer.get('usage')}")


GATE = SUITE.gate("lost-item", "lost-deltas", "html-server")
