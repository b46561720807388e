# SPDX-License-Identifier: Apache-2.0
"""Muse Spark: messages to recipients, calls as invoke tags. `--reasoning-parser muse --tool-call-parser muse`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import regex
from vllm.parser.chat_format.muse_turn import (
    ANSWER,
    ENDS,
    FRAMING,
    MARKERS,
    REASONING,
    TOOL,
    MuseTurn,
    kind_of,
    open_message,
)
from vllm.parser.chat_format.prompt_text import decode, tail_with
from vllm.parser.chat_format.turn_piece import TurnMode
from vllm.parser.unified import UnifiedParser, UnifiedReasoningParser
from vllm.tool_parsers.abstract_tool_parser import ToolParser

_HEADER = regex.compile(r"(?:to=(?P<recipient>[^\s<]+))?<\|message\|>")
_RECIPIENT = regex.compile(r"to=(?P<recipient>[^\s<]+)\s*$")
# Tokens decoded to read one header; real ones have about ten.
_HEADER_TOKENS = 64
_WHOLE = TurnMode()


def _prompt_tail(tokenizer: Any, token_ids: Sequence[int]) -> str:
    return tail_with(tokenizer, token_ids, lambda text: "<|start|>" in text)


class MuseReasoningParser(UnifiedReasoningParser):
    """Says where reasoning ends: at the first message to the user or to a tool."""

    @classmethod
    def unified_parser(cls) -> type[UnifiedParser]:
        return MuseParser

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any):
        super().__init__(tokenizer, *args, **kwargs)
        self.prompt = ""

    @property
    def reasoning_start_str(self) -> str:
        return " to=self<|message|>"

    @property
    def reasoning_end_str(self) -> str:
        return "<|eom|>"

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {marker: self.vocab[marker] for marker in MARKERS if marker in self.vocab}

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether the message that a prompt leaves open is past reasoning."""
        turn = open_message(_prompt_tail(self.model_tokenizer, input_ids))
        return any(kind_of(match["recipient"]) in (ANSWER, TOOL) for match in _HEADER.finditer(turn))

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        new = list(delta_ids)
        message = self._ids.get("<|message|>")
        if message is None:
            window = decode(self.model_tokenizer, input_ids[-(len(new) + _HEADER_TOKENS) :])
            return any(kind_of(match["recipient"]) in (ANSWER, TOOL) for match in _HEADER.finditer(window))
        first = len(input_ids) - len(new)
        for offset, token in enumerate(new):
            if token == message:
                end = first + offset
                header = decode(self.model_tokenizer, input_ids[max(0, end - _HEADER_TOKENS) : end])
                recipient = _RECIPIENT.search(header)
                if kind_of(recipient["recipient"] if recipient else None) in (ANSWER, TOOL):
                    return True
        return False

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Output tokens in the bodies of reasoning messages; markers and the headers after them do not count."""
        if not self._ids.keys() >= set(FRAMING):
            return 0
        message = self._ids["<|message|>"]
        boundaries = set(self._ids.values()) - {message}
        reasoning = MuseTurn(self.prompt, {}, _WHOLE).kind is REASONING
        count, header = 0, 0
        for index, token in enumerate(token_ids):
            if token == message:
                text = decode(self.model_tokenizer, token_ids[max(header, index - _HEADER_TOKENS) : index])
                recipient = _RECIPIENT.search(text)
                reasoning = kind_of(recipient["recipient"] if recipient else None) is REASONING
            elif token in boundaries:
                reasoning = False
            else:
                count += reasoning
                continue
            header = index + 1
        return count


class MuseToolParser(ToolParser):
    """Selects the unified parser by `--tool-call-parser`."""

    @classmethod
    def unified_parser(cls) -> type[UnifiedParser]:
        return MuseParser


class MuseParser(UnifiedParser):
    reasoning_parser_cls = MuseReasoningParser
    tool_parser_cls = MuseToolParser
    format_name = "muse"

    @classmethod
    def check_tokenizer(cls, tokenizer: Any, reasoning: bool, tools: bool) -> None:
        """Raises ValueError if one of the format's markers is not a token of the vocabulary."""
        vocab = tokenizer.get_vocab()
        if missing := [marker for marker in FRAMING if marker not in vocab]:
            raise ValueError(f"its vocabulary lacks {missing}; this is not a Muse Spark tokenizer")

    def new_turn(self, prompt: str, properties: Mapping[str, Mapping[str, Any]], mode: TurnMode) -> MuseTurn:
        return MuseTurn(prompt, properties, mode)

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        return _prompt_tail(self.model_tokenizer, token_ids)

    def unwritten_closer(self, delta_text: str, delta_token_ids: Sequence[int]) -> str:
        if not delta_token_ids or self._turn is None or self._turn.kind is not TOOL:
            return ""
        for closer in ENDS:
            if self.vocab.get(closer) == delta_token_ids[-1] and not delta_text.endswith(closer):
                return closer
        return ""
