# SPDX-License-Identifier: Apache-2.0
"""Fields that no reader of a request is made for: an error that names them, whichever API they come through."""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from pydantic import ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest, ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.request_body import INTEGERS, MAX_DEPTH
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.utils.server_utils import validation_exception_handler
from vllm.exceptions import VLLMValidationError

HI = [{"role": "user", "content": "Hi"}]
BODIES = {
    ChatCompletionRequest: {"messages": HI},
    BatchChatCompletionRequest: {"messages": [HI]},
    CompletionRequest: {"prompt": "Hi"},
    ResponsesRequest: {"input": "Hi"},
    AnthropicMessagesRequest: {"messages": HI, "max_tokens": 5},
    AnthropicCountTokensRequest: {"messages": HI},
}
CHAT, BATCH, COMPLETION, RESPONSES, MESSAGES, COUNT = BODIES
EVERY = pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
HUGE = 10**30


def request(model, **fields):
    return model(**{"model": "m", **BODIES[model], **fields})


def refused(model, **fields):
    """(parameter, message) of the error."""
    with pytest.raises(ValidationError) as caught:
        request(model, **fields)
    (error,) = caught.value.errors()
    error = error["ctx"]["error"]
    assert isinstance(error, VLLMValidationError)
    assert str(error).encode()
    assert len(str(error)) < 400
    return error.parameter, str(error)


@EVERY
def test_bodies_within_the_bounds_are_served(model):
    """Control: nothing below is refused for another reason."""
    assert request(model).model == "m"


INTEGER_FIELDS = [
    *((CHAT, name) for name in ("top_k", "thinking_token_budget", "min_tokens", "max_tokens", "n", "prompt_logprobs")),
    *((BATCH, name) for name in ("top_k", "max_completion_tokens", "best_of")),
    *((COMPLETION, name) for name in ("top_k", "thinking_token_budget", "min_tokens", "max_tokens", "logprobs")),
    # The Responses model has no field for a budget; the parser reads it all the same.
    *((RESPONSES, name) for name in ("top_k", "thinking_token_budget", "max_output_tokens", "max_tool_calls")),
    *((MESSAGES, name) for name in ("top_k", "max_tokens")),
]


@pytest.mark.parametrize(("model", "name"), INTEGER_FIELDS, ids=lambda item: getattr(item, "__name__", item))
@pytest.mark.parametrize("value", [HUGE, -HUGE])
def test_integers_beyond_the_engines_format_are_refused(model, name, value):
    with pytest.raises(OverflowError):
        msgspec.msgpack.encode(value)
    parameter, message = refused(model, **{name: value})
    assert parameter == name
    assert name in message


@pytest.mark.parametrize("value", [INTEGERS[0], INTEGERS[-1]])
def test_what_the_engines_format_carries_is_accepted(value):
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value)) == value
    assert request(CHAT, vllm_xargs={"x": value}).vllm_xargs == {"x": value}


@pytest.mark.parametrize("model", [CHAT, COMPLETION, RESPONSES, MESSAGES], ids=lambda model: model.__name__)
def test_text_that_spells_an_integer_is_one(model):
    assert refused(model, top_k=str(HUGE))[0] == "top_k"
    assert request(model, top_k="5").top_k == 5


@pytest.mark.parametrize("model", [CHAT, COMPLETION], ids=lambda model: model.__name__)
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"stop_token_ids": [1, HUGE]}, "stop_token_ids[1]"),
        ({"vllm_xargs": {"a": [HUGE]}}, "vllm_xargs.a[0]"),
        ({"kv_transfer_params": {"a": {"b": HUGE}}}, "kv_transfer_params.a.b"),
        (
            {"repetition_detection": {"max_pattern_size": HUGE, "min_count": 2}},
            "repetition_detection.max_pattern_size",
        ),
        ({"structured_outputs": {"json": {"maximum": HUGE}}}, "structured_outputs.json.maximum"),
        ({"structured_outputs": {"json": json.dumps({"maximum": HUGE})}}, "structured_outputs.json.maximum"),
    ],
)
def test_integers_below_a_field_are_refused_by_their_place(model, fields, place):
    (name,) = fields
    parameter, message = refused(model, **fields)
    assert (parameter, message.split(" ")[0]) == (name, place)


def test_integers_that_only_a_template_reads_have_no_bound():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"maximum": HUGE}}}}}
    asked = request(CHAT, tools=[tool], chat_template_kwargs={"seed": HUGE})
    assert asked.tools[0].function.parameters["properties"]["a"] == {"maximum": HUGE}


def deep(levels):
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@EVERY
@pytest.mark.parametrize("field", ["chat_template_kwargs", "kv_transfer_params", "unknown"])
def test_nesting_is_bounded(model, field):
    assert refused(model, **{field: {"a": deep(MAX_DEPTH)}})[0] == field
    request(model, **{field: {"a": deep(50)}})


@pytest.mark.parametrize("model", [CHAT, COMPLETION, RESPONSES], ids=lambda model: model.__name__)
@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 1200, "[" * 400 + "]" * 400, "{", '{"a": NaN}'])
@pytest.mark.parametrize("name", ["json", "structural_tag"])
def test_json_inside_of_text_is_read_with_care(model, text, name):
    assert refused(model, structured_outputs={name: text})[0] == "structured_outputs"


