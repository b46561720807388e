# SPDX-License-Identifier: Apache-2.0
"""Bodies that are JSON but no object: every request class refuses them as the client's error."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeChatRequest, TokenizeCompletionRequest

KINDS = (ChatCompletionRequest, CompletionRequest, ResponsesRequest, TokenizeChatRequest, TokenizeCompletionRequest,
         DetokenizeRequest)  # fmt: skip
BODIES = ([], [{"messages": []}], None, 3, 2.5, True, "text")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_a_body_that_is_no_object_is_refused_by_name(kind, body):
    """As FastAPI validates it; anything but a ValidationError becomes a 500."""
    with pytest.raises(ValidationError, match="a JSON object is expected"):
        TypeAdapter(kind).validate_python(body, from_attributes=True)


def test_an_object_and_an_instance_are_taken():
    """Control: the refusal is not of everything."""
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tool_choice": "none"}
    made = TypeAdapter(ChatCompletionRequest).validate_python(body, from_attributes=True)
    assert made.tool_choice == "none"
    assert TypeAdapter(ChatCompletionRequest).validate_python(made) is made
