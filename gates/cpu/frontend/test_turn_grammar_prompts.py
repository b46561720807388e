# SPDX-License-Identifier: Apache-2.0
"""Prompts that end inside an opener, and first messages that continue the prompt's start anchor."""

from __future__ import annotations

import itertools

import pytest
from parser_texts import joined, read
from turn_harness import ByteMatcher, recorded, request_of, tag_of
from vllm.exceptions import VLLMValidationError
from vllm.parser.chat_format.turn_piece import TurnMode
from vllm.parser.turn_grammar.muse_format import MUSE
from vllm.parser.turn_grammar.prompt_state import prompt_state
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.parser.turn_grammar.tries import first_text

BEAM = recorded("turn_grammar_beam")
FORMATS = {name: turn_format(template) for name, template in BEAM["templates"].items()} | {"muse": MUSE}
HEADER = "<|channel|>analysis <|constrain|>xml<|message|>"
WEATHER = {"city": {"type": "string"}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"properties": WEATHER}}}]
BODY = {
    "T1": '<rfl:parameter name="city">\nParis\n</rfl:parameter><|call|>',
    "T2": '<rfl:parameter name="city">Paris</rfl:parameter><|call|>',
}
TURNS = {
    "T1": [
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=get_weather{HEADER}{BODY['T1']}",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
    ],
    "muse": [
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>",
        " to=user<|message|>Yes.<|eot|>",
        " to=get_weather.get_weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="get_weather.get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eot|>",
    ],
}


def grammar(name, written, kwargs=None, serving=None, **fields):
    """The grammar of a turn whose prompt ends with `written` behind the start anchor; None without one."""
    request = request_of(fields, TOOLS)
    constrain_request(
        request,
        FORMATS[name],
        prompt=f"<|start|>user<|message|>Hi<|start|>assistant{written}",
        serving=serving or Serving(),
        chat_template_kwargs=kwargs,
    )
    tag = tag_of(request)
    assert request._grammar_from_parser is (tag is not None)
    return None if tag is None else ByteMatcher(tag)


@pytest.mark.parametrize(("name", "turn"), [(name, turn) for name, turns in TURNS.items() for turn in turns])
def test_an_opener_cut_by_the_prompt_is_completed(name, turn):
    """Wherever the prompt cuts the turn's first opener, the grammar holds the rest of the turn and nothing else."""
    first = turn.index("<|message|>") + len("<|message|>")
    if "get_weather" in turn[:first]:
        first = turn.index("get_weather") + 1
    for end in range(first):
        held = grammar(name, turn[:end])
        assert held is not None, turn[:end]
        assert held.read(turn[end:])[:2] == (True, True), turn[:end]
        assert not held.read("<|mess")[0] or turn[end:].startswith("<|mess"), turn[:end]
        if end:
            assert not held.read(turn)[0], "the opener is not written twice"


@pytest.mark.parametrize("written", ["junk", " to=get_weather<", "<|channel|>commentary", "<|message|>"])
def test_what_begins_no_opener_is_left_alone(written):
    assert prompt_state(FORMATS["T1"], f"<|start|>assistant{written}") == "inside"
    assert grammar("T1", written) is None
    with pytest.raises(VLLMValidationError, match="already opened an answer or a call"):
        grammar("T1", written, tool_choice="required")


def test_forced_call_behind_a_cut_opener():
    turn = TURNS["T1"][0]
    for end in (3, 12):
        assert grammar("T1", turn[:end], tool_choice="required").read(turn[end:])[:2] == (True, True)
    with pytest.raises(VLLMValidationError, match="has no grammar"):
        grammar("T1", "<|channel|>fin", tool_choice="required")


@pytest.mark.parametrize("thinking", [True, False])
def test_a_call_continues_the_anchor_only_where_no_thinking_leads(thinking):
    """T2's header may repeat the anchor with a space behind it: behind a prompt that ends with the anchor the space
    alone remains, and the parser finds the call."""
    held = grammar("T2", "", {"enable_thinking": thinking})
    call = f" to=get_weather{HEADER}{BODY['T2']}"
    assert held.read(call)[0] is (not thinking)
    assert held.read("<|channel|>analysis<|message|>r<|end|>" + call)[0] is False
    assert held.read("<|channel|>analysis<|message|>r<|end|>" + call[1:])[:2] == (True, True)
    for text in (call, call[1:]):
        assert joined(read("T2", list(text), TurnMode()))[2] == [("get_weather", '{"city": "Paris"}')]


@pytest.mark.parametrize(
    ("serving", "fields", "says"),
    [
        (Serving(tool_parser=False), {}, "--enable-auto-tool-choice and --tool-call-parser beam"),
        (Serving(), {"tools": None}, "no function tools"),
    ],
)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls_that_cannot_be_say_what_to_do(serving, fields, says, choice):
    request = request_of({}, TOOLS)
    request.tool_choice, request.tools = choice, fields.get("tools", request.tools)
    with pytest.raises(VLLMValidationError, match=says if choice == "required" or "tools" not in fields else "names"):
        constrain_request(request, FORMATS["T1"], prompt="<|start|>assistant", serving=serving)


def test_tag_text_does_not_follow_the_order_of_a_set():
    """Two processes build it, and compare it as text."""
    words = ("<|ab", "<|cd", "<|ef", "<|gh", "<|ij")
    for listed in itertools.permutations(words):
        text = first_text(listed)
        at = [text.index(rf"<\|{word[2]}[") for word in listed]
        assert at == sorted(at)
