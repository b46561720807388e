# SPDX-License-Identifier: Apache-2.0
"""Batches of chat completions under a unified parser.

vLLM makes each conversation's request twice, once to render it and once for its sampling parameters, and reads all
outputs with one parser. What the parser put on the first copy (the turn's grammar, markers kept in the text) must be
on the second, and each output follows its own prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.parser.unified import UnifiedParser, adjusts_always


def note_rendered(batch: Any, single: Any) -> None:
    """Keep the request of one conversation as its rendering left it, in order, with the batch."""
    batch._rendered_requests = [*getattr(batch, "_rendered_requests", ()), single]


def rendered_requests(parser_cls: type | None, batch: Any, singles: list[Any]) -> list[Any]:
    """The requests that rendering adjusted; `singles` for parsers that adjust none."""
    return batch._rendered_requests if adjusts_always(parser_cls) else singles


def generation_start(parser: Any, single: Any, engine_input: Mapping[str, Any]) -> dict[str, Any]:
    """`reasoning_ended` and `reasoning_parser_kwargs` of one conversation, as for a single chat completion."""
    if not isinstance(parser, UnifiedParser) or parser.reasoning_parser is None:
        return {"reasoning_ended": None}
    from_start = not single.include_reasoning or single._grammar_from_tool_parser
    return {
        "reasoning_ended": from_start or parser.is_reasoning_end(engine_input.get("prompt_token_ids") or []),
        "reasoning_parser_kwargs": {"chat_template_kwargs": parser.chat_template_kwargs},
    }


def follow_prompt(parser: Any, prompt_token_ids: Sequence[int]) -> None:
    """Have `parser` read the next output behind that prompt."""
    if isinstance(parser, UnifiedParser):
        parser.set_prompt_token_ids(prompt_token_ids)
