# SPDX-License-Identifier: Apache-2.0
"""Response templates whose regular expressions explode: an output or a name that makes one do so costs a bounded time
once, and the turn goes on without that delimiter."""

from __future__ import annotations

import copy
import importlib

import pytest
import regex
from parser_turns import recorded
from vllm.parser.chat_format.delimiters import ResponseTemplateError
from vllm.parser.chat_format.pattern_cost import may_explode
from vllm.parser.chat_format.tags import TagPattern
from vllm.parser.chat_format.template import load_served_template, load_template
from vllm.parser.chat_format.turn import TemplateTurn, parse_turn
from vllm.parser.chat_format.turn_piece import TurnMode
from vllm.parser.turn_grammar.prompt_state import prompt_state
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.parser.turn_grammar.wire_format import ParameterSyntax

T1 = recorded("beam_parse")["templates"]["T1"]
EXPLODES = "(a+)+b"
LETTERS = "a" * 340
READERS = ["chat_format.delimiters", "chat_format.tags", "chat_format.template", "turn_grammar.prompt_state"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    for name in [*READERS, "turn_grammar.wire_format"]:
        monkeypatch.setattr(importlib.import_module(f"vllm.parser.{name}"), "SEARCH_SECONDS", 0.01)


def spec(**fields):
    made = copy.deepcopy(T1)
    made["fields"]["thinking"] |= fields
    for name in fields:
        made["fields"]["thinking"].pop(name.removesuffix("_pattern"))
    return made


def test_the_expression_explodes():
    """Control."""
    with pytest.raises(TimeoutError):
        regex.compile(EXPLODES).search(LETTERS, timeout=0.01)


def streamed(template, size):
    """The reasoning of a turn that is fed in pieces."""
    turn = TemplateTurn(template, "", {}, TurnMode())
    text = "<|channel|>analysis<|message|>" + LETTERS
    pieces = [turn.feed(text[at : at + size]) for at in range(0, len(text), size)] + [turn.finish()]
    return "".join(part for piece in pieces for part in piece.reasoning)


@pytest.mark.parametrize("size", [1, 7, 340])
def test_an_exploding_closer_is_given_up_once(size, caplog):
    template = load_served_template(spec(close_pattern=EXPLODES))
    assert streamed(template, size) == LETTERS
    assert len([text for text in caplog.messages if "takes too long" in text]) == 1


def test_an_exploding_opener_leaves_the_others():
    made = copy.deepcopy(T1)
    made["fields"]["tool_calls"]["open_pattern"] = f"(?P<name>{EXPLODES})"
    found = parse_turn(load_served_template(made), LETTERS + "<|channel|>final<|message|>x", "", {})
    assert "".join(found.content) == "x"


@pytest.mark.parametrize(
    "pattern",
    [
        "<(?P<key>(?:x|(?:a|aa)+b))>(?P<value>.*?)</>",
        "<(?P<key>x)>(?P<value>.*?)(?:a|aa)+b</>",
        "<(?P<key>x)>(?P<value>(?:a|aa)+b)</>",
    ],
)
def test_an_exploding_tag_pattern_is_malformed_content(pattern):
    with pytest.raises(ValueError, match="takes too long"):
        list(TagPattern.of(pattern).pairs(f"<x>{LETTERS}</><{LETTERS}>b></>"))


@pytest.mark.parametrize(
    ("pattern", "explodes"),
    [
        (EXPLODES, True),
        ("a*a*b", True),
        ("(?:a|b*)+c", True),
        ("(?=a+)a+b", True),
        ("(", True),
        ("a{1,1000}b{1,1000}", True),
        ("to=(?P<name>[^ <]+)<x>", False),
        ("(?:a|aa)+b", True),
        ("(?:a{1,3}){1,4}b+", True),
        ("(?:a{1,3})?b+", False),
        ("a|b", False),
    ],
)
def test_only_what_may_explode_is_timed(pattern, explodes):
    assert may_explode(pattern) is explodes


@pytest.mark.parametrize("name", ["T1", "T2", "T3"])
def test_the_delimiters_of_known_templates_are_not_timed(name):
    """Timing costs more than the search."""
    template = load_served_template(recorded("beam_parse")["templates"][name])
    found = [delimiter for field in template.fields.values() for delimiter in (field.open, field.close) if delimiter]
    tags = TagPattern.of(template.tool_calls.tag_pattern)
    assert not any(delimiter.timed for delimiter in [*found, tags.head, tags.tail])


def test_an_exploding_anchor_is_no_anchor():
    made = copy.deepcopy(T1)
    made.pop("start_anchor")
    made["start_anchor_pattern"] = EXPLODES
    template = load_template(made)
    assert not template.has_anchor(LETTERS)
    assert template.after_last_anchor(LETTERS) == LETTERS
    assert prompt_state(turn_format(made), LETTERS) == "no_anchor"


def test_an_exploding_name_cannot_be_spelled():
    syntax = ParameterSyntax(begin="<", middle=">", ends=("</>",), key=EXPLODES)
    assert syntax.spells("aab")
    assert not syntax.spells(LETTERS)


def test_a_template_that_nests_too_deeply_is_refused_by_its_place():
    transform: object = "{content}"
    for _ in range(3000):
        transform = [transform]
    made = copy.deepcopy(T1)
    made["fields"]["tool_calls"]["transform"] = transform
    with pytest.raises(ResponseTemplateError, match=r"response_template\.fields: nest too deeply"):
        load_template(made)
