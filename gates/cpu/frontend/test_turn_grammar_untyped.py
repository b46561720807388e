# SPDX-License-Identifier: Apache-2.0
"""Properties without a type, schemas that cannot be held to, and prompts that end inside a turn."""

import pytest
import xgrammar as xgr
from turn_harness import ByteMatcher, constrained, recorded, tag_of
from vllm.parser.turn_grammar.muse_format import MUSE
from vllm.parser.turn_grammar.template_format import turn_format

GOLDEN = recorded("turn_grammar_beam")
TURN = turn_format(GOLDEN["templates"]["T1"])
START = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
THINKING = "<|channel|>analysis<|message|>"
CLOSER = "<|end|><|start|>assistant"
HEADER = " to=t<|channel|>analysis <|constrain|>xml<|message|>"


def request(prompt=START, parameters=None, kwargs=None, turn=TURN, **fields):
    tools = None
    if parameters is not None:
        tools = [{"type": "function", "function": {"name": "t", "parameters": parameters}}]
    setting = {
        "request": fields,
        "prompt_text": prompt,
        "chat_template_kwargs": kwargs,
        "env": None,
        "reasoning_parser": "beam",
        "tool_parser": "beam",
        "enable_auto_tools": True,
    }
    return constrained(setting, turn, tools)


def accepts(parameters):
    matcher = ByteMatcher(tag_of(request(parameters=parameters, tool_choice="required")))
    return lambda arguments: matcher.read(f"{THINKING}r{CLOSER}{HEADER}{arguments}<|call|>")[1]


def parameter(key, value):
    return f'<rfl:parameter name="{key}">\n{value}\n</rfl:parameter>'


def one(schema):
    return {"type": "object", "properties": {"v": schema}, "required": ["v"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["a", "b"]},
        {"anyOf": [{"const": "a"}, {"enum": ["b"]}]},
        {"oneOf": [{"type": "string", "enum": ["a"]}, {"type": "string", "const": "b"}]},
    ],
)
def test_strings_of_enumerations_in_any_form_are_held_to(schema):
    reads = accepts(one(schema))
    assert reads(parameter("v", "a"))
    assert reads(parameter("v", "b"))
    assert not reads(parameter("v", "c"))
    assert not reads("")


@pytest.mark.parametrize("schema", [{}, {"description": "anything"}])
def test_an_untyped_property_takes_any_text_and_keeps_its_name(schema):
    reads = accepts(one(schema))
    assert reads(parameter("v", '{"any": "text"}'))
    assert not reads("")
    assert not reads(parameter("w", "x"))


@pytest.mark.parametrize("schema", [{"enum": [1, "a"]}, {"enum": ["1", "a"]}, {"$ref": "#/x"}, {"minimum": 1}])
def test_what_text_cannot_say_leaves_the_arguments_free(schema):
    """Control: a number's text would not come back as a number, nor "1" of Muse as a string."""
    reads = accepts(one(schema))
    assert reads(parameter("w", "x"))


OPEN = {"type": "object", "properties": {"v": {"type": "string"}}, "additionalProperties": True}


def test_free_arguments_have_a_grammar_in_both_formats():
    """An open schema is common; Muse's grammar for it was refused by xgrammar, and the request with it."""
    assert accepts(OPEN)(parameter("w", "x"))
    matcher = ByteMatcher(tag_of(request(parameters=OPEN, turn=MUSE, tool_choice="required")))
    call = (
        ' to=t<|message|><atem:function_calls>\n<atem:invoke name="t">\n'
        '<atem:parameter name="w">x</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
    )
    assert matcher.read(call)[1]
    assert not matcher.read(call.replace(" to=t<", " to=u<"))[0]


@pytest.mark.parametrize("turn", [TURN, MUSE], ids=["beam", "muse"])
@pytest.mark.parametrize(
    "parameters",
    [{**one({"type": "string"}), "required": wrong} for wrong in (5, True, "v", {"v": 1})]
    + [one({key: wrong}) for key in ("type", "anyOf", "oneOf", "enum") for wrong in (5, True, "abc", {"a": 1})]
    + [
        one({"type": "string", key: wrong})
        for key in ("enum", "minLength", "maxLength")
        for wrong in (5.5, True, 10**15)
    ]
    + [one({"$ref": "#/x"}), one({"type": "object", "patternProperties": {"(": {}}})],
    ids=str,
)
def test_a_malformed_schema_leaves_the_arguments_free(parameters, turn):
    """It was an internal error, or a grammar that xgrammar refused."""
    xgr.Grammar.from_structural_tag(tag_of(request(parameters=parameters, turn=turn, tool_choice="required")))


def test_an_empty_schema_takes_no_arguments():
    reads = accepts({})
    assert reads("")
    assert not reads(parameter("v", "x"))


def test_only_a_fresh_message_starts_the_grammar_by_itself():
    """Behind an open answer the engine sees from the prompt that reasoning is over."""
    answer = request(START + "<|channel|>final<|message|>half")
    assert tag_of(answer) is not None
    assert answer._grammar_from_parser is False
    assert request()._grammar_from_parser is True


@pytest.mark.parametrize("prompt", [START, START + THINKING, "no anchor"])
def test_thinking_turned_off_may_be_empty_whatever_the_prompt(prompt):
    empty = f"{THINKING}{CLOSER}<|channel|>final<|message|>hi"
    off = tag_of(request(prompt, kwargs={"enable_thinking": False}))
    assert ByteMatcher(off).read(empty)[1]
    assert not ByteMatcher(tag_of(request(prompt))).read(empty)[0]
