# SPDX-License-Identifier: Apache-2.0
"""The text of an earlier item of a Responses request reaches the template whole, in however many parts it comes."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, should_continue_final_message
from vllm.parser.chat_prompt.history import prepared

HI = {"role": "user", "content": "Hi"}
SDK = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"}
BARE = {"role": "assistant"}


def text(value, kind="output_text", **fields):
    return {"type": kind, "text": value, **fields}


def conversation(*items):
    request = ResponsesRequest(model="m", input=[HI, *items, HI])
    return prepared(construct_input_messages(request_input=request.input), split_calls=True, parameter="input")[1:-1]


@pytest.mark.parametrize("item", [SDK, BARE, {**BARE, "type": "message"}, {**SDK, "id": None, "status": None}])
@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([], ""),
        ([text("a")], "a"),
        ([text("a", annotations=[]), text("b", annotations=[5])], "ab"),
        ([text("a"), text("\nb"), text("")], "a\nb"),
        ([{"type": "refusal", "refusal": "No."}], "No."),
        ([text("Well. "), {"type": "refusal", "refusal": "No."}], "Well. No."),
        ([text("a", "input_text"), text("b", "text")], "ab"),
    ],
)
def test_every_part_of_a_message_is_read(item, parts, whole):
    assert conversation({**item, "content": parts}) == [{"role": "assistant", "content": whole}]


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"content": [text("a", "reasoning_text"), text("b", "reasoning_text")]}, "ab"),
        ({"content": None, "summary": [text("a", "summary_text"), text("b", "summary_text")]}, "a\n\nb"),
        ({"content": [text("a", "reasoning_text")], "summary": [text("s", "summary_text")]}, "a"),
    ],
)
@pytest.mark.parametrize("own", [{}, {"id": "rs_1"}])
def test_every_part_of_reasoning_is_read(fields, whole, own):
    item = {"type": "reasoning", "summary": [], **own, **fields}
    assert conversation(item, {"role": "assistant", "content": "x"}) == [
        {"role": "assistant", "reasoning": whole, "content": "x"}
    ]


def test_a_message_with_parts_and_a_call():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said, made = conversation({**SDK, "content": [text("a"), text("b")]}, call)
    assert (said["content"], made["tool_calls"][0]["function"]["name"]) == ("ab", "f")


@pytest.mark.parametrize("item", [SDK, BARE])
def test_a_message_in_parts_can_be_continued(item):
    begun = {**item, "status": "incomplete", "content": [text("a"), text("b")]}
    request = ResponsesRequest(model="m", input=[HI, begun])
    assert should_continue_final_message(request.input)


def test_what_users_send_stays_as_it_is():
    parts = [text("a", "input_text"), text("b", "input_text")]
    assert conversation({"role": "user", "content": parts})[0]["content"] == parts


@pytest.mark.parametrize("item", [SDK, BARE])
@pytest.mark.parametrize(
    "part", [5, None, {"type": "output_text"}, {"type": "refusal", "refusal": None}, text(3), {"type": ["a"]}, {}]
)
def test_parts_that_are_nothing_known_are_refused(item, part):
    """They were left as an iterator of the validator, which the template wrote into the prompt."""
    with pytest.raises(ValidationError, match=r"input\[1\]\.content\[1\] is no part.*send output_text"):
        ResponsesRequest(model="m", input=[HI, {**item, "content": [text("a"), part]}])
