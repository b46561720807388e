# SPDX-License-Identifier: Apache-2.0
"""Put a turn grammar on a chat-completion or Responses request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.logger import init_logger
from vllm.parser.turn_grammar.arguments import arguments
from vllm.parser.turn_grammar.cache import tag_text
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.limits import check_budget, check_tools
from vllm.parser.turn_grammar.prompt_state import PromptState, prompt_state, written_after_anchor
from vllm.parser.turn_grammar.repeats import check_repeats
from vllm.parser.turn_grammar.structured import answer_body, constraint_of, constraint_parameter, strictly
from vllm.parser.turn_grammar.thinking import Thinking
from vllm.parser.turn_grammar.turn import Tool, TurnRules, answer_delimiters
from vllm.parser.turn_grammar.unheld import unheld
from vllm.parser.turn_grammar.wire_format import CallSyntax, TurnFormat
from vllm.sampling_params import StructuredOutputsParams, validate_thinking_token_budget
from vllm.tool_parsers.utils import flat_namespace_tool_name

logger = init_logger(__name__)

NO_ANCHOR = "the prompt does not begin the assistant's message; leave `add_generation_prompt` true"


@dataclass(frozen=True)
class Serving:
    """How the server was started, as far as a turn's grammar depends on it."""

    reasoning_parser: bool = True
    tool_parser: bool = True
    auto_tools: bool = True


@dataclass(frozen=True)
class Choice:
    """The request's tool choice. `mode` is auto, none, required or named."""

    mode: str
    name: str | None = None

    @property
    def forced(self) -> bool:
        return self.mode in ("required", "named")


