# SPDX-License-Identifier: Apache-2.0
"""Where in a turn a rendered prompt stops."""

from __future__ import annotations

import re
from typing import Literal

from vllm.parser.turn_grammar.wire_format import TurnFormat

PromptState = Literal["fresh", "open_thinking", "open_answer", "inside", "no_anchor"]


def prompt_state(turn: TurnFormat, prompt: str) -> PromptState:
    """State after the last start anchor of `prompt`.

    Returns:
        fresh: the anchor ends the prompt. open_thinking, open_answer: the region's opener
        follows and its closer does not. inside: anything else follows (an open call, a marker
        cut in two). no_anchor: the prompt holds none.
    """
    end = -1
    for match in re.finditer(turn.anchors, prompt):
        end = match.end()
    if end < 0:
        return "no_anchor"
    rest = prompt[end:]
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
    return "inside"
