# SPDX-License-Identifier: Apache-2.0
"""Where in a turn a rendered prompt stops."""

from __future__ import annotations

from typing import Literal

import regex
from vllm.parser.chat_format.delimiters import SEARCH_SECONDS
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.wire_format import TurnFormat

PromptState = Literal["fresh", "cut", "open_thinking", "open_answer", "inside", "no_anchor"]


def prompt_state(turn: TurnFormat, prompt: str) -> PromptState:
    """State after the last start anchor of `prompt`.

    Returns:
        fresh: the anchor ends the prompt. cut: the first characters of an opener follow.
        open_thinking, open_answer: the region's opener follows and its closer does not.
        inside: anything else follows (an open call). no_anchor: the prompt holds none.
    """
    rest = written_after_anchor(turn, prompt)
    if rest is None:
        return "no_anchor"
    if not rest:
        return "fresh"
    for region, state in ((turn.thinking, "open_thinking"), (turn.answer, "open_answer")):
        if region is None:
            continue
        openers, closers = region
        for opener in openers:
            body = rest.removeprefix(opener)
            if body != rest and not any(closer in body for closer in closers):
                return state  # type: ignore[return-value]
    try:
        turn.first_message(rest)
    except NotGrammar:
        return "inside"
    return "cut"


def written_after_anchor(turn: TurnFormat, prompt: str) -> str | None:
    """What `prompt` already holds of the message behind its last start anchor; None without an anchor."""
    end = None
    try:
        for match in regex.finditer(turn.anchors, prompt, timeout=SEARCH_SECONDS):
            end = match.end()
    except TimeoutError:
        return None
    return None if end is None else prompt[end:]
