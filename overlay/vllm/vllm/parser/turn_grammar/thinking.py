# SPDX-License-Identifier: Apache-2.0
"""The thinking part of a turn grammar."""

from __future__ import annotations

from typing import Literal

from vllm.parser.turn_grammar import formats as f
from vllm.parser.turn_grammar.tries import first_text
from vllm.parser.turn_grammar.wire_format import TurnFormat

Thinking = Literal["required", "optional", "optional_empty", "continued", "none"]


def thinking(turn: TurnFormat, mode: Thinking, *, budget: int | None = None) -> f.Format:
    """`opener text closer`, or `text closer` if the prompt opened the block (`continued`).

    Args:
        mode: with `optional_empty` and `continued` the text may be empty.
        budget: upper bound of the text in model tokens, after which the closer is forced.
            The bound is loose by the few tokens of a non-empty text's first characters.
    """
    assert turn.thinking is not None
    openers, closers = turn.thinking
    if mode == "continued":
        openers = ("",)
    may_be_empty = mode in ("optional_empty", "continued")
    blocks: list[f.Format] = []
    for opener in openers:
        if turn.reserved:
            body = _body(turn.reserved, turn.reserved, may_be_empty, budget)
            blocks.append(f.seq(f.const(opener), body, f.any_of(closers)))
        else:
            body = _body(closers, (), may_be_empty, budget)
            blocks.append(f.tag(opener, body, closers))
    return f.alt(*blocks)


def _body(delimiters: tuple[str, ...], excludes: tuple[str, ...], may_be_empty: bool, budget: int | None) -> f.Format:
    if may_be_empty:
        return f.text(excludes, max_tokens=budget)
    rest = None if budget is None else max(budget - 1, 0)
    return f.seq(f.regex(first_text(delimiters)), f.text(excludes, max_tokens=rest))
