# SPDX-License-Identifier: Apache-2.0
"""The Muse turn grammar by accept and reject strings, and derivations from unusual response templates."""

from __future__ import annotations

import copy
import json

import pytest
from turn_harness import ByteMatcher, recorded, request_of, tag_of
from vllm.exceptions import VLLMValidationError
from vllm.parser.chat_format.muse_turn import MuseTurn
from vllm.parser.chat_format.turn_piece import TurnMode
from vllm.parser.turn_grammar.formats import NotGrammar
from vllm.parser.turn_grammar.muse_format import MUSE
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.parser.turn_grammar.turn import TurnRules, turn_tag
from vllm.parser.turn_grammar.wire_format import turn_format_named

GOLDEN = recorded("turn_grammar_beam")
START = "<|start|>assistant"
THINK = f" to=self<|message|>why<|eom|>{START}"
SAY = f" to=user<|message|>One moment.<|eom|>{START}"


def call(name="get_weather.get_weather", inner='<atem:parameter name="city">Paris</atem:parameter>\n'):
    return (
        f' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n{inner}'
        "</atem:invoke>\n</atem:function_calls>"
    )


def matcher(fields, tools=GOLDEN["tools"]):
    request = constrain_request(
        request_of(fields, tools), MUSE, prompt=f"<|start|>user<|message|>Hi<|eot|>{START}", serving=Serving()
    )
    return ByteMatcher(tag_of(request))


NEXT = f"<|eom|>{START}"
ANSWER = " to=user<|message|>Hello <b> é<|eot|>"


