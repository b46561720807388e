# SPDX-License-Identifier: Apache-2.0
"""Parsing by the response template in the model repository's tokenizer configuration.

`--reasoning-parser response_template --tool-call-parser response_template` serves any model that ships a template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from vllm.parser.chat_format.prompt_text import decode, tail_with
from vllm.parser.chat_format.reasoning import ReasoningCounter, reasoning_ended
from vllm.parser.chat_format.template import TOOL_CALLS, ResponseTemplate, load_served_template
from vllm.parser.chat_format.turn import TemplateTurn
from vllm.parser.chat_format.turn_piece import TurnMode
from vllm.parser.unified import UnifiedParser, UnifiedReasoningParser
from vllm.tool_parsers.abstract_tool_parser import ToolParser


def template_of(tokenizer: Any) -> dict[str, Any] | None:
    """The template in the tokenizer's configuration; None if it has none. Newer transformers make it an attribute,
    older ones leave it among the constructor's arguments."""
    found = getattr(tokenizer, "response_template", None)
    if not isinstance(found, dict):
        found = (getattr(tokenizer, "init_kwargs", None) or {}).get("response_template")
    return found if isinstance(found, dict) else None


def served_template(tokenizer: Any, explicit: dict[str, Any] | None = None) -> ResponseTemplate:
    """The checked template of a tokenizer, or `explicit`. Compiled once. Raises ValueError if missing or invalid."""
    spec = explicit if explicit is not None else template_of(tokenizer)
    if spec is None:
        raise ValueError(
            "the tokenizer configuration has no 'response_template'; update the model repository's "
            "tokenizer_config.json, or choose another parser"
        )
    try:
        return _compiled(json.dumps(spec))
    except RecursionError as error:
        raise ValueError("the 'response_template' of the tokenizer configuration nests too deeply") from error


@lru_cache(maxsize=16)
def _compiled(text: str) -> ResponseTemplate:
    return load_served_template(json.loads(text))


def prompt_tail(template: ResponseTemplate, tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The prompt's text from before its last start anchor on; all of it if it has none."""
    return tail_with(tokenizer, token_ids, template.has_anchor)


class TemplateReasoningParser(UnifiedReasoningParser):
    """Says where reasoning ends, by the tokenizer's template."""

    @classmethod
    def unified_parser(cls) -> type[UnifiedParser]:
        return ResponseTemplateParser

    def __init__(self, tokenizer: Any, *args: Any, response_template: dict[str, Any] | None = None, **kwargs: Any):
        super().__init__(tokenizer, *args, **kwargs)
        self.template = served_template(tokenizer, response_template)
        self.prompt = ""
        chat_template_kwargs = kwargs.get("chat_template_kwargs") or {}
        self._thinking_disabled = not chat_template_kwargs.get("enable_thinking", True)
        self._counter: ReasoningCounter | None = None

    @property
    def reasoning_start_str(self) -> str | None:
        """The text that begins reasoning in a continued prompt and in a complete message alike; None if there is
        none."""
        thinking = self.template.thinking
        strings = thinking.open.strings() if thinking is not None and thinking.open is not None else None
        if not strings:
            return None
        shortest = min(strings, key=len)
        return shortest if all(string.endswith(shortest) for string in strings) else None

    @property
    def reasoning_end_str(self) -> str | None:
        closers = self._closers
        return closers[0] if closers else None

    @property
    def _closers(self) -> tuple[str, ...] | None:
        thinking = self.template.thinking
        if thinking is None or thinking.repeats or thinking.close is None:
            return None
        return thinking.close.strings()

    @cached_property
    def _closer_ids(self) -> list[list[int]] | None:
        """Token ids of each closer; None if they are not known."""
        ids = [
            [self.vocab[text]] if text in self.vocab else self.model_tokenizer.encode(text, add_special_tokens=False)
            for text in self._closers or ()
        ]
        return ids if ids and all(ids) else None

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        text = prompt_tail(self.template, self.model_tokenizer, input_ids)
        return reasoning_ended(self.template, text, self._thinking_disabled)

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        if self.template.thinking is not None and self.template.thinking.repeats:
            return False
        if self._closer_ids is None:
            return self.is_reasoning_end(input_ids)
        new = sum(1 for _ in delta_ids)
        return any(_ends_within(input_ids, ids, new) for ids in self._closer_ids)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        if self.template.thinking is None:
            return 0
        if self._counter is None or not self._counter.continues(token_ids):
            self._counter = ReasoningCounter(self.template, self.prompt)
        counter = self._counter
        new = token_ids[counter.tokens :]
        return counter.count(token_ids, (decode(self.model_tokenizer, [token_id]) for token_id in new))


def _ends_within(token_ids: Sequence[int], ending: list[int], new: int) -> bool:
    """Whether `ending` completes within the last `new` of `token_ids`."""
    window = list(token_ids[max(0, len(token_ids) - new - len(ending) + 1) :])
    return any(window[at : at + len(ending)] == ending for at in range(len(window) - len(ending) + 1))


class TemplateToolParser(ToolParser):
    """Selects the unified parser by `--tool-call-parser`."""

    @classmethod
    def unified_parser(cls) -> type[UnifiedParser]:
        return ResponseTemplateParser


class ResponseTemplateParser(UnifiedParser):
    """Reads turns by the response template of the tokenizer's configuration."""

    reasoning_parser_cls = TemplateReasoningParser
    tool_parser_cls = TemplateToolParser
    format_name = "response_template"

    def __init__(
        self,
        tokenizer: Any,
        tools: list[Any] | None = None,
        *args: Any,
        response_template: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.template = served_template(tokenizer, response_template)
        super().__init__(tokenizer, tools, *args, response_template=response_template, **kwargs)

    @classmethod
    def check_tokenizer(cls, tokenizer: Any, reasoning: bool, tools: bool) -> None:
        """Raises ValueError if the tokenizer's template is missing, invalid, or lacks a field that is to be parsed."""
        fields = served_template(tokenizer).fields
        if reasoning and "thinking" not in fields:
            raise ValueError("its response_template has no 'thinking' field, so there is no reasoning to parse")
        if tools and TOOL_CALLS not in fields:
            raise ValueError("its response_template has no 'tool_calls' field, so there are no calls to parse")

    def new_turn(self, prompt: str, properties: Mapping[str, Mapping[str, Any]], mode: TurnMode) -> TemplateTurn:
        return TemplateTurn(self.template, prompt, properties, mode)

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        return prompt_tail(self.template, self.model_tokenizer, token_ids)

    def unwritten_closer(self, delta_text: str, delta_token_ids: Sequence[int]) -> str:
        field = self._turn.open_field if self._turn is not None else None
        if field is None or field.name != TOOL_CALLS or field.close is None or not delta_token_ids:
            return ""
        last = delta_token_ids[-1]
        for closer in field.close.literals:
            if self.vocab.get(closer) == last and not delta_text.endswith(closer):
                return closer
        return ""
