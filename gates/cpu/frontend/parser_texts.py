# SPDX-License-Identifier: Apache-2.0
"""Texts for parser tests: turns in both formats, made by hypothesis, and readers that need no server."""

from __future__ import annotations

import itertools
import json

from hypothesis import strategies as st
from parser_turns import recorded
from vllm.parser.chat_format.muse_turn import MuseTurn
from vllm.parser.chat_format.template import load_served_template
from vllm.parser.chat_format.turn import TemplateTurn, tool_properties
from vllm.parser.chat_format.turn_piece import TurnMode, TurnPiece

_BEAM, _MUSE = recorded("beam_parse"), recorded("muse_parse")
TOOLS = _BEAM["tools"]
PROPERTIES = tool_properties(TOOLS)
TEMPLATES = {name: load_served_template(spec) for name, spec in _BEAM["templates"].items()}
FORMATS = ("T1", "T2", "T3", "muse")
PROMPTS = {**dict.fromkeys(("T1", "T2", "T3"), "<|start|>assistant"), "muse": "<|start|>assistant"}

# What output is made of, and what it may be cut into or confused with.
_CALL = "<|channel|>analysis <|constrain|>xml<|message|>"
_BEAM_PIECES = [
    "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|><|start|>assistant", "<|return|>",
    "<|call|>", "<|end|>", "<|start|>", f" to=get_weather{_CALL}", f" to=search{_CALL}",
    '<rfl:parameter name="city">\n', "\n</rfl:parameter>", '<rfl:parameter name="days">\n',
    '<rfl:parameter name="filters">\n', '<rfl:parameter name="maybe">\n', "</rfl:parameter>",
    '<rfl:parameter name="', '">',
]  # fmt: skip
_MUSE_PIECES = [
    " to=self<|message|>", " to=user<|message|>", " to=get_weather<|message|>", "<|eom|><|start|>assistant",
    "<|eot|>", "<|eom|>", "<|start|>", "<|message|>", "<atem:function_calls>\n",
    '<atem:invoke name="get_weather.get_weather">\n', '<atem:invoke name="search">', '<atem:parameter name="city">',
    "</atem:parameter>\n", '<atem:parameter name="days">', '<atem:parameter name="filters">', "</atem:invoke>\n",
    "</atem:function_calls>", " to=", "to", "to=user<|message|>", "to=noop<|message|>", '<atem:parameter name="',
]  # fmt: skip
_WORDS = [
    "a", " ", "\n", "t", "3", "7.0", "true", "null", "Non", '{"a": [1, "x"]}', '{"a": NaN}', "<", "<|", "é", "🤔",
    '"', "\\", "\x07", "\ud800", "NaN", "-", "1e999", "1" * 400, "9" * 5000,
]  # fmt: skip


def outputs(name):
    """Model output in one format: pieces of the format, of their prefixes, and of values, in any order."""
    pieces = _MUSE_PIECES if name == "muse" else _BEAM_PIECES
    whole = st.sampled_from(pieces)
    cut = st.builds(lambda piece, end: piece[: 1 + end % len(piece)], whole, st.integers(0, 40))
    return st.lists(st.one_of(whole, whole, cut, st.sampled_from(_WORDS)), max_size=25).map("".join)


def cuts(text_strategy):
    """(text, the text cut into chunks anywhere)."""
    return text_strategy.flatmap(
        lambda text: st.lists(st.integers(0, len(text)), max_size=12).map(lambda at: (text, _split(text, sorted(at))))
    )


def _split(text, positions):
    edges = [0, *positions, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def reader(name, mode=TurnMode(), prompt=None):  # noqa: B008
    prompt = PROMPTS[name] if prompt is None else prompt
    if name == "muse":
        return MuseTurn(prompt, PROPERTIES, mode)
    return TemplateTurn(TEMPLATES[name], prompt, PROPERTIES, mode)


def read(name, chunks, mode=TurnMode(), prompt=None):  # noqa: B008
    """The pieces of each chunk and of the end."""
    turn = reader(name, mode, prompt)
    return [turn.feed(chunk) for chunk in chunks] + [turn.finish()]


def joined(pieces):
    """(reasoning, content, [(name, arguments)])."""
    whole = TurnPiece()
    calls: list[list[str]] = []
    for piece in pieces:
        whole.reasoning += piece.reasoning
        whole.content += piece.content
        for call in piece.calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append([call.name, ""])
            assert call.index == len(calls) - 1
            calls[-1][1] += call.arguments
    return "".join(whole.reasoning), "".join(whole.content), [tuple(call) for call in calls]


def is_json(text):
    def refuse(name):
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True
