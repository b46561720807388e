# SPDX-License-Identifier: Apache-2.0
"""The hook between a request and its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.parser.chat_prompt.effort import EffortLevels, map_effort
from vllm.parser.chat_prompt.history import prepared
from vllm.parser.chat_prompt.template_arguments import asked, check_arguments, check_untrusted_template


@dataclass(frozen=True)
class PromptProfile:
    """How a model family's template wants its input."""

    effort: EffortLevels
    split_calls: bool = False
    full_tools: bool = False


PROFILES = {
    "beam": PromptProfile(EffortLevels("reasoning_effort", ("low", "medium", "high"))),
    "muse": PromptProfile(
        EffortLevels("reasoning_strength", ("low", "medium", "high", "xhigh")), split_calls=True, full_tools=True
    ),
}
_OF_MODEL_TYPE = {"beam": "beam", "muse_spark": "muse"}


def profile_of(renderer: Any) -> PromptProfile | None:
    """The profile of a renderer's model, or of the format its parser reads."""
    name = _OF_MODEL_TYPE.get(getattr(renderer.model_config.hf_config, "model_type", None))
    return PROFILES.get(name or getattr(renderer.parser, "format_name", None))


def prepare_prompt(renderer: Any, request: Any, messages: list[Any], chat_params: Any) -> tuple[list[Any], Any]:
    """Messages and template parameters as the model's template needs them.

    Models without a profile get both back as they are.

    Args:
        renderer: an `OnlineRenderer`; its `model_config` and `parser` are read.

    Raises:
        VLLMValidationError: a value that no template could take, or a template of the client's own; names the
            parameter.
    """
    check_untrusted_template(renderer, request)
    profile = profile_of(renderer)
    if profile is None:
        return messages, chat_params
    check_arguments(request)
    name = "messages" if hasattr(request, "messages") else "input"
    if not messages:
        raise VLLMValidationError(f"{name} is empty; send at least one message", parameter=name)
    kwargs = map_effort(chat_params.chat_template_kwargs or {}, profile.effort, "enable_thinking" in asked(request))
    if kwargs.get("tools"):
        tools = [_as_in_chat(tool) for tool in kwargs["tools"]]
        kwargs["tools"] = [_full(tool) for tool in tools] if profile.full_tools else tools
    messages = prepared(messages, split_calls=profile.split_calls, parameter=name)
    return messages, replace(chat_params, chat_template_kwargs=kwargs)


def _as_in_chat(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool as chat completions describe it, so that one tool is one prompt through every API: the Responses API puts
    its own type and unset options beside the name."""
    given = tool.get("function")
    if not isinstance(given, Mapping):
        return tool
    function = {name: given.get(name) for name in ("name", "description", "parameters")}
    function |= {name: value for name, value in given.items() if name not in ("type", *function) and value is not None}
    return {**tool, "function": function}


def _full(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with description and parameters, which the template writes without asking."""
    function = dict(tool.get("function") or {})
    if function.get("description") is None:
        function["description"] = ""
    if function.get("parameters") is None:
        function["parameters"] = {"type": "object", "properties": {}}
    return {**tool, "function": function}


class TemplateComplaint(ValueError):
    """A chat template refused the conversation, and the text says what templates ask for; or it could not be rendered
    at all."""

    def __init__(self, error: Exception):
        if any(kind.__name__ == "TemplateError" for kind in type(error).__mro__):
            super().__init__(
                f"the chat template refused the conversation: {error}. Send every earlier assistant "
                "message with its `reasoning`, tool arguments as a JSON object, and a tool message "
                "for each tool call"
            )
        else:
            super().__init__(
                f"the chat template cannot render the conversation: {error}. Send messages, tools and "
                "chat_template_kwargs of the kinds that the API documents"
            )
