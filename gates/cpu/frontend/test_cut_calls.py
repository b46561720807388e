# SPDX-License-Identifier: Apache-2.0
"""A call that the token limit cut: what was sent stays, the finish reason says so, through vLLM's own generators."""

import json

import pytest
from chat_serving import full, stream

CALL = (
    "<|channel|>analysis<|message|>t<|end|><|start|>assistant"
    " to=write_file<|channel|>analysis <|constrain|>xml<|message|>"
    '<rfl:parameter name="path">\na\n</rfl:parameter>\n<rfl:parameter name="content">\nHello wor'
)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_cut_call_finishes_with_length(choice):
    chunks = stream(CALL, "length", tool_choice=choice)
    reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert reasons == ["length"]
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"path": "a", "content": "Hello wor'
    plain = full(CALL, "length", tool_choice=choice)
    assert plain.finish_reason == "length"
    assert [json.loads(call.function.arguments) for call in plain.message.tool_calls] == [{"path": "a"}]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("stopped", ["ld", 77])
def test_call_cut_by_the_clients_own_stop_finishes_with_stop(choice, stopped):
    """A stop string falls anywhere, in an argument too; the client's own stop token likewise."""
    given = {"tool_choice": choice, "stop": ["ld"], "stop_token_ids": [77]}
    reasons = [c["choices"][0]["finish_reason"] for c in stream(CALL, "stop", stopped, **given)]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert full(CALL, "stop", stopped, **given).finish_reason == "stop"


def test_stop_string_before_any_call_is_no_tool_calls():
    given = {"tool_choice": "required", "stop": ["ab"]}
    text = "<|channel|>analysis<|message|>Let me think "
    assert full(text, "stop", "ab", **given).finish_reason == "stop"
    assert stream(text, "stop", "ab", **given)[-1]["choices"][0]["finish_reason"] == "stop"


def test_the_models_own_stop_token_ends_a_call():
    text = CALL + "ld\n</rfl:parameter>"
    assert stream(text, "stop", 200012)[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert full(text, "stop", 200012).finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_complete_call_finishes_with_tool_calls(choice):
    text = CALL + "ld\n</rfl:parameter>"
    chunks = stream(text, "stop", tool_choice=choice)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert full(text, "stop", tool_choice=choice).finish_reason == "tool_calls"


def test_named_call_finishes_with_stop():
    named = {"type": "function", "function": {"name": "write_file"}}
    text = CALL + "ld\n</rfl:parameter>"
    assert stream(text, "stop", tool_choice=named)[-1]["choices"][0]["finish_reason"] == "stop"


def test_small_token_limit_spent_on_reasoning():
    text = "<|channel|>analysis<|message|>Let me think about"
    chunks = stream(text, "length")
    joined = "".join(chunk["choices"][0]["delta"].get("reasoning") or "" for chunk in chunks)
    assert joined == "Let me think about"
    assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["length"]
    plain = full(text, "length")
    assert (plain.message.reasoning, plain.message.content, plain.finish_reason) == (joined, None, "length")


@pytest.mark.parametrize("shown", [True, False])
def test_streamed_logprobs_are_those_of_the_whole_answer(shown):
    """Tokens of delimiters and of values still held back bring theirs in a chunk that says nothing else."""
    given = {"logprobs": True, "top_logprobs": 0, "include_reasoning": shown}
    text = CALL + "ld\n</rfl:parameter>"
    chunks = stream(text, "stop", **given)
    streamed = [choice["logprobs"]["content"] for c in chunks for choice in c["choices"] if choice.get("logprobs")]
    whole = full(text, "stop", **given).logprobs
    if not shown:
        assert (streamed, whole) == ([], None)
        return
    joined = "".join(entry["token"] for part in streamed for entry in part)
    assert joined == "".join(entry.token for entry in whole.content) == text


def test_deltas_on_the_wire_hold_only_what_they_say():
    """First delta of a call: index, id, type, name. Later ones: index and arguments."""
    chunks = stream(CALL + "ld\n</rfl:parameter>", "stop")
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert set(calls[0]) == {"index", "id", "type", "function"}
    assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in calls[1:])
    assert len(calls) > 3