@pytest.mark.parametrize(
    ("text", "auto", "required", "named", "none"),
    [
        (THINK + ANSWER, True, False, False, True),
        (ANSWER, True, False, False, True),
        (THINK + call() + "<|eot|>", True, True, True, False),
        (call("get_weather") + "<|eot|>", True, True, True, False),
        (THINK + SAY + call() + "<|eot|>", True, False, False, False),
        (THINK + call() + NEXT + call("noop", "") + "<|eot|>", True, True, False, False),
        (call("other.other") + "<|eot|>", False, False, False, False),
        (call(inner="") + "<|eot|>", False, False, False, False),
        (call(inner='<atem:parameter name="days">3</atem:parameter>\n') + "<|eot|>", False, False, False, False),
        (THINK + " to=user<|message|>a<|start|>b", False, False, False, False),
        ("Hello", False, False, False, False),
        (" to=self<|message|><|eom|>" + START, False, False, False, False),
    ],
)
def test_modes(text, auto, required, named, none):
    choices = {
        "auto": {},
        "required": {"tool_choice": "required"},
        "named": {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        "none": {"tool_choice": "none"},
    }
    expected = {"auto": auto, "required": required, "named": named, "none": none}
    for mode, fields in choices.items():
        assert matcher(fields).read(text)[1] == expected[mode], mode


def test_structured_answers_need_no_end_of_reasoning():
    """The constraint holds from the first token, with or without a thought."""
    held = matcher({"structured_outputs": {"choice": ["yes", "no"]}}, None)
    assert held.read(THINK + " to=user<|message|>yes<|eot|>")[1]
    assert held.read(" to=user<|message|>no")[1]
    assert not held.read(" to=user<|message|>maybe")[0]
    assert not held.read(SAY + " to=user<|message|>yes")[0]


def test_one_call_when_parallel_calls_are_off():
    one = matcher({"parallel_tool_calls": False})
    assert one.read(THINK + call() + "<|eot|>")[1]
    assert not one.read(THINK + call() + NEXT + call("noop", ""))[0]


def variant(**changes):
    template = copy.deepcopy(GOLDEN["templates"]["T1"])
    for path, value in changes.items():
        name, key = path.split("__")
        field = template["fields"][name]
        if key.endswith("_pattern"):
            field.pop(key.removesuffix("_pattern"), None)
        field[key] = value
    return template


def test_full_and_continued_thinking_openers():
    """One opener pattern with an anchor form and a full-message form."""
    turn = turn_format(variant(thinking__open_pattern=r"(?:^|<\|start\|>assistant)<\|channel\|>analysis<\|message\|>"))
    assert turn.thinking[0] == (
        "<|channel|>analysis<|message|>",
        "<|start|>assistant<|channel|>analysis<|message|>",
    )


def test_call_token_as_third_closer_of_the_answer():
    turn = turn_format(variant(content__close=["<|return|>", "<|end|>", "<|call|>"]))
    held = ByteMatcher(json.dumps(turn_tag(turn, TurnRules())))
    text = "<|channel|>analysis<|message|>r<|end|><|start|>assistant<|channel|>final<|message|>x<|call|>"
    assert held.read(text)[1]
    assert not held.read(text + "y")[0]


@pytest.mark.parametrize(
    "template",
    [
        variant(tool_calls__open_pattern=r" to=(?P<name>\w+)(?<=x)<\|message\|>"),
        variant(tool_calls__open_pattern=r" to=x<\|message\|>"),
        variant(thinking__open_pattern=r"<\|channel\|>.*<\|message\|>"),
        variant(tool_calls__content="json"),
    ],
)
def test_templates_without_a_grammar(template):
    """Such a template is served without a turn grammar; the parser's name alone decides nothing."""
    with pytest.raises(NotGrammar):
        turn_format(template)

    class Tokenizer:
        init_kwargs = {"response_template": template}  # noqa: RUF012

    assert turn_format_named("beam", Tokenizer()) is None


def test_forced_calls_need_a_call_region():
    template = copy.deepcopy(GOLDEN["templates"]["T1"])
    del template["fields"]["tool_calls"]
    with pytest.raises(VLLMValidationError, match="cannot guarantee"):
        constrain_request(
            request_of({"tool_choice": "required"}, GOLDEN["tools"]),
            turn_format(template),
            prompt=START,
            serving=Serving(),
        )


@pytest.mark.parametrize("name", ["self", "user", "commentary", "developer"])
def test_a_tool_named_like_a_recipient_is_called_by_its_doubled_name(name):
    """The single one is a thought or an answer to the parser, and was lost as a call."""
    tools = [{"type": "function", "function": {"name": name}}, {"type": "function", "function": {"name": "other"}}]
    held = matcher({"tool_choice": "required"}, tools)
    assert held.read(THINK + call(f"{name}.{name}", "") + "<|eot|>")[1]
    assert not held.read(THINK + call(name, "") + "<|eot|>")[0]
    assert held.read(THINK + call("other", "") + "<|eot|>")[1]
    found = MuseTurn("", {name: {}}, TurnMode(fragments=False))
    piece = found.feed(THINK + call(f"{name}.{name}", "") + "<|eot|>")
    assert [(made.name, made.arguments) for made in piece.calls] == [(name, "{}")]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("key", ["First Name", "a>b", "filter[name]", "a\nb", "日本 語", " ", "a&b", "a/b", "'", "x=1"])
def test_the_grammar_and_the_parser_take_the_same_parameter_names(key, strict):
    """What no grammar wrote was read: the model had to write another name."""
    declared = {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}
    text = THINK + call("f.f", f'<atem:parameter name="{key}">7</atem:parameter>\n') + "<|eot|>"
    entry = {"name": "f", "parameters": declared, "strict": strict}
    held = matcher({"tool_choice": "required"}, [{"type": "function", "function": entry}])
    assert held.read(text)[1]
    assert not held.read(text.replace(">7<", ">x<"))[0]
    free = {"name": "f", "parameters": {"type": "object", "additionalProperties": True}}
    assert matcher({"tool_choice": "required"}, [{"type": "function", "function": free}]).read(text)[1]
    for size in (len(text), 3):
        turn = MuseTurn("", {"f": declared["properties"]}, TurnMode(fragments=size == 3))
        pieces = [turn.feed(text[at : at + size]) for at in range(0, len(text), size)] + [turn.finish()]
        assert json.loads("".join(made.arguments for piece in pieces for made in piece.calls)) == {key: 7}


@pytest.mark.parametrize("end", ["<|end_of_text|>", "<|eot|>"])
@pytest.mark.parametrize("size", [1, 5, 200])
def test_the_end_of_text_is_no_content(end, size):
    """A client may ask for the stop token's text, and `ignore_eos` goes on behind it."""
    text = THINK + " to=user<|message|>Hello" + end
    turn = MuseTurn("", {}, TurnMode())
    pieces = [turn.feed(text[at : at + size]) for at in range(0, len(text), size)] + [turn.finish()]
    assert "".join(part for piece in pieces for part in piece.content) == "Hello"
    assert not matcher({}, None).read(THINK + " to=user<|message|>a<|end_of_text|>b")[0]
