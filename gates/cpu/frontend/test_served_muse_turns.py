# SPDX-License-Identifier: Apache-2.0
"""Muse turns through the HTTP API: the format's grammar on a small checkpoint of another architecture."""

from __future__ import annotations

import json

import jsonschema
import pytest
from served_turns import ANSWER, SCHEMAS, TOOLS, Served, biased, muse

from gates.hpusim import testing

pytestmark = pytest.mark.engine

CLOSERS = ("</atem:parameter>\n", "</atem:invoke>\n</atem:function_calls>", "<|eot|>")
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": ANSWER}}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = muse(tmp_path_factory.mktemp("served"))
    with testing.serve(
        path,
        "--reasoning-parser",
        "muse",
        "--tool-call-parser",
        "muse",
        "--enable-auto-tool-choice",
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=16,
    ) as server:
        yield Served(server, biased(path, CLOSERS, 60.0))


def check(calls):
    assert calls
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("seed", range(2))
def test_required(served, seed):
    check(served.chat(seed, tools=TOOLS, tool_choice="required").choices[0].message.tool_calls)


def test_named(served):
    calls = served.chat(tools=TOOLS, tool_choice=NAMED).choices[0].message.tool_calls
    check(calls)
    assert [call.function.name for call in calls] == ["get_weather"]


def test_json_schema_is_held_beside_reasoning(served):
    content, _, _, finish = served.stream(seed=3, response_format=SCHEMA, reasoning_effort="max")
    jsonschema.validate(json.loads(content), ANSWER)
    assert len(finish) == 1


def test_plain_turn_leaks_no_marker(served):
    message = served.chat().choices[0].message
    assert not message.tool_calls
    assert "<|" not in (message.content or "")


@pytest.mark.long
def test_hundred_required_of_a_hundred(served):
    for choice in served.many(tools=TOOLS, tool_choice="required"):
        check(choice.message.tool_calls)


@pytest.mark.long
def test_hundred_named_of_a_hundred(served):
    for choice in served.many(tools=TOOLS, tool_choice=NAMED):
        check(choice.message.tool_calls)
        assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]


@pytest.mark.long
def test_hundred_schemas_of_a_hundred(served):
    for choice in served.many(response_format=SCHEMA):
        jsonschema.validate(json.loads(choice.message.content), ANSWER)
