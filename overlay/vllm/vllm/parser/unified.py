# SPDX-License-Identifier: Apache-2.0
"""Parsers that read a whole turn (reasoning, answer, calls) in one pass, and how vLLM comes to use them.

`--reasoning-parser` and `--tool-call-parser` still name classes of two registries; for these formats the registered
classes are selectors that stand for one `UnifiedParser`. The functions at the end are what the hooks in vLLM call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from openai.types.responses import ToolChoiceFunction
from vllm.entrypoints.chat_utils import make_tool_call_id
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionNamedToolChoiceParam
from vllm.entrypoints.openai.engine.protocol import DeltaMessage, DeltaToolCall, FunctionCall
from vllm.logger import init_logger
from vllm.parser import deltas
from vllm.parser.abstract_parser import Parser
from vllm.parser.chat_format.steady import SteadyTurn
from vllm.parser.chat_format.turn import tool_properties
from vllm.parser.chat_format.turn_piece import ARGUMENTS, REASONING, CallPiece, TurnMode
from vllm.parser.delta_metrics import record_deltas
from vllm.parser.metrics import record_tool_parser_invocation
from vllm.parser.turn_grammar.prompt_state import written_after_anchor
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.wire_format import turn_format_named
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser
from vllm.tool_parsers.utils import iter_response_function_tool_dicts
from vllm.v1.engine.answer_stops import AnswerStops

logger = init_logger(__name__)


class UnifiedReasoningParser(ReasoningParser):
    """Says where reasoning ends. The text itself is split by the unified parser that the class stands for."""

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        raise NotImplementedError("the unified parser splits the text")

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        raise NotImplementedError("the unified parser splits the text")

    def extract_reasoning_streaming(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("the unified parser splits the text")


class UnifiedParser(Parser):
    """Base of the parsers that read a turn in one pass. A subclass says how to read one (`new_turn`) and how to find
    the start of the turn in a prompt (`prompt_text`)."""

    # The name under which the format is registered, which also names its grammar.
    format_name: ClassVar[str]
    # Set by `unified_parser_for` from the command line.
    enable_auto_tools: ClassVar[bool] = False
    parser_names: ClassVar[tuple[str | None, str | None]] = (None, None)

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None, *args: Any, **kwargs: Any):
        super().__init__(tokenizer, tools, *args, **kwargs)
        self.chat_template_kwargs: Mapping[str, Any] = kwargs.get("chat_template_kwargs") or {}
        self._properties = tool_properties(declared_tools(tools))
        self._prompt_ids: Sequence[int] | None = None
        self._prompt = ""
        self._turn: SteadyTurn | None = None

    def new_turn(self, prompt: str, properties: Mapping[str, Mapping[str, Any]], mode: TurnMode) -> SteadyTurn:
        """A reader for output that follows `prompt` (its text, or a tail of it that holds the start of the turn)."""
        raise NotImplementedError

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        """The text of a prompt, at least from the start of its last assistant message on."""
        raise NotImplementedError

    @classmethod
    def check_tokenizer(cls, tokenizer: Any, reasoning: bool, tools: bool) -> None:
        """Raise ValueError if `tokenizer` lacks what parsing reasoning or tool calls needs."""
        raise NotImplementedError

    def constrain_request(self, request: Any) -> Any:
        """Put the grammar of the turn on `request`. Raises VLLMValidationError for what the format cannot guarantee."""
        turn = turn_format_named(self.format_name, self.model_tokenizer)
        if turn is None:
            return request
        serving = Serving(
            reasoning_parser=self._reasoning_parser is not None,
            tool_parser=self._tool_parser is not None,
            auto_tools=self.enable_auto_tools,
        )
        return constrain_request(
            request, turn, prompt=self._prompt, serving=serving, chat_template_kwargs=self.chat_template_kwargs
        )

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        """The prompt that the output follows. Without it the output is read as the start of a message."""
        if self._prompt_ids is not None and list(prompt_token_ids) == list(self._prompt_ids):
            return
        self._prompt_ids = prompt_token_ids
        self._prompt = self.prompt_text(prompt_token_ids)
        self._turn = None
        if self._reasoning_parser is not None:
            self._reasoning_parser.prompt = self._prompt

    def _use_prompt_of(self, request: Any) -> None:
        rendered = getattr(request, "_rendered_prompt_token_ids", None)
        if self._prompt_ids is None and rendered is not None:
            self.set_prompt_token_ids(rendered)

    def adjust_request(self, request: Any) -> Any:
        if getattr(request, "chat_template", None) is not None:
            logger.warning_once(
                "A request brings its own chat template; its output is still parsed in the model's format."
            )
        request.skip_special_tokens = False
        if hasattr(request, "spaces_between_special_tokens"):
            request.spaces_between_special_tokens = False
        self._use_prompt_of(request)
        self._keep_stops_to_the_answer(request)
        return self.constrain_request(request)

    def _keep_stops_to_the_answer(self, request: Any) -> None:
        """Thinking, calls and markers are not the text that a client's stop strings are meant for."""
        stops = getattr(request, "stop", None)
        turn = turn_format_named(self.format_name, self.model_tokenizer) if stops and self._reasoning_parser else None
        if turn is None:
            return
        written = written_after_anchor(turn, self._prompt)
        if written is not None and (regions := turn.answers()):
            request.stop = AnswerStops([stops] if isinstance(stops, str) else stops, regions, written)

    def is_reasoning_end(self, input_ids: list[int]) -> bool:
        return self._reasoning_parser is None or self._reasoning_parser.is_reasoning_end(input_ids)

    def is_reasoning_end_streaming(self, input_ids: list[int], delta_ids: list[int]) -> bool:
        return self._reasoning_parser is None or self._reasoning_parser.is_reasoning_end_streaming(input_ids, delta_ids)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Output tokens whose text is reasoning."""
        return 0 if self._reasoning_parser is None else self._reasoning_parser.count_reasoning_tokens(token_ids)

    def mode(self, request: Any, enable_auto_tools: bool, fragments: bool) -> TurnMode:
        return TurnMode(
            reasoning=self._reasoning_parser is not None,
            tools=self._tool_parser is not None and parses_tools(request, enable_auto_tools),
            fragments=fragments,
        )

    def parse(
        self,
        model_output: str,
        request: Any,
        enable_auto_tools: bool = False,
        model_output_token_ids: Sequence[int] = (),
    ) -> tuple[str | None, str | None, list[FunctionCall] | None]:
        self._initialize_history_tool_call_cnt(request)
        self._use_prompt_of(request)
        mode = self.mode(request, enable_auto_tools, fragments=False)
        turn = self.new_turn(self._prompt, self._properties, mode)
        pieces = [turn.feed(model_output), turn.finish()]
        calls = [
            FunctionCall(id=self._new_call_id(call.name or ""), name=call.name or "", arguments=call.arguments)
            for piece in pieces
            for call in piece.calls
        ]
        if mode.tools:
            record_tool_parser_invocation(is_tool_called=bool(calls), is_streaming=False, request=request)
        reasoning = "".join(part for piece in pieces for part in piece.reasoning)
        content = "".join(part for piece in pieces for part in piece.content)
        return reasoning or None, content or None, calls or None

    def parse_delta(
        self,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: list[int] | None = None,
        *,
        finished: bool,
    ) -> DeltaMessage | None:
        turn = self._turn or self._begin_turn(request, prompt_token_ids)
        if not finished and (text := turn.plain(delta_text)) is not None:
            if text and turn.part is ARGUMENTS:
                self._call_deltas += 1
                return deltas.fragment(turn.index, text)
            self._other_deltas += 1
            if not text:
                return deltas.nothing() if self._scored else None
            if turn.part is REASONING:
                return deltas.reasoning(text) if self._include_reasoning else None
            return deltas.content(text)
        piece = turn.read(delta_text)
        if finished:
            if closer := self.unwritten_closer(delta_text, delta_token_ids):
                piece.extend(turn.read(closer))
            piece.extend(turn.finish(cut=not closer and self.was_cut(delta_text, delta_token_ids)))
        calls = [self._delta_call(call) for call in piece.calls]
        self._call_deltas += bool(calls)
        self._other_deltas += not calls
        # Counting each delta as it comes would cost more than parsing it.
        if finished and self._mode.tools:
            record_deltas(request, calls=self._call_deltas, others=self._other_deltas)
        reasoning = "".join(piece.reasoning) if self._include_reasoning else ""
        message = deltas.message(reasoning, "".join(piece.content), calls)
        return deltas.nothing() if message is None and self._scored else message

    def _begin_turn(self, request: Any, prompt_token_ids: list[int] | None) -> SteadyTurn:
        self._initialize_history_tool_call_cnt(request)
        if prompt_token_ids is not None:
            self.set_prompt_token_ids(prompt_token_ids)
        else:
            self._use_prompt_of(request)
        self._mode = self.mode(request, self.enable_auto_tools, fragments=True)
        self._include_reasoning = request.include_reasoning
        # A chunk carries the log-probabilities of its tokens, so there is one for tokens without text, too.
        self._scored = self._include_reasoning and bool(getattr(request, "logprobs", None))
        self._call_deltas = self._other_deltas = 0
        self._turn = self.new_turn(self._prompt, self._properties, self._mode)
        return self._turn

    def unwritten_closer(self, delta_text: str, delta_token_ids: Sequence[int]) -> str:
        """The text of a closing token that ended generation: the engine keeps the token but not its text. "" if
        none."""
        return ""

    def was_cut(self, delta_text: str, delta_token_ids: Sequence[int]) -> bool:
        """Whether the last token, if it is known, is text: then a limit or a stop string ended the output, and no token
        that the model wrote to end it."""
        if not delta_token_ids or delta_token_ids[-1] == getattr(self.model_tokenizer, "eos_token_id", None):
            return False
        last = delta_token_ids[-1:]
        return bool(self.model_tokenizer.decode(last, skip_special_tokens=True)) or delta_text.endswith(
            self.model_tokenizer.decode(last)
        )

    def _delta_call(self, call: CallPiece) -> DeltaToolCall:
        if call.name is None:
            return deltas.call_fragment(call.index, call.arguments)
        return deltas.call_start(call.index, self._new_call_id(call.name), call.name, call.arguments)

    def _new_call_id(self, name: str) -> str:
        state = self._stream_state
        call_id = make_tool_call_id(id_type=state.tool_call_id_type, func_name=name, idx=state.history_tool_call_cnt)
        state.history_tool_call_cnt += 1
        return call_id


def declared_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]]:
    """Name, parameters and strictness of a request's function tools, in either API's form; namespaces of the Responses
    API are flattened, other kinds of tools left out."""
    found = []
    for tool in tools or ():
        if getattr(tool, "type", None) == "namespace":
            found += iter_response_function_tool_dicts([tool])
            continue
        function = _field(tool, "function") or tool
        if _field(tool, "type") in (None, "function") and isinstance(_field(function, "name"), str):
            found.append({key: _field(function, key) for key in ("name", "parameters", "strict")})
    return found


def _field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def parses_tools(request: Any, enable_auto_tools: bool) -> bool:
    """Whether calls in the output of `request` are calls to the client; otherwise they are content."""
    choice = getattr(request, "tool_choice", None)
    if choice == "none" or not getattr(request, "tools", None):
        return False
    if choice == "required" or isinstance(choice, (ToolChoiceFunction, ChatCompletionNamedToolChoiceParam)):
        return True
    return enable_auto_tools


# What the hooks in vLLM call.


def unified_parser_for(
    reasoning_cls: type | None, tool_cls: type | None, names: tuple[str | None, str | None], enable_auto_tools: bool
) -> type[UnifiedParser] | None:
    """The one parser class that the selected registry classes stand for; None if they are ordinary parsers.

    names: the values of --reasoning-parser and --tool-call-parser. Raises TypeError if two different formats are
    selected.
    """
    selected = {getattr(cls, "unified_parser", lambda: None)() for cls in (reasoning_cls, tool_cls) if cls is not None}
    unified = selected - {None}
    if not unified:
        return None
    if len(selected) > 1:
        raise TypeError(
            f"--reasoning-parser {names[0]} and --tool-call-parser {names[1]} cannot be combined: "
            "name the same parser for both, or leave one out"
        )
    parser_cls = unified.pop()
    settings = {
        "reasoning_parser_cls": reasoning_cls,
        "tool_parser_cls": tool_cls,
        "enable_auto_tools": enable_auto_tools,
        "parser_names": (names[0] if reasoning_cls else None, names[1] if tool_cls else None),
    }
    return type(parser_cls.__name__, (parser_cls,), settings)


def check_tokenizer(parser_cls: type | None, tokenizer: Any, model: str) -> None:
    """Fail at start, not at the first request, if the tokenizer lacks what the parsers need. Raises TypeError naming
    the flags, the model and what is missing."""
    if parser_cls is None or tokenizer is None or not issubclass(parser_cls, UnifiedParser):
        return
    reasoning, tool = parser_cls.parser_names
    flags = [f"--reasoning-parser {reasoning}"] if reasoning else []
    flags += [f"--tool-call-parser {tool}"] if tool else []
    try:
        parser_cls.check_tokenizer(tokenizer, reasoning=bool(reasoning), tools=bool(tool))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{' and '.join(flags)} cannot be used with the tokenizer of {model!r}: {error}") from error


def adjusts_always(parser_cls: type | None) -> bool:
    """Whether `adjust_request` must run for every request, also without tools."""
    return parser_cls is not None and issubclass(parser_cls, UnifiedParser)


def note_rendered_prompt(request: Any, engine_input: Mapping[str, Any]) -> None:
    """Keep the rendered prompt with the request: parsers read what it already wrote of the turn."""
    if (ids := engine_input.get("prompt_token_ids")) is not None:
        request._rendered_prompt_token_ids = ids


def name_reasoning_twice(parser_cls: type | None, message: Any) -> None:
    """Clients look for reasoning under one name or the other: `reasoning`, vLLM's, and the older `reasoning_content`
    hold the same text."""
    if adjusts_always(parser_cls) and message.reasoning is not None:
        message.reasoning_content = message.reasoning


def cut_reason(parser_cls: type | None, output: Any, request: Any) -> str | None:
    """The finish reason of a choice that something cut: "length", or "stop" for the client's own stop string or token.

    The last call may be unfinished then, and no client should run it. None where the turn ended by itself.

    Args:
        output: the engine's last output of the choice (`finish_reason`, `stop_reason`).
        request: the request, of either API.
    """
    if not adjusts_always(parser_cls):
        return None
    if output.finish_reason == "length":
        return "length"
    stopped, stop_ids = output.stop_reason, getattr(request, "stop_token_ids", None) or ()
    if isinstance(stopped, str) or (isinstance(stopped, int) and stopped in stop_ids):
        return "stop"
    return None