def constrain_request(
    request: Any,
    turn: TurnFormat,
    *,
    prompt: str,
    serving: Serving,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Set the grammar of the whole turn on `request`, in place, and return it.

    A chat request gets `structured_outputs` (and loses `response_format`); a Responses request
    gets `_parser_structured_outputs`, so that its echoed `text` stays. `_grammar_from_parser`
    says whether the grammar starts at the first generated token.

    Args:
        prompt: the rendered prompt, decoded with special tokens.
        chat_template_kwargs: effective keyword arguments of the chat template.

    Raises:
        VLLMValidationError: the request asks for what the format cannot guarantee; the error
            names the parameter.
    """
    request._grammar_from_parser = False
    tools = request_tools(request)
    choice = tool_choice(request, tools)
    allowed = serving.tool_parser and choice.mode != "none" and bool(tools) and (choice.forced or serving.auto_tools)
    state = prompt_state(turn, prompt)
    if choice.forced and (reason := _obstacle(turn, tools, serving, state)):
        raise VLLMValidationError(
            f"{turn.label} cannot guarantee {choice.mode} tool choice for this request: {reason}",
            parameter="tool_choice",
        )
    if allowed:
        check_tools([(tool.name, tool.parameters) for tool in tools])
        _check_spelling(turn, tools)
    constraint = constraint_of(request)
    if choice.forced and constraint is not None:
        logger.warning(
            "tool_choice=%s: the structured output of the request is ignored, the turn holds only tool calls.",
            choice.mode,
        )
        constraint = None
    if constraint is not None and constraint.structural_tag is not None:
        _refuse_budget(request, "a structural tag of the client's own")
        # The tag stays as the client wrote it; the engine judges it.
        logger.warning_once(
            "A structural tag of a client's own is held from the end of the reasoning on: it has to begin with the "
            "header of the answer, such as %r, or the answer is empty.",
            turn.answer[0][0] if turn.answer is not None else "",
        )
        if any(tool.strict for tool in tools):
            logger.warning("Strict tools are not enforced beside a structural tag of the client's own.")
        return request
    body = answer_body(constraint, answer_delimiters(turn), constraint_parameter(request), strictly(request))
    if body is not None and state == "no_anchor":
        raise VLLMValidationError(f"a structured output cannot be held: {NO_ANCHOR}", parameter="add_generation_prompt")
    needed = choice.forced or body is not None or _has_budget(request)
    lead = _lead(turn, state, request, serving, chat_template_kwargs, choice)
    if lead is None or not (needed or always_constrained(turn)) or (state == "open_answer" and body is not None):
        if lead is None:
            _refuse_budget(request, "a prompt that ends inside a call or inside thinking")
        return request
    if not _combines(request, turn, needed):
        return request
    rules = TurnRules(
        thinking=lead[0],
        budget=thinking_budget(request),
        tools=_callable(tools, choice) if allowed and turn.call is not None else (),
        other_tools=allowed and choice.mode == "auto",
        answer=not choice.forced,
        body=body,
        parallel=choice.mode != "named" and getattr(request, "parallel_tool_calls", None) is not False,
        open_answer=state == "open_answer",
        written=written_after_anchor(turn, prompt) if state in ("fresh", "cut") else None,
    )
    try:
        text = tag_text(turn, rules)
    except NotGrammar as error:
        if choice.forced:
            raise VLLMValidationError(f"the model's format has no grammar: {error}", parameter="tool_choice") from error
        _refuse_budget(request, f"the model's format: {error}")
        logger.warning("No turn grammar: %s.", error)
        return request
    return _apply(request, text, from_start=lead[1])


def request_tools(request: Any) -> list[Tool]:
    """Function tools of either API; other kinds of tools are not the model's to call."""
    found = []
    for tool in request.tools or ():
        entry = tool.model_dump() if hasattr(tool, "model_dump") else dict(tool)
        if entry.get("type") == "namespace":
            found += [
                _tool({**inner, "name": flat_namespace_tool_name(entry["name"], inner["name"])})
                for inner in entry.get("tools", ())
                if inner.get("type") == "function"
            ]
        elif entry.get("type", "function") == "function":
            found.append(_tool(entry.get("function") or entry))
    return found


def _tool(entry: Mapping[str, Any]) -> Tool:
    return Tool(entry["name"], entry.get("parameters"), bool(entry.get("strict")))


def tool_choice(request: Any, tools: list[Tool]) -> Choice:
    raw = getattr(request, "tool_choice", None)
    if raw is None:
        return Choice("auto" if tools else "none")
    if isinstance(raw, str):
        return Choice(raw)
    entry = raw.model_dump() if hasattr(raw, "model_dump") else dict(raw)
    name = (entry.get("function") or entry).get("name")
    if not isinstance(name, str) or entry.get("type", "function") != "function":
        raise VLLMValidationError(
            f"tool_choice of type {entry.get('type')!r} is not served; send 'auto', 'none', 'required' or a function",
            parameter="tool_choice",
        )
    if name not in [tool.name for tool in tools]:
        raise VLLMValidationError(f"tool_choice names {name[:64]!r}, which is not in tools", parameter="tool_choice")
    return Choice("named", name)


def always_constrained(turn: TurnFormat) -> bool:
    return os.environ.get(f"VLLM_{turn.label.upper()}_ALWAYS_CONSTRAIN_OUTPUT", "1") != "0"


def thinking_budget(request: Any) -> int | None:
    """The request's `thinking_token_budget`, taken over from the sampler.

    The sampler's own budget needs a runner that supports it; a grammar holds on any.
    """
    budget = getattr(request, "_thinking_budget", None)
    if (asked := getattr(request, "thinking_token_budget", None)) is not None:
        # A Responses request has no field of this name and so no check of its own.
        budget = validate_thinking_token_budget(asked)
        check_budget(budget)
        request.thinking_token_budget = None
        request._thinking_budget = budget
    return budget


def _has_budget(request: Any) -> bool:
    """Whether the request bounds its thinking; -1 is no bound."""
    asked = (getattr(request, name, None) for name in ("thinking_token_budget", "_thinking_budget"))
    return any(budget not in (None, -1) for budget in asked)


def _refuse_budget(request: Any, why: str) -> None:
    """Without a grammar nothing would hold a reasoning budget: refuse one rather than ignore it."""
    if _has_budget(request):
        raise VLLMValidationError(
            f"thinking_token_budget cannot be held beside {why}; leave one of them out",
            parameter="thinking_token_budget",
        )


def _callable(tools: list[Tool], choice: Choice) -> tuple[Tool, ...]:
    return tuple(tool for tool in tools if choice.name in (None, tool.name))


def _obstacle(turn: TurnFormat, tools: list[Tool], serving: Serving, state: PromptState) -> str | None:
    """Why no call can be forced, and what to do; None if one can."""
    if not serving.tool_parser:
        return (
            "the server parses no tool calls; start it with --enable-auto-tool-choice and "
            f"--tool-call-parser {turn.label}"
        )
    if not tools:
        return "it has no function tools; send some in `tools`"
    if turn.call is None:
        return "the model's response template has no tool calls; use tool_choice='none'"
    if state == "no_anchor":
        return NO_ANCHOR
    if state in ("open_answer", "inside"):
        return "the prompt already opened an answer or a call; use tool_choice='auto'"
    return None


def _check_spelling(turn: TurnFormat, tools: list[Tool]) -> None:
    if turn.call is None:
        return
    check_repeats([tool.parameters for tool in tools if tool.strict], "tools")
    for tool in tools:
        if not turn.call.spells(tool.name):
            raise VLLMValidationError(
                f"tool name {tool.name[:64]!r} cannot be encoded in tool calls; rename the tool", parameter="tools"
            )
        properties = (tool.parameters or {}).get("properties")
        for name in properties if tool.strict and isinstance(properties, Mapping) else ():
            if not turn.call.parameter.spells(name):
                raise VLLMValidationError(
                    f"parameter name {name[:64]!r} cannot be encoded in tool calls; rename it or drop 'strict'",
                    parameter="tools",
                )
        if tool.strict and (reason := _unenforced(turn.call, turn.reserved, tool)) is not None:
            raise VLLMValidationError(
                f"{reason} of the parameters of strict tool {tool.name[:64]!r} is not enforced; leave it out or drop "
                "'strict'",
                parameter="tools",
            )


def _unenforced(call: CallSyntax, reserved: tuple[str, ...], tool: Tool) -> str | None:
    """What no grammar holds of a strict tool's schema; None if all is held."""
    if (keyword := unheld(tool.parameters)) is not None:
        return keyword
    try:
        arguments(tool.parameters, call, reserved, strict=True)
    except NotGrammar as error:
        return f"this ({error})"
    return None


def _lead(
    turn: TurnFormat,
    state: PromptState,
    request: Any,
    serving: Serving,
    kwargs: Mapping[str, Any] | None,
    choice: Choice,
) -> tuple[Thinking, bool] | None:
    """(thinking, whether the engine must be told to start the grammar at the first token: behind an open answer it
    knows from the prompt), None for no grammar."""
    optional: Thinking = "optional_empty" if (kwargs or {}).get("enable_thinking") is False else "optional"
    if state in ("fresh", "cut"):
        return ("required" if turn.always_thinks and optional == "optional" else optional), True
    if state == "open_answer":
        return "none", False
    if state == "open_thinking" and (not serving.reasoning_parser or not getattr(request, "include_reasoning", True)):
        # Nothing would tell the engine when thinking ends, so the grammar holds its rest too.
        return ("continued", True) if choice.forced else None
    return None if state == "inside" else (optional, False)


def _combines(request: Any, turn: TurnFormat, needed: bool) -> bool:
    """Whether the request's other parameters go with a grammar; 400 where one is needed."""
    for name, clash in (
        ("use_beam_search", getattr(request, "use_beam_search", False)),
        ("min_tokens", (getattr(request, "min_tokens", 0) or 0) > 0),
        # Together with the grammar these may leave no token at all, which ends the request in an error.
        ("allowed_token_ids", bool(getattr(request, "allowed_token_ids", None))),
        ("bad_words", _forbids_a_marker(request, turn)),
    ):
        if clash and needed:
            raise VLLMValidationError(
                f"{name} cannot be combined with a forced tool choice, a structured output or a thinking budget",
                parameter=name,
            )
        if clash:
            logger.warning_once("No turn grammar for a request with %s.", name)
            return False
    return True


def _forbids_a_marker(request: Any, turn: TurnFormat) -> bool:
    regions = [region for region in (turn.thinking, turn.answer, *turn.preambles) if region is not None]
    markers = [marker for openers, closers in regions for marker in (*openers, *closers)]
    words = (word.strip() for word in getattr(request, "bad_words", None) or () if isinstance(word, str))
    return any(word and any(word in marker for marker in markers) for word in words)


def _apply(request: Any, text: str, *, from_start: bool) -> Any:
    params = StructuredOutputsParams(structural_tag=text)
    request._grammar_from_parser = from_start
    if hasattr(request, "response_format"):
        request.structured_outputs = params
        request.response_format = None
        # 0.26's name of the flag that starts the grammar at the first token.
        request._grammar_from_tool_parser = from_start
    else:
        request._parser_structured_outputs = params
    return request