@pytest.mark.parametrize("model", [CHAT, BATCH, COMPLETION, RESPONSES], ids=lambda model: model.__name__)
@pytest.mark.parametrize("value", [[], [1], 5, 1.5, "x", True])
def test_structured_outputs_of_the_wrong_kind(model, value):
    with pytest.raises(ValidationError) as caught:
        request(model, structured_outputs=value)
    assert "structured_outputs" in str(caught.value)


WRONG = [
    (CHAT, "messages", 5),
    (CHAT, "messages", [{"role": "assistant", "content": "x", "tool_calls": 5}]),
    (CHAT, "top_logprobs", "many"),
    (CHAT, "top_logprobs", []),
    (CHAT, "prompt_logprobs", {}),
    (CHAT, "prompt_logprobs", "3"),
    (CHAT, "response_format", 5),
    (COMPLETION, "logprobs", "many"),
    (COMPLETION, "prompt_logprobs", []),
    (COMPLETION, "response_format", []),
    (RESPONSES, "tools", 5),
    (RESPONSES, "tools", True),
    (RESPONSES, "input", [{"type": "message", "role": "assistant", "content": [5]}]),
]


@pytest.mark.parametrize(("model", "name", "value"), WRONG, ids=lambda item: getattr(item, "__name__", str(item)[:20]))
def test_a_field_of_the_wrong_kind_is_named(model, name, value):
    with pytest.raises(ValidationError) as caught:
        request(model, **{name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tools": 5, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tools"),
        ({"tools": [5], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tools"),
        ({"tools": [{"function": {}}], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tools"),
        ({"tools": {"a": 1}, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tools"),
    ],
)
def test_named_choices_beside_tools_of_the_wrong_kind(fields, name):
    assert refused(CHAT, **fields)[0] == name


@pytest.mark.parametrize("choice", [{"type": "function", "name": "f"}, {"type": "function", "name": []}])
@pytest.mark.parametrize("tools", [[{"type": "namespace", "name": "n", "tools": [5]}], [{"name": []}], 5])
def test_responses_named_choices_beside_tools_of_the_wrong_kind(choice, tools):
    with pytest.raises(ValidationError) as caught:
        request(RESPONSES, tools=tools, tool_choice=choice)
    assert "tool" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "fields", "place"),
    [
        (CHAT, {"messages": [*HI, {"role": "assistant", "reasoning": "\ud800"}]}, "messages[1].reasoning"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\ud800"}]}]}, "messages[0]"),
        (CHAT, {"stop": ["\udc00"]}, "stop[0]"),
        (CHAT, {"user": "\udc00"}, "user"),
        (COMPLETION, {"prompt": "\udc00"}, "prompt"),
        (RESPONSES, {"instructions": "\udc00"}, "instructions"),
        (RESPONSES, {"input": [{"role": "user", "content": "\udc00"}]}, "input[0].content"),
        (RESPONSES, {"metadata": {"a\udc00": "b"}}, "metadata.a\\udc00"),
        (MESSAGES, {"system": "\udc00"}, "system"),
        (MESSAGES, {"messages": [{"role": "user", "content": "\udc00"}]}, "messages[0].content"),
    ],
)
def test_unpaired_surrogates_are_named_by_their_place(model, fields, place):
    (name,) = fields
    parameter, message = refused(model, **fields)
    assert parameter == name
    assert message.startswith(place)
    assert "unpaired surrogate at character" in message


def test_arguments_of_earlier_calls_are_left_to_the_template_hook():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "\ud800"}'}}
    asked = request(CHAT, messages=[*HI, {"role": "assistant", "content": None, "tool_calls": [call]}])
    assert asked.messages[1]["tool_calls"]
    block = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "\ud800"}}
    assert request(MESSAGES, messages=[*HI, {"role": "assistant", "content": [block]}]).messages


@EVERY
def test_the_servers_own_notes_are_not_the_clients_to_write(model):
    asked = request(model, _parser_structured_outputs="x", _thinking_budget=1, _rendered_prompt_token_ids=[1])
    for name in ("_parser_structured_outputs", "_thinking_budget", "_rendered_prompt_token_ids"):
        assert getattr(asked, name, None) is None


@pytest.mark.parametrize(
    "body",
    [{"structured_outputs": []}, {"top_k": HUGE}, {"messages": 5}, {"user": "\ud800"}, {"top_k": HUGE, "user": 1}],
)
def test_over_http_it_is_a_400_with_the_parameter(body):
    app = FastAPI()
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.exception_handler(RequestValidationError)(validation_exception_handler)

    @app.post("/")
    def served(request: ChatCompletionRequest) -> str:
        return request.model

    client = TestClient(app, raise_server_exceptions=False)
    headers = {"content-type": "application/json"}
    answer = client.post("/", content=json.dumps({"model": "m", "messages": HI, **body}), headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(body)))
    assert client.post("/", json={"model": "m", "messages": HI}).status_code == 200
