# SPDX-License-Identifier: Apache-2.0
"""Beam turns through the HTTP API on the emulated Gaudi: the grammar alone gives them their shape."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import httpx
import jsonschema
import openai
import pytest
from served_turns import ANSWER, SCHEMAS, TOOLS, Served, beam, biased

import vllm_gaudi
from gates.hpusim import testing

pytestmark = pytest.mark.engine

FLAGS = ("--reasoning-parser", "beam", "--tool-call-parser", "beam", "--enable-auto-tool-choice")
LIMITS = {"max_model_len": 2048, "max_num_batched_tokens": 2048, "max_num_seqs": 16}
CLOSERS = ("\n</rfl:parameter>", "<|call|>", "<|return|>")
MARKERS = ("<|", "<rfl:", "</rfl:")
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": ANSWER}}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = beam(tmp_path_factory.mktemp("served"))
    with testing.serve(path, *FLAGS, **LIMITS) as server:
        yield Served(server, biased(path, CLOSERS, 60.0))


def valid_call(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def test_plain_turn(served):
    choice = served.chat().choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.reasoning
    assert not choice.message.tool_calls
    assert not any(marker in (choice.message.content or "") for marker in MARKERS[1:])


@pytest.mark.parametrize("seed", range(3))
def test_required(served, seed):
    choice = served.chat(seed, tools=TOOLS, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    for call in choice.message.tool_calls:
        valid_call(call.function.name, call.function.arguments)


def test_named_streams_what_it_answers(served):
    content, _, calls, finish = served.stream(tools=TOOLS, tool_choice=NAMED)
    assert [name for name, _ in calls] == ["get_weather"]
    valid_call(*calls[0])
    assert not content
    assert len(finish) == 1


def test_auto_without_parallel_calls(served):
    message = served.chat(tools=TOOLS, parallel_tool_calls=False).choices[0].message
    assert len(message.tool_calls or ()) <= 1


def test_none_leaks_no_call(served):
    message = served.chat(tools=TOOLS, tool_choice="none").choices[0].message
    assert not message.tool_calls
    assert "to=" not in (message.content or "")


@pytest.mark.parametrize("constraint", [{"regex": "[0-9]{3}"}, {"regex": "(?i)a(?:b|c)"}])
def test_plain_completions_are_constrained(served, constraint):
    """Behind a reasoning parser too, and where xgrammar refuses what llguidance takes."""
    extra = {"structured_outputs": constraint}
    made = served.client.completions.create(model="tiny", prompt="Hello", max_tokens=8, seed=1, extra_body=extra)
    assert re.fullmatch(constraint["regex"], made.choices[0].text)
    if "(?i)" in constraint["regex"]:
        with pytest.raises(openai.BadRequestError, match="structured_outputs"):
            served.chat(extra=extra)


def test_batches_hold_their_constraints(served):
    body = {
        "model": "tiny",
        "messages": [[{"role": "user", "content": text}] for text in ("Hi", "Hello")],
        "structured_outputs": {"choice": ["x", "y"]},
        "thinking_token_budget": 2,
        "logit_bias": served.bias,
        "max_tokens": 200,
        "seed": 0,
    }
    choices = served.client.post("/chat/completions/batch", cast_to=object, body=body)["choices"]
    assert {choice["message"]["content"] for choice in choices} <= {"x", "y"}, choices
    assert all(choice["message"]["reasoning"] for choice in choices)


def test_json_schema_plain_and_streamed(served):
    answer = served.chat(1, response_format=SCHEMA).choices[0].message.content
    jsonschema.validate(json.loads(answer), ANSWER)
    content, reasoning, _, _ = served.stream(seed=2, response_format=SCHEMA)
    jsonschema.validate(json.loads(content), ANSWER)
    assert reasoning


@pytest.mark.parametrize(
    ("constraint", "values"),
    [
        ({"choice": ["yes", "no"]}, ("yes", "no")),
        ({"regex": "[ab]{2}"}, ("aa", "ab", "ba", "bb")),
        ({"grammar": 'root ::= "x" | "y"'}, ("x", "y")),
    ],
)
def test_other_constraints(served, constraint, values):
    message = served.chat(extra={"structured_outputs": constraint}).choices[0].message
    assert message.content in values


def test_responses(served):
    tools = [{"type": "function", **entry["function"]} for entry in TOOLS]
    extra = {"thinking_token_budget": 2, "logit_bias": served.bias}
    calls = served.client.responses.create(
        model="tiny", input="Hi", max_output_tokens=200, tools=tools, tool_choice="required", extra_body=extra
    )
    found = [item for item in calls.output if item.type == "function_call"]
    assert found
    for item in found:
        valid_call(item.name, item.arguments)
    answer = served.client.responses.create(
        model="tiny",
        input="Hi",
        max_output_tokens=200,
        extra_body=extra,
        text={"format": {"type": "json_schema", "name": "s", "schema": ANSWER}},
    )
    jsonschema.validate(json.loads(answer.output_text), ANSWER)
    assert answer.text.format.type == "json_schema"
    assert any(item.type == "reasoning" for item in answer.output)


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"tools": [{"type": "function", "function": {"name": "two words", "parameters": {}}}]}, "tools"),
        ({"extra": {"chat_template_kwargs": {"reasoning_effort": "hardest"}}}, "reasoning_effort"),
        ({"extra": {"min_tokens": 4}, "response_format": SCHEMA}, "min_tokens"),
        ({"extra": {"thinking_token_budget": -2}}, "thinking_token_budget"),
        ({"messages": [{"role": "assistant", "reasoning": 3, "content": "x"}]}, "messages"),
    ],
)
def test_refusals_name_the_parameter(served, fields, parameter):
    with pytest.raises(openai.BadRequestError) as caught:
        served.chat(**fields)
    assert parameter in f"{caught.value.param} {caught.value.message}"


def messages(served, **fields):
    """The answer of the Messages API, and its status."""
    body = {"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}], **fields}
    answer = httpx.post(f"{served.server.url}/v1/messages", json=body, timeout=300)
    return answer.json(), answer.status_code


MESSAGES_TOOLS = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]


def test_messages_api(served):
    """A thinking budget, a call that is forced, and the turn after it with its thinking sent back."""
    think = {"type": "enabled", "budget_tokens": 2}
    named = {"type": "tool", "name": "noop"}
    first, status = messages(served, thinking=think, tools=MESSAGES_TOOLS, tool_choice=named)
    assert status == 200, first
    assert first["stop_reason"] == "tool_use"
    thinking, call = first["content"]
    assert (thinking["type"], call["type"], call["name"], call["input"]) == ("thinking", "tool_use", "noop", {})
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "done"}]},
    ]
    second, status = messages(served, messages=history, thinking=think, max_tokens=100)
    assert status == 200, second
    assert second["content"][0]["type"] == "thinking"
    del history[1]["content"][0]
    refused, status = messages(served, messages=history, thinking=think)
    assert (status, "with its `reasoning`" in refused["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 200}}, "must be less than max_tokens"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens"),
        ({"tool_choice": {"type": "any"}}, "no function tools"),
        ({"tools": MESSAGES_TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "not in tools"),
    ],
)
def test_messages_refusals(served, fields, says):
    refused, status = messages(served, **fields)
    assert status == 400
    assert says in json.dumps(refused)


def test_history_without_reasoning_is_a_clear_400(served):
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    with pytest.raises(openai.BadRequestError, match="with its `reasoning`"):
        served.chat(messages=history)
    history[1]["reasoning_content"] = "why"
    assert served.chat(messages=history, max_tokens=120).choices[0].message.reasoning


def test_a_cut_call_does_not_poison_the_next_turn(served):
    cut = [{"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Par'}}]
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "reasoning": "r", "content": None, "tool_calls": cut},
        {"role": "tool", "tool_call_id": "c", "content": "?"},
    ]
    assert served.chat(messages=history, max_tokens=120).choices[0].message.reasoning


def test_ignore_eos_goes_on_behind_the_end(served):
    choice = served.chat(extra={"ignore_eos": True}, max_tokens=120).choices[0]
    assert choice.finish_reason == "length"


def test_models_route_and_log(served):
    (card,) = json.loads(served.server.get("/v1/models"))["data"]
    assert len(card["chat_template_sha256"]) == 64
    log = served.server.log()
    assert f"Chat template sha256 {card['chat_template_sha256']}" in log
    assert "Compiled the grammar of a plain beam turn at start" in log


@pytest.mark.long
def test_hundred_required_of_a_hundred(served):
    for choice in served.many(tools=TOOLS, tool_choice="required"):
        assert choice.message.tool_calls
        for call in choice.message.tool_calls:
            valid_call(call.function.name, call.function.arguments)


@pytest.mark.long
def test_hundred_named_of_a_hundred(served):
    for choice in served.many(tools=TOOLS, tool_choice=NAMED):
        (call,) = choice.message.tool_calls
        assert call.function.name == "get_weather"
        valid_call(call.function.name, call.function.arguments)


@pytest.mark.long
def test_hundred_schemas_of_a_hundred(served):
    for choice in served.many(response_format=SCHEMA):
        jsonschema.validate(json.loads(choice.message.content), ANSWER)


def logit_copies(server) -> list[str]:
    """Places inside the grammar mask that copied from the device or waited for it. The server must have stopped: that
    is when the meters are written."""
    assert server.meters
    return [
        caller
        for summary in server.meters
        for caller in json.dumps(summary).split('"')
        if "apply_grammar_bitmask" in caller
    ]


def test_no_logits_came_to_the_host(served):
    """Runs last."""
    assert served.server.stop() == 0
    assert not logit_copies(served.server)


@pytest.mark.long
def test_the_count_sees_logits_that_come_to_the_host(tmp_path):
    """Control: the same server with the plug-in as it is without the patch."""
    package = Path(vllm_gaudi.__file__).parent
    shutil.copytree(package, tmp_path / "without" / "vllm_gaudi", ignore=shutil.ignore_patterns("__pycache__"))
    runner = tmp_path / "without" / "vllm_gaudi" / "v1" / "worker" / "hpu_model_runner.py"
    patch = (Path(__file__).parents[3] / "patches/vllm-gaudi/grammar-mask.patch").read_text().split("diff --git", 1)[1]
    added = [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]
    text = runner.read_text()
    for block in ("\n".join(added[:1]), "\n".join(added[1:])):
        assert text.count(block + "\n") == 1
        text = text.replace(block + "\n", "")
    runner.write_text(text)
    path = beam(tmp_path)
    with testing.serve(path, *FLAGS, env={"PYTHONPATH": str(tmp_path / "without")}, **LIMITS) as server:
        served = Served(server, biased(path, CLOSERS, 60.0))
        jsonschema.validate(json.loads(served.chat(1, response_format=SCHEMA).choices[0].message.content), ANSWER)
        assert server.stop() == 0
    assert logit_copies(server)
