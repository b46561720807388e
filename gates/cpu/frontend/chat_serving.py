# SPDX-License-Identifier: Apache-2.0
"""vLLM's own chat generators over outputs that a test writes, for the Beam parser."""

import asyncio
import json
from types import SimpleNamespace

from parser_turns import parser_class, recorded, request_for
from toy_tokenizer import ToyTokenizer
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput

BEAM = recorded("beam_parse")
OPTIONS = {"reasoning_parser": "beam", "tool_parser": "beam", "enable_auto_tools": True, "request": {}}
TOKENIZER = ToyTokenizer(BEAM["special_tokens"], BEAM["templates"]["T1"])
PROMPT = TOKENIZER.encode("<|start|>user<|message|>Hi<|end|><|start|>assistant")


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


def _outputs(text, reason, size, stopped=None, scored=False):
    """The engine's outputs: deltas of `size` characters, or the whole text if size is None."""
    pieces = [text] if size is None else [text[at : at + size] for at in range(0, len(text), size)]
    for index, piece in enumerate(pieces):
        last = index == len(pieces) - 1
        completion = CompletionOutput(
            index=0,
            text=piece,
            token_ids=(ids := TOKENIZER.encode(piece)),
            cumulative_logprob=None,
            logprobs=[{token: Logprob(-1.0)} for token in ids] if scored else None,
            finish_reason=reason if last else None,
            stop_reason=stopped if last else None,
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


def stream(text, reason, stopped=None, **given):
    """Chunks of a streamed answer."""
    request = request_for({"request": {"stream": True, **given}}, BEAM["tools"])

    async def collect():
        generator = _serving().chat_completion_stream_generator(
            request,
            _generate(_outputs(text, reason, 5, stopped, bool(given.get("logprobs")))),
            "r",
            "m",
            [],
            TOKENIZER,
            SimpleNamespace(),
        )
        return [line async for line in generator]

    lines = asyncio.run(collect())
    assert lines[-1] == "data: [DONE]\n\n"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def full(text, reason, stopped=None, **given):
    """The choice of a whole answer."""
    request = request_for({"request": given}, BEAM["tools"])
    serving = _serving()
    parser = serving.parser_cls(TOKENIZER, request.tools)
    response = asyncio.run(
        serving.chat_completion_full_generator(
            request,
            _generate(_outputs(text, reason, None, stopped, bool(given.get("logprobs")))),
            "r",
            "m",
            [],
            TOKENIZER,
            SimpleNamespace(),
            parser=parser,
        )
    )
    return response.choices[0]
