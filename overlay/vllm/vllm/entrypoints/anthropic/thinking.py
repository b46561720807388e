# SPDX-License-Identifier: Apache-2.0
"""Extended thinking and one call at a time, as clients of the Messages API ask for them.

    thinking.type   what it does
    enabled         `budget_tokens` is a hard reasoning budget: that many tokens, then the turn still answers
    adaptive        nothing: the model decides, within `output_config.effort`
    disabled        the lowest reasoning effort, as the models always reason

A client may set `display`; thinking is always returned, since the models want it back.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictInt


class ThinkingEnabled(BaseModel):
    type: Literal["enabled"]
    budget_tokens: StrictInt = Field(ge=1)
    display: str | None = None


class ThinkingAdaptive(BaseModel):
    type: Literal["adaptive"]
    display: str | None = None


class ThinkingDisabled(BaseModel):
    type: Literal["disabled"]


ThinkingConfig = Annotated[ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled, Field(discriminator="type")]


def budget_below_limit(request: Any) -> Any:
    """Validator of a Messages request. Raises ValueError if thinking alone may use up `max_tokens`."""
    thinking = request.thinking
    if isinstance(thinking, ThinkingEnabled) and thinking.budget_tokens >= request.max_tokens:
        raise ValueError(
            f"thinking.budget_tokens ({thinking.budget_tokens}) must be less than max_tokens ({request.max_tokens})"
        )
    return request


def apply_to_chat(chat: Any, request: Any) -> None:
    """Put what `request`, a Messages or token-counting request, asks for on the chat request made from it."""
    thinking = request.thinking
    if isinstance(thinking, ThinkingEnabled):
        chat.thinking_token_budget = thinking.budget_tokens
    elif isinstance(thinking, ThinkingDisabled):
        chat.reasoning_effort = "none"
    if request.tool_choice is not None and request.tool_choice.disable_parallel_tool_use:
        chat.parallel_tool_calls = False


def finish_reason(reason: str | None, calls: Any) -> str | None:
    """The chat finish reason with which the turn's stop reason is right: chat says "stop" for a call that the request
    named, the Messages API says "tool_use" for every turn that ends in calls."""
    return "tool_calls" if calls and reason == "stop" else reason


def name_stop_sequence(answer: Any, stopped: int | str | None) -> None:
    """Say that one of the client's stop sequences ended the turn, and which: a call that it cut must not be run.

    Args:
        answer: the message of a whole answer, or the last delta of a streamed one.
        stopped: the engine's stop reason, a text where it was a stop sequence.
    """
    if isinstance(stopped, str):
        answer.stop_reason, answer.stop_sequence = "stop_sequence", stopped
