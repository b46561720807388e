# SPDX-License-Identifier: Apache-2.0
"""What a client may not hand to the chat template."""

from __future__ import annotations

from typing import Any

from vllm.exceptions import VLLMValidationError

# What the server hands over itself, and switches of the tokenizer that no template sees: padding to a length, say,
# costs memory without bound.
SERVERS_OWN = frozenset(
    {
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


def check_untrusted_template(renderer: Any, request: Any) -> None:
    """Refuse a template in the request, whichever API it came through, unless the server trusts its clients with that.

    Raises:
        VLLMValidationError: names `chat_template_kwargs`.
    """
    if getattr(renderer, "trust_request_chat_template", False) or asked(request).get("chat_template") is None:
        return
    raise VLLMValidationError(
        "chat_template_kwargs.chat_template is refused: the server was started without --trust-request-chat-template; "
        "leave it out",
        parameter="chat_template_kwargs",
    )


def check_arguments(request: Any) -> None:
    """Raises VLLMValidationError for template arguments that are the server's own."""
    if taken := sorted(name for name in SERVERS_OWN & set(asked(request)) if asked(request)[name] is not None):
        raise VLLMValidationError(
            f"chat_template_kwargs.{taken[0]} is set by the server; leave it out", parameter="chat_template_kwargs"
        )


def asked(request: Any) -> dict[str, Any]:
    """The template arguments of the request itself."""
    return getattr(request, "chat_template_kwargs", None) or {}
