# SPDX-License-Identifier: Apache-2.0
"""vLLM's renderer hands every request of a unified parser to `adjust_request`, with the prompt it rendered."""

import asyncio
from types import SimpleNamespace

import pytest
from parser_turns import parser_class, recorded, request_for
from toy_tokenizer import ToyTokenizer
from vllm.parser import unified
from vllm.renderers import online_renderer
from vllm.renderers.online_renderer import OnlineRenderer

BEAM = recorded("beam_parse")
OPTIONS = {"reasoning_parser": "beam", "tool_parser": "beam", "enable_auto_tools": True}
TOKENIZER = ToyTokenizer(BEAM["special_tokens"], BEAM["templates"]["T1"])
PROMPT = TOKENIZER.encode("<|start|>user<|message|>Hi<|end|><|start|>assistant")


def _render(monkeypatch, parser_cls, request):
    async def rendered(*args, **kwargs):
        return ([[]], [{"type": "token", "prompt_token_ids": PROMPT}])

    renderer = OnlineRenderer.__new__(OnlineRenderer)
    renderer.model_config = SimpleNamespace(
        multimodal_config=None,
        enable_prompt_embeds=False,
        hf_config=SimpleNamespace(model_type="beam"),
        hf_text_config=SimpleNamespace(model_type="beam"),
        hf_overrides=None,
        max_model_len=1000,
        model="m",
    )
    renderer.renderer = SimpleNamespace(
        tokenizer=TOKENIZER, get_tokenizer=lambda: TOKENIZER, render_chat_async=rendered
    )
    monkeypatch.setattr(type(request), "build_tok_params", lambda self, config: None)
    monkeypatch.setattr(online_renderer, "is_mistral_tokenizer", lambda tokenizer: False)
    asyncio.run(
        renderer.preprocess_chat(
            request,
            [{"role": "user", "content": "Hi"}],
            default_template=None,
            default_template_content_format="auto",
            default_template_kwargs=None,
            parser=parser_cls,
        )
    )


@pytest.mark.parametrize("given", [{}, {"tool_choice": "none"}, {"tools": None}])
@pytest.mark.parametrize("reasoning_parser", ["beam", None])
def test_every_request_is_adjusted_with_its_prompt(monkeypatch, given, reasoning_parser):
    seen = []
    monkeypatch.setattr(
        unified.UnifiedParser, "constrain_request", lambda self, request: seen.append(self._prompt) or request
    )
    request = request_for({"request": given}, BEAM["tools"])
    _render(monkeypatch, parser_class({**OPTIONS, "reasoning_parser": reasoning_parser}), request)
    assert seen == [TOKENIZER.decode(PROMPT)]
    assert request.skip_special_tokens is False
    assert request._rendered_prompt_token_ids == PROMPT


def test_the_check_runs_when_the_server_starts(monkeypatch):
    checked = []
    monkeypatch.setattr(online_renderer, "check_tokenizer", lambda *args: checked.append(args))
    monkeypatch.setattr(online_renderer, "note_template", lambda *args: None, raising=False)
    config = SimpleNamespace(hf_config=SimpleNamespace(model_type="beam"), model="m")
    OnlineRenderer(
        config,
        SimpleNamespace(tokenizer=TOKENIZER),
        request_logger=None,
        chat_template=None,
        chat_template_content_format="auto",
        enable_auto_tools=True,
        tool_parser="beam",
        reasoning_parser="beam",
    )
    ((parser_cls, tokenizer, model),) = checked
    assert adjusts(parser_cls)
    assert (tokenizer, model) == (TOKENIZER, "m")


def adjusts(parser_cls):
    return unified.adjusts_always(parser_cls)
