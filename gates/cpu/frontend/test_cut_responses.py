# SPDX-License-Identifier: Apache-2.0
"""Items of a response that something cut, streamed and not, through vLLM's own generators."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from chat_serving import OPTIONS, PROMPT, TOKENIZER
from parser_turns import parser_class
from vllm.entrypoints.openai.responses.context import SimpleContext
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.outputs import CompletionOutput, RequestOutput

TOOL = {
    "type": "function",
    "name": "write",
    "strict": False,
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
}
THOUGHT = "<|channel|>analysis<|message|>t<|end|><|start|>assistant"
OPENER = ' to=write<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name="path">\na\n</rfl:parameter>'
CALL = THOUGHT + OPENER
CUT_CALL = CALL + '\n<rfl:parameter name="text">\nhalf'
MESSAGE = THOUGHT + "<|channel|>final<|message|>half of"
TWO = CALL + "<|call|><|start|>assistant" + OPENER + '\n<rfl:parameter name="text">\nha'


def items(text, reason, stopped=None, **fields):
    """(type, status) of the items of the whole response, and of those the stream closed."""
    request = ResponsesRequest(model="m", input="Hi", tools=[TOOL], store=False, **fields)
    serving = OpenAIServingResponses.__new__(OpenAIServingResponses)
    values = {
        "parser": parser_class(OPTIONS),
        "use_harmony": False,
        "tool_server": None,
        "enable_auto_tools": True,
        "enable_log_outputs": False,
        "request_logger": None,
    }
    for name, value in values.items():
        setattr(serving, name, value)

    async def outputs(context, size):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        for piece in pieces:
            last = piece is pieces[-1]
            made = CompletionOutput(
                index=0,
                text=piece,
                token_ids=TOKENIZER.encode(piece),
                cumulative_logprob=None,
                logprobs=None,
                finish_reason=reason if last else None,
                stop_reason=stopped if last else None,
            )
            context.append_output(
                RequestOutput(
                    "r", prompt="", prompt_token_ids=PROMPT, prompt_logprobs=None, outputs=[made], finished=last
                )
            )
            yield context

    def context():
        return SimpleContext(parser_cls=serving.parser, tokenizer=TOKENIZER, request=request)

    async def run():
        whole, streamed = context(), context()
        done = await serving.responses_full_generator(
            request, request.to_sampling_params(64), outputs(whole, len(text)), whole, "m", TOKENIZER, SimpleNamespace()
        )
        events = serving._process_simple_streaming_events(
            request, None, outputs(streamed, 7), streamed, "m", TOKENIZER, SimpleNamespace(), 0, lambda event: event
        )
        return done, [event async for event in events]

    done, events = asyncio.run(run())
    closed = [event.item for event in events if event.type == "response.output_item.done"]
    return [(item.type, item.status) for item in done.output], [(item.type, item.status) for item in closed]


def test_the_item_that_the_limit_cut_is_incomplete():
    for found in items(CUT_CALL, "length"):
        assert found[-1] == ("function_call", "incomplete")
        assert ("reasoning", "incomplete") not in found
    for found in items(MESSAGE, "length"):
        assert found[-1] == ("message", "incomplete")
    for found in items(THOUGHT[:35], "length"):
        assert found == [("reasoning", "incomplete")]
    for found in items(TWO, "length"):
        assert found[-2:] == [("function_call", "completed"), ("function_call", "incomplete")]


@pytest.mark.parametrize("stopped", ["lf", 77])
def test_a_stop_of_the_clients_cuts_a_call_and_ends_a_text(stopped):
    fields = {"stop": ["lf"], "stop_token_ids": [77]}
    for found in items(CUT_CALL, "stop", stopped, **fields):
        assert found[-1] == ("function_call", "incomplete")
    for found in items(MESSAGE, "stop", stopped, **fields):
        assert found[-1] == ("message", "completed")


@pytest.mark.parametrize("stopped", [None, 200012])
def test_what_the_model_ended_is_complete(stopped):
    for found in items(CALL, "stop", stopped):
        assert found[-1] == ("function_call", "completed")
    for found in items(MESSAGE + "<|return|>", "stop", stopped):
        assert found[-1] == ("message", "completed")
