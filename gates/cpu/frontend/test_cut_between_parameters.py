# SPDX-License-Identifier: Apache-2.0
"""A stream that the token limit cuts anywhere in a call sends a prefix of the call; one that a token ends is closed."""

from __future__ import annotations

import json

import pytest
from parser_texts import is_json
from parser_turns import build, join, recorded, request_for

BEAM, MUSE = recorded("beam_parse"), recorded("muse_parse")
CASES = {"beam": (BEAM, "T1", "<|call|>"), "muse": (MUSE, None, "<|eot|>")}
TEXTS = {
    "beam": "<|channel|>analysis<|message|>t<|end|><|start|>assistant to=get_weather<|channel|>analysis "
    '<|constrain|>xml<|message|><rfl:parameter name="city">\nParis\n</rfl:parameter>\n'
    '<rfl:parameter name="days">\n3\n</rfl:parameter>',
    "muse": " to=self<|message|>t<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
    '<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
    '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
}
WHOLE = {"city": "Paris", "days": 3}


def streamed(name, text, ending=None):
    """The calls of a stream whose last delta is `ending`'s token, without its text; or the last of `text`'s."""
    data, template, _ = CASES[name]
    options = {"reasoning_parser": name, "tool_parser": name, "enable_auto_tools": True, "request": {}}
    case = {"options": options, "prompt": "<|start|>user<|message|>Hi<|start|>assistant", "template": template}
    parser, request, prompt = build(data, case)
    tokens = parser.model_tokenizer.encode(text)
    parts = [(parser.model_tokenizer.decode([token]), [token]) for token in tokens]
    if ending is not None:
        parts.append(("", parser.model_tokenizer.encode(ending)))
    deltas = [
        parser.parse_delta(part, ids, request, prompt, finished=index == len(parts) - 1)
        for index, (part, ids) in enumerate(parts)
    ]
    assert request_for(case["options"], data["tools"]).tools
    return join(deltas)["tool_calls"]


@pytest.mark.parametrize("name", CASES)
def test_a_cut_call_is_a_prefix_and_never_a_smaller_call(name):
    """Complete JSON with a parameter missing would look like another call."""
    ((_, whole),) = [call.values() for call in streamed(name, TEXTS[name], CASES[name][2])]
    assert json.loads(whole) == WHOLE
    text = TEXTS[name]
    tag = text.index("get_weather")
    ends = [index for index in range(tag, len(text)) if text[index - 1] in '>"\n=s3m']
    assert len(ends) > 15
    for end in ends:
        for call in streamed(name, text[:end]):
            assert whole.startswith(call["arguments"])
            assert not is_json(call["arguments"]) or "</atem:invoke>" in text[:end]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("known", [True, False])
def test_a_call_that_a_token_ended_is_closed(name, known):
    """The closer, or any other token that the engine stops at and keeps the text of."""
    ending = CASES[name][2] if known else {"beam": "<|return|>", "muse": "<|start|>"}[name]
    first = TEXTS[name].index("</", TEXTS[name].index("Paris"))
    for text in (TEXTS[name], TEXTS[name][: TEXTS[name].index("\n", first) + 1]):
        (call,) = streamed(name, text, ending)
        assert set(json.loads(call["arguments"])) <= set(WHOLE)
