# SPDX-License-Identifier: Apache-2.0
"""`/v1/chat/completions/batch` through vLLM's own serving: each conversation as it were alone."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from chat_serving import OPTIONS, TOKENIZER
from parser_turns import parser_class
from vllm.entrypoints.openai.chat_completion.batch_serving import OpenAIServingChatBatch
from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest
from vllm.outputs import CompletionOutput, RequestOutput

START = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
OPEN = START + "<|channel|>final<|message|>It is "
TURN = "<|channel|>analysis<|message|>{0}<|end|><|start|>assistant<|channel|>final<|message|>{0}!<|return|>"


def answered(prompts, texts, parser_cls=None, **fields):
    """(choices, what the engine was asked for each) of a batch with these prompts and outputs."""
    asked = []
    outputs = iter(texts)

    async def generate(prompt, params, request_id, **kwargs):
        asked.append((params, kwargs))
        text = next(outputs)
        made = CompletionOutput(
            index=0,
            text=text if not params.skip_special_tokens else TOKENIZER.decode(TOKENIZER.encode(text), True),
            token_ids=TOKENIZER.encode(text),
            cumulative_logprob=None,
            logprobs=None,
            finish_reason="stop",
        )
        ids = prompt["prompt_token_ids"]
        yield RequestOutput("r", prompt="", prompt_token_ids=ids, prompt_logprobs=None, outputs=[made], finished=True)

    async def preprocess(single, messages, *, parser, **kwargs):
        single._rendered_prompt_token_ids = TOKENIZER.encode(messages[0]["content"])
        adjusted = single if parser is None else parser(TOKENIZER, None).adjust_request(single)
        assert adjusted is single
        return [], [{"prompt_token_ids": single._rendered_prompt_token_ids}]

    async def no_error(request):
        return None

    serving = OpenAIServingChatBatch.__new__(OpenAIServingChatBatch)
    cls = parser_class(OPTIONS) if parser_cls is None else None
    renderer = SimpleNamespace(
        parser=cls,
        use_harmony=False,
        validate_chat_template=lambda **k: None,
        trust_request_chat_template=False,
        preprocess_chat=preprocess,
        chat_template=None,
        chat_template_content_format="auto",
        default_chat_template_kwargs=None,
    )
    values = {
        "parser_cls": cls,
        "renderer": SimpleNamespace(tokenizer=TOKENIZER),
        "online_renderer": renderer,
        "engine_client": SimpleNamespace(errored=False, generate=generate),
        "models": SimpleNamespace(model_name=lambda lora: "m"),
        "model_config": SimpleNamespace(max_model_len=4096),
        "default_sampling_params": {},
        "override_max_tokens": None,
        "system_fingerprint": None,
        "response_role": "assistant",
        "_check_model": no_error,
        "_extract_prompt_len": lambda entry: len(entry["prompt_token_ids"]),
        "_maybe_get_adapters": lambda request, **k: None,
        "_get_data_parallel_rank": lambda raw: None,
        "_log_inputs": lambda *a, **k: None,
        "_effective_chat_template_kwargs": lambda request: {},
    }
    for name, value in values.items():
        setattr(serving, name, value)
    batch = BatchChatCompletionRequest(
        model="m", messages=[[{"role": "user", "content": prompt}] for prompt in prompts], **fields
    )
    response = asyncio.run(serving.create_batch_chat_completion(batch))
    return [choice.message for choice in response.choices], asked


def test_batches_are_read_and_constrained_like_single_chats():
    messages, asked = answered([START, START], [TURN.format("one"), TURN.format("two")])
    assert [(m.reasoning, m.content) for m in messages] == [("one", "one!"), ("two", "two!")]
    assert [m.reasoning_content for m in messages] == ["one", "two"]
    for params, told in asked:
        assert not params.skip_special_tokens
        assert json.loads(params.structured_outputs.structural_tag)["type"] == "structural_tag"
        assert told["reasoning_ended"] is True


def test_each_output_follows_its_own_prompt():
    messages, asked = answered([START, OPEN, START], [TURN.format("a"), "late<|return|>", TURN.format("b")])
    assert [m.content for m in messages] == ["a!", "late", "b!"]
    assert [told["reasoning_ended"] for _, told in asked] == [True, True, True]


@pytest.mark.parametrize(
    "fields", [{"structured_outputs": {"choice": ["x"]}}, {"response_format": {"type": "json_object"}}]
)
def test_structured_outputs_and_budgets_are_part_of_the_turn(fields):
    _, asked = answered([START], [TURN.format("a")], thinking_token_budget=3, **fields)
    (params, _) = asked[0]
    assert '"max_tokens": 2' in params.structured_outputs.structural_tag  # behind a first one
    assert params.thinking_token_budget is None


def test_without_a_parser_nothing_changes():
    messages, asked = answered([START], ["hello"], parser_cls=False)
    assert [m.content for m in messages] == ["hello"]
    assert asked[0][1]["reasoning_ended"] is None
