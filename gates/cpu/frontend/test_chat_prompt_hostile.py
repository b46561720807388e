# SPDX-License-Identifier: Apache-2.0
"""Earlier turns and efforts that no client should send, and what their errors say."""

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.parser.chat_prompt.effort import asked_level
from vllm.parser.chat_prompt.history import mapping, prepared


def test_unpaired_surrogates_of_arguments_do_not_reach_the_tokenizer():
    """The parsers escape them, so a client that sends such a call back would poison its next turn."""
    assert mapping(r'{"a": "x\ud800y", "\udc00": [1]}', "m") == {"a": "x\ufffdy", "\ufffd": [1]}
    assert mapping(r'{"a": "x\ud800', "m").get("a", "x\ufffd").encode()
    assert mapping({"a": ["\ud83d"]}, "m") == {"a": ["\ufffd"]}


@pytest.mark.parametrize("arguments", [r'{"a": "\ud83c\udf89"}', '{"a": "\U0001f389"}'])
def test_surrogate_pairs_stay_the_character_they_are(arguments):
    assert mapping(arguments, "m") == {"a": "\U0001f389"}


@pytest.mark.parametrize("call_id", [{"a": 1}, ["a"], 5, None, ""])
def test_a_tool_result_without_a_usable_id_is_passed_on(call_id):
    message = {"role": "tool", "tool_call_id": call_id, "content": "x"}
    assert prepared([message], split_calls=False) == [message]


def test_an_error_does_not_repeat_a_megabyte():
    with pytest.raises(VLLMValidationError) as caught:
        asked_level("x" * 1_000_000)
    assert caught.value.parameter == "reasoning_effort"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "i"}, "custom_tool_call"),
        ({"type": "item_reference", "id": "r"}, "item_reference"),
        ({"content": "x"}, "without a role"),
        ({"role": None, "content": "x"}, "without a role"),
    ],
)
def test_what_is_no_message_is_refused_by_its_kind(item, told):
    """Responses hands on items that it does not know; further on they end in a 500."""
    with pytest.raises(VLLMValidationError, match=told) as caught:
        prepared([{"role": "user", "content": "x"}, item], split_calls=False, parameter="input")
    assert caught.value.parameter == "input"
