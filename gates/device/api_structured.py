# SPDX-License-Identifier: Apache-2.0
"""API checks 77-92: structured outputs."""

from __future__ import annotations

import json
import re
from typing import Any

from gates.core.schemas import ALARM, ARRAY, ENUM, FLAT, NESTED, call_problem, problem, response_format
from gates.core.suite import Api, Suite, expect, reasoning_of

SUITE = Suite("api-structured", "answers that must match a schema, a pattern, a choice or a grammar")
OPTIONAL: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}},
    "required": ["a"],
    "additionalProperties": False,
}


def _content(api: Api, text: str = "Answer.", **options: Any) -> str:
    choice = api.choice(text, **options)
    expect(choice.get("finish_reason") == "stop", f"finish {choice.get('finish_reason')!r}: no room for the answer?")
    return str(choice["message"].get("content") or "")


def _schema(api: Api, schema: dict[str, Any], **options: Any) -> None:
    wrong = problem(_content(api, response_format=response_format(schema), **options), schema)
    expect(not wrong, wrong)


@SUITE.check(77, "json_object gives an object")
def _object(api: Api) -> None:
    api.needs("free json")  # a free object may be as long as a weak model likes
    text = _content(api, 'Give {"a": 1} as JSON.', response_format={"type": "json_object"})
    expect(isinstance(json.loads(text), dict), f"{text[:80]!r}")


@SUITE.check(78, "a flat schema")
def _flat(api: Api) -> None:
    _schema(api, FLAT)


@SUITE.check(79, "a nested schema")
def _nested(api: Api) -> None:
    _schema(api, NESTED)


@SUITE.check(80, "an enum schema")
def _enum(api: Api) -> None:
    for _ in range(3):
        _schema(api, ENUM)


@SUITE.check(81, "an array of objects")
def _array(api: Api) -> None:
    _schema(api, ARRAY)


@SUITE.check(82, "no extra keys under additionalProperties false")
def _strict(api: Api) -> None:
    text = _content(api, "Add a key named extra.", response_format=response_format(FLAT))
    expect(set(json.loads(text)) == {"ok", "size"}, f"keys of {text}")


@SUITE.check(83, "an optional key may be left out")
def _optional(api: Api) -> None:
    _schema(api, OPTIONAL)


@SUITE.check(84, "a regex is matched exactly")
def _regex(api: Api) -> None:
    text = _content(api, structured_outputs={"regex": "[A-Z]{3}-[0-9]{2}"})
    expect(re.fullmatch(r"[A-Z]{3}-[0-9]{2}", text), f"{text!r}")


@SUITE.check(85, "a choice is one of the list")
def _choice(api: Api) -> None:
    text = _content(api, structured_outputs={"choice": ["alpha", "beta", "gamma"]})
    expect(text in ("alpha", "beta", "gamma"), f"{text!r}")


@SUITE.check(86, "an EBNF grammar is kept")
def _ebnf(api: Api) -> None:
    text = _content(api, structured_outputs={"grammar": 'root ::= "yes " ("indeed" | "sir")'})
    expect(text in ("yes indeed", "yes sir"), f"{text!r}")


@SUITE.check(87, "a schema holds in a stream")
def _stream(api: Api) -> None:
    stream = api.stream("Answer.", response_format=response_format(FLAT))
    wrong = problem(stream.joined("content"), FLAT)
    expect(not wrong, wrong)


@SUITE.check(88, "reasoning and a schema together")
def _reasoning(api: Api) -> None:
    message = api.message("Answer.", response_format=response_format(ENUM))
    expect(reasoning_of(message), "no reasoning")
    wrong = problem(message.get("content"), ENUM)
    expect(not wrong, wrong)


@SUITE.check(89, "a schema with thinking off")
def _off(api: Api) -> None:
    reply = api.post(
        api.body("Answer.", response_format=response_format(ENUM), chat_template_kwargs={"enable_thinking": False})
    )
    expect(reply.status in (200, 400), f"status {reply.status}")
    if reply.status == 200:
        wrong = problem(reply.json()["choices"][0]["message"].get("content"), ENUM)
        expect(not wrong, wrong)


@SUITE.check(90, "a schema beside tools: a valid answer or a valid call")
def _auto(api: Api) -> None:
    message = api.message("Answer.", tools=[ALARM], response_format=response_format(ENUM))
    calls = message.get("tool_calls") or []
    wrong = call_problem(calls[0], [ALARM]) if calls else problem(message.get("content"), ENUM)
    expect(not wrong, wrong)


@SUITE.check(91, "a schema beside required: a call")
def _required(api: Api) -> None:
    message = api.message("Answer.", tools=[ALARM], tool_choice="required", response_format=response_format(ENUM))
    expect(message.get("tool_calls"), "no call")


@SUITE.check(92, "a user's structural tag is honoured")
def _tag(api: Api) -> None:
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "<|channel|>final<|message|>tagged"}}
    body = api.body("Answer.", structured_outputs={"structural_tag": json.dumps(tag)})
    reply = api.post(body)
    expect(reply.status in (200, 400), f"status {reply.status}: {reply.text[:120]}")
    if reply.status == 200:
        expect("tagged" in json.dumps(reply.json()), f"{reply.text[:160]}")


GATE = SUITE.gate("unconstrained-json")
