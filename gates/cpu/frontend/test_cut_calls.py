# SPDX-License-Identifier: Apache-2.0
"""A call that the token limit cut: what was sent stays, the finish reason says so, through vLLM's own generators."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from parser_turns import parser_class, recorded, request_for
from toy_tokenizer import ToyTokenizer
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.outputs import CompletionOutput, RequestOutput

BEAM = recorded("beam_parse")
OPTIONS = {"reasoning_parser": "beam", "tool_parser": "beam", "enable_auto_tools": True, "request": {}}
TOKENIZER = ToyTokenizer(BEAM["special_tokens"], BEAM["templates"]["T1"])
PROMPT = TOKENIZER.encode("<|start|>user<|message|>Hi<|end|><|start|>assistant")
CALL = (
    "<|channel|>analysis<|message|>t<|end|><|start|>assistant"
    " to=write_file<|channel|>analysis <|constrain|>xml<|message|>"
    '<rfl:parameter name="path">\na\n</rfl:parameter>\n<rfl:parameter name="content">\nHello wor'
)


def _serving():
    serving = OpenAIServingChat.__new__(OpenAIServingChat)
    serving.parser_cls = parser_class(OPTIONS)
    serving.model_config = SimpleNamespace(
        hf_overrides=None, hf_text_config=SimpleNamespace(model_type="beam"), model="m"
    )
    defaults = {
        "enable_auto_tools": True,
        "enable_force_include_usage": False,
        "enable_prompt_tokens_details": False,
        "enable_log_outputs": False,
        "enable_per_request_metrics": False,
        "request_logger": None,
        "system_fingerprint": None,
        "response_role": "assistant",
        "return_tokens_as_token_ids": False,
    }
    for name, value in defaults.items():
        setattr(serving, name, value)
    return serving


def _outputs(text, reason, size):
    """The engine's outputs: deltas of `size` characters, or the whole text if size is None."""
    pieces = [text] if size is None else [text[at : at + size] for at in range(0, len(text), size)]
    for index, piece in enumerate(pieces):
        last = index == len(pieces) - 1
        completion = CompletionOutput(
            index=0,
            text=piece,
            token_ids=TOKENIZER.encode(piece),
            cumulative_logprob=None,
            logprobs=None,
            finish_reason=reason if last else None,
        )
        yield RequestOutput(
            request_id="r",
            prompt="",
            prompt_token_ids=PROMPT,
            prompt_logprobs=None,
            outputs=[completion],
            finished=last,
        )


async def _generate(outputs):
    for output in outputs:
        yield output


def _stream(text, reason, **given):
    request = request_for({"request": {"stream": True, **given}}, BEAM["tools"])

    async def collect():
        generator = _serving().chat_completion_stream_generator(
            request, _generate(_outputs(text, reason, 5)), "r", "m", [], TOKENIZER, SimpleNamespace()
        )
        return [line async for line in generator]

    lines = asyncio.run(collect())
    assert lines[-1] == "data: [DONE]\n\n"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def _full(text, reason, **given):
    request = request_for({"request": given}, BEAM["tools"])
    serving = _serving()
    parser = serving.parser_cls(TOKENIZER, request.tools)
    response = asyncio.run(
        serving.chat_completion_full_generator(
            request, _generate(_outputs(text, reason, None)), "r", "m", [], TOKENIZER, SimpleNamespace(), parser=parser
        )
    )
    return response.choices[0]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_cut_call_finishes_with_length(choice):
    chunks = _stream(CALL, "length", tool_choice=choice)
    reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert reasons == ["length"]
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"path": "a", "content": "Hello wor'
    plain = _full(CALL, "length", tool_choice=choice)
    assert plain.finish_reason == "length"
    assert [json.loads(call.function.arguments) for call in plain.message.tool_calls] == [{"path": "a"}]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_complete_call_finishes_with_tool_calls(choice):
    text = CALL + "ld\n</rfl:parameter>"
    chunks = _stream(text, "stop", tool_choice=choice)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert _full(text, "stop", tool_choice=choice).finish_reason == "tool_calls"


def test_named_call_finishes_with_stop():
    named = {"type": "function", "function": {"name": "write_file"}}
    text = CALL + "ld\n</rfl:parameter>"
    assert _stream(text, "stop", tool_choice=named)[-1]["choices"][0]["finish_reason"] == "stop"


def test_small_token_limit_spent_on_reasoning():
    text = "<|channel|>analysis<|message|>Let me think about"
    chunks = _stream(text, "length")
    joined = "".join(chunk["choices"][0]["delta"].get("reasoning") or "" for chunk in chunks)
    assert joined == "Let me think about"
    assert not any(chunk["choices"][0]["delta"].get("content") for chunk in chunks)
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["length"]
    plain = _full(text, "length")
    assert (plain.message.reasoning, plain.message.content, plain.finish_reason) == (joined, None, "length")


def test_deltas_on_the_wire_hold_only_what_they_say():
    """First delta of a call: index, id, type, name. Later ones: index and arguments."""
    chunks = _stream(CALL + "ld\n</rfl:parameter>", "stop")
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert set(calls[0]) == {"index", "id", "type", "function"}
    assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in calls[1:])
    assert len(calls) > 3
