# SPDX-License-Identifier: Apache-2.0
"""The Messages API: thinking, its earlier blocks, tools and the stop reason, as requests of the chat API."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import chat_serving
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from parser_turns import recorded
from pydantic import ValidationError
from vllm.entrypoints.anthropic.api_router import router
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.serve.utils.server_utils import validation_exception_handler
from vllm.exceptions import VLLMValidationError
from vllm.parser.chat_prompt.prepare import TemplateComplaint
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format

TEMPLATE = recorded("beam_parse")["templates"]["T1"]
TOOLS = [{"name": name, "input_schema": {"properties": {"city": {"type": "string"}}}} for name in ("weather", "news")]
HI = [{"role": "user", "content": "Hi"}]


def chat(request=AnthropicMessagesRequest, **fields):
    """The chat request that a Messages request becomes."""
    body = {"model": "m", "messages": HI, **fields}
    if request is AnthropicMessagesRequest:
        body.setdefault("max_tokens", 100)
    return AnthropicServingMessages._convert_anthropic_to_openai_request(request(**body))


def held(request):
    """The structural tag of its turn."""
    prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
    return constrain_request(request, turn_format(TEMPLATE), prompt=prompt, serving=Serving()).structured_outputs


def test_budget_reaches_the_turn():
    request = chat(thinking={"type": "enabled", "budget_tokens": 40, "display": "omitted"})
    assert request.thinking_token_budget == 40
    assert '"max_tokens": 39' in held(request).structural_tag
    # The sampler's own budget needs a runner that has one; the grammar took it over.
    assert request.thinking_token_budget is None
    assert "max_tokens" not in held(chat()).structural_tag


@pytest.mark.parametrize(("thinking", "effort"), [({"type": "disabled"}, "none"), ({"type": "adaptive"}, None)])
def test_other_kinds_of_thinking(thinking, effort):
    request = chat(thinking=thinking)
    assert (request.thinking_token_budget, request.reasoning_effort) == (None, effort)
    assert chat(AnthropicCountTokensRequest, thinking=thinking).reasoning_effort == effort


def test_effort_stays_beside_a_budget():
    request = chat(thinking={"type": "enabled", "budget_tokens": 5}, output_config={"effort": "max"})
    assert (request.thinking_token_budget, request.reasoning_effort) == (5, "max")


@pytest.mark.parametrize(
    ("thinking", "says"),
    [
        ({"type": "enabled"}, "budget_tokens"),
        ({"type": "enabled", "budget_tokens": 0}, "budget_tokens"),
        ({"type": "enabled", "budget_tokens": -1}, "budget_tokens"),
        ({"type": "enabled", "budget_tokens": True}, "budget_tokens"),
        ({"type": "enabled", "budget_tokens": "40"}, "budget_tokens"),
        ({"type": "enabled", "budget_tokens": 100}, r"budget_tokens \(100\) must be less than max_tokens \(100\)"),
        ({"type": "forever"}, "thinking"),
        ({"budget_tokens": 40}, "thinking"),
        ("enabled", "thinking"),
    ],
)
def test_odd_thinking_is_refused_by_name(thinking, says):
    with pytest.raises(ValidationError, match=says):
        chat(thinking=thinking)


def test_earlier_thinking_and_tools_reach_the_template_whole():
    """Thinking blocks in any number, text beside a call, a result with text, redacted thinking left out."""
    request = chat(
        messages=[
            *HI,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "First. ", "signature": "s"},
                    {"type": "redacted_thinking", "data": "AA=="},
                    {"type": "thinking", "thinking": "Then.", "signature": ""},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5 C"}]},
                    {"type": "text", "text": "And Rome?"},
                ],
            },
        ],
        tools=TOOLS,
    )
    _, assistant, result, user = request.messages
    assert (assistant["reasoning"], assistant["content"]) == ("First. Then.", "Let me look.")
    (call,) = assistant["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("t1", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "t1", "5 C")
    assert (user["role"], user["content"]) == ("user", "And Rome?")


@pytest.mark.parametrize(
    ("choice", "calls", "answers"),
    [
        ({"type": "auto"}, ["weather", "news"], True),
        ({"type": "any"}, ["weather", "news"], False),
        ({"type": "tool", "name": "news"}, ["news"], False),
        ({"type": "none"}, [], True),
        (None, ["weather", "news"], True),
    ],
)
def test_tool_choice_holds_the_turn(choice, calls, answers):
    tag = held(chat(tools=TOOLS, tool_choice=choice)).structural_tag
    assert [tool["name"] for tool in TOOLS if f" to={tool['name']}" in tag] == calls
    assert ("<|channel|>final<|message|>" in tag) is answers


def test_one_call_at_a_time():
    several = held(chat(tools=TOOLS, tool_choice={"type": "any"})).structural_tag
    one = held(chat(tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True})).structural_tag
    assert '"star"' in several
    assert '"star"' not in one


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tool_choice": {"type": "any"}}, "no function tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "'other', which is not in tools"),
    ],
)
def test_calls_that_cannot_be_forced_are_refused(fields, says):
    with pytest.raises(VLLMValidationError, match=says) as caught:
        held(chat(**fields))
    assert caught.value.parameter == "tool_choice"


NAMED = {"type": "function", "function": {"name": "write_file"}}
CALL = (
    "<|channel|>analysis<|message|>t<|end|><|start|>assistant"
    " to=write_file<|channel|>analysis <|constrain|>xml<|message|>"
    '<rfl:parameter name="path">\na\n</rfl:parameter>'
)
ANSWER = "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>final<|message|>x"


def events(text, reason, **given):
    """Events of the stream that a chat stream becomes."""

    chunks = chat_serving.stream(text, reason, stream_options={"include_usage": True}, **given)

    async def lines():
        for chunk in chunks:
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    async def collect():
        converter = AnthropicServingMessages.message_stream_converter(bare(), lines())
        return [json.loads(event.split("data: ", 1)[1]) async for event in converter]

    return asyncio.run(collect())


def bare():
    serving = AnthropicServingMessages.__new__(AnthropicServingMessages)
    serving.stop_reason_map = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return serving


@pytest.mark.parametrize(
    ("text", "reason", "given", "stop"),
    [
        (ANSWER, "stop", {}, "end_turn"),
        (CALL, "stop", {}, "tool_use"),
        (CALL, "stop", {"tool_choice": NAMED}, "tool_use"),
        (CALL, "length", {"tool_choice": NAMED}, "max_tokens"),
        (ANSWER, "length", {}, "max_tokens"),
        (CALL, "stop", {"stopped": "ld", "stop": ["ld"]}, "stop_sequence"),
        (CALL, "stop", {"stopped": "ld", "stop": ["ld"], "tool_choice": NAMED}, "stop_sequence"),
    ],
)
def test_stop_reason_streamed(text, reason, given, stop):
    found = events(text, reason, **given)
    assert [event["delta"]["stop_reason"] for event in found if event["type"] == "message_delta"] == [stop]
    started = [event["content_block"]["type"] for event in found if event["type"] == "content_block_start"]
    assert started == ["thinking", "text" if text is ANSWER else "tool_use"]
    sequences = [event["delta"].get("stop_sequence") for event in found if event["type"] == "message_delta"]
    assert sequences == [given.get("stopped")]
    assert found[-1]["type"] == "message_stop"


@pytest.mark.parametrize(
    ("given", "stop"),
    [
        ({}, "tool_use"),
        ({"tool_choice": NAMED}, "tool_use"),
        ({"stopped": "ld", "stop": ["ld"], "tool_choice": NAMED}, "stop_sequence"),
    ],
)
def test_stop_reason_whole(given, stop):
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    choice = chat_serving.full(CALL, "stop", **given)
    usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
    answer = ChatCompletionResponse(model="m", choices=[choice], usage=usage)
    message = AnthropicServingMessages.messages_full_converter(bare(), answer)
    assert (message.stop_reason, message.stop_sequence) == (stop, given.get("stopped"))
    assert [block.type for block in message.content] == ["thinking", "tool_use"]
    assert message.content[1].input == {"path": "a"}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (VLLMValidationError("no such effort", parameter="reasoning_effort"), 400),
        (TemplateComplaint(ValueError("roles must alternate")), 400),
        (RuntimeError("the engine is gone"), 500),
    ],
)
def test_what_the_client_can_mend_is_a_400(path, error, status):
    async def fails(*args):
        raise error

    app = FastAPI()
    app.include_router(router)
    app.state.enable_server_load_tracking = False
    app.state.anthropic_serving_messages = SimpleNamespace(create_messages=fails, count_tokens=fails)
    answer = TestClient(app).post(path, json={"model": "m", "max_tokens": 5, "messages": HI})
    assert answer.status_code == status
    assert str(error).split(":")[0] in answer.json()["error"]["message"]
    assert answer.json()["type"] == "error"
    assert status == 500 or answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("messages", [5, [{"role": "user", "content": [{"type": "server_tool_use"}]}]])
def test_a_body_that_is_no_request_has_the_apis_own_error(path, messages):
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.exception_handler(RequestValidationError)(validation_exception_handler)
    app.include_router(router)

    @app.post("/v1/other")
    def other(request: AnthropicMessagesRequest) -> str:
        return request.model

    client = TestClient(app)
    body = {"model": "m", "max_tokens": 5, "messages": messages}
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "messages" in answer.json()["error"]["message"]
    assert "type" not in client.post("/v1/other", json=body).json()  # control: other routes keep theirs
