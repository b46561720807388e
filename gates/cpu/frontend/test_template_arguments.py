# SPDX-License-Identifier: Apache-2.0
"""What a client may not hand to the chat template, and what it is told when the template cannot be rendered."""

from __future__ import annotations

from types import SimpleNamespace

import jinja2
import pytest
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.parser.chat_prompt.prepare import TemplateComplaint, prepare_prompt
from vllm.parser.chat_prompt.template_arguments import SERVERS_OWN
from vllm.renderers.params import ChatParams

HI = [{"role": "user", "content": "Hi"}]


def chat(**fields):
    return ChatCompletionRequest(model="m", messages=HI, **fields)


def responses(**fields):
    return ResponsesRequest(model="m", input="Hi", **fields)


def messages(**fields):
    request = AnthropicMessagesRequest(model="m", messages=HI, max_tokens=5, **fields)
    return AnthropicServingMessages._convert_anthropic_to_openai_request(request)


EVERY = pytest.mark.parametrize("make", [chat, responses, messages])


def prepared(request, conversation=HI, model="beam", trusted=False):
    config = SimpleNamespace(hf_config=SimpleNamespace(model_type=model), model="m")
    renderer = SimpleNamespace(model_config=config, parser=None, trust_request_chat_template=trusted)
    return prepare_prompt(renderer, request, conversation, ChatParams(chat_template="x", chat_template_kwargs={}))


@EVERY
@pytest.mark.parametrize("model", ["beam", "muse_spark", "llama"])
def test_a_template_in_the_request_needs_trust(make, model):
    request = make(chat_template_kwargs={"chat_template": "{% for a in range(10 ** 9) %}{% endfor %}"})
    with pytest.raises(VLLMValidationError, match="--trust-request-chat-template") as caught:
        prepared(request, model=model)
    assert caught.value.parameter == "chat_template_kwargs"
    assert prepared(request, model=model, trusted=True)
    assert prepared(make(chat_template_kwargs={"chat_template": None}), model=model)
    assert prepared(make(), model=model)


@EVERY
@pytest.mark.parametrize("name", sorted(SERVERS_OWN))
def test_the_servers_own_arguments_are_refused(make, name):
    with pytest.raises(VLLMValidationError, match=rf"chat_template_kwargs\.{name} is set by the server") as caught:
        prepared(make(chat_template_kwargs={name: 10**9}))
    assert caught.value.parameter == "chat_template_kwargs"


@EVERY
def test_any_other_argument_reaches_the_template(make):
    assert prepared(make(chat_template_kwargs={"enable_thinking": False, "seed": 3, "documents": []}))


@pytest.mark.parametrize(("make", "name"), [(chat, "messages"), (responses, "input"), (messages, "messages")])
def test_an_empty_conversation_is_refused_by_its_name(make, name):
    with pytest.raises(VLLMValidationError, match=f"{name} is empty; send at least one message") as caught:
        prepared(make(), conversation=[])
    assert caught.value.parameter == name


def test_advice_is_for_what_the_template_says():
    said = TemplateComplaint(jinja2.TemplateError("reasoning is missing"))
    assert "reasoning is missing. Send every earlier assistant message" in str(said)
    failed = TemplateComplaint(IndexError("list index out of range"))
    assert "cannot render the conversation: list index out of range" in str(failed)
    assert "earlier assistant message" not in str(failed)
