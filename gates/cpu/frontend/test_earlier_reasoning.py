# SPDX-License-Identifier: Apache-2.0
"""Reasoning under `reasoning` or `reasoning_content` on an earlier message reaches the template through every API."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages
from vllm.parser.chat_prompt.history import prepared

HI = {"role": "user", "content": "Hi"}
TEXT = " Let me\n\nthink <|end|> é🎉 "


def through_chat(*turns):
    return prepared(ChatCompletionRequest(model="m", messages=[HI, *turns, HI]).messages, split_calls=False)


def through_responses(*turns):
    request = ResponsesRequest(model="m", input=[HI, *turns, HI])
    return prepared(construct_input_messages(request_input=request.input), split_calls=False)


def through_messages(*turns):
    request = AnthropicMessagesRequest(model="m", messages=[HI, *turns, HI], max_tokens=5)
    converted = AnthropicServingMessages._convert_anthropic_to_openai_request(request)
    return prepared(converted.messages, split_calls=False)


EVERY = pytest.mark.parametrize("through", [through_chat, through_responses, through_messages])
SENT = pytest.mark.parametrize(
    "sent",
    [
        {"reasoning": TEXT},
        {"reasoning_content": TEXT},
        {"reasoning": TEXT, "reasoning_content": "other"},
        {"reasoning": None, "reasoning_content": TEXT},
    ],
)


@EVERY
@SENT
def test_reasoning_reaches_the_template_unchanged(through, sent):
    first, turn, last = through({"role": "assistant", "content": "x", **sent})
    assert (turn["role"], turn["content"], turn["reasoning"]) == ("assistant", "x", TEXT)
    assert (first["role"], last["role"]) == ("user", "user")


@EVERY
def test_a_turn_without_reasoning_gets_none(through):
    _, turn, _ = through({"role": "assistant", "content": "x", "reasoning": None})
    assert turn.get("reasoning") is None
    assert turn["content"] == "x"


@EVERY
@pytest.mark.parametrize("value", [3, {"a": 1}, [1], True])
def test_reasoning_of_another_kind_is_refused(through, value):
    with pytest.raises(ValueError, match="send the text of `reasoning`"):
        through({"role": "assistant", "content": "x", "reasoning": value})


@SENT
@pytest.mark.parametrize("content", ["x", [{"type": "output_text", "text": "x"}]])
def test_responses_messages_of_either_form(sent, content):
    _, turn, _ = through_responses({"type": "message", "role": "assistant", "content": content, **sent})
    assert (turn["content"], turn["reasoning"]) == ("x", TEXT)


def test_responses_calls():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "reasoning": TEXT}
    result = {"type": "function_call_output", "call_id": "c", "output": "5"}
    _, turn, tool, again, _ = through_responses(call, result, {**call, "call_id": "d", "reasoning": "more"})
    assert (turn["reasoning"], len(turn["tool_calls"]), tool["role"]) == (TEXT, 1, "tool")
    assert again["reasoning"] == "more"


def test_an_item_of_its_own_is_not_doubled():
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": TEXT}]}
    _, turn, _ = through_responses(item, {"role": "assistant", "content": "x", "reasoning": TEXT})
    assert (turn["content"], turn["reasoning"]) == ("x", TEXT)
    block = {"type": "thinking", "thinking": TEXT, "signature": ""}
    content = [block, {"type": "text", "text": "x"}]
    _, turn, _ = through_messages({"role": "assistant", "content": content, "reasoning": TEXT})
    assert (turn["content"], turn["reasoning"]) == ("x", TEXT)


def test_messages_with_a_call():
    content = [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]
    _, turn, _ = through_messages({"role": "assistant", "content": content, "reasoning_content": TEXT})
    assert (turn["reasoning"], len(turn["tool_calls"])) == (TEXT, 1)


def test_what_users_write_is_theirs():
    request = ResponsesRequest(model="m", input=[{**HI, "reasoning": TEXT}])
    assert [message["role"] for message in construct_input_messages(request_input=request.input)] == ["user"]
    with pytest.raises(ValidationError):
        ResponsesRequest(model="m", input=[5])
