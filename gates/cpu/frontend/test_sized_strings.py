# SPDX-License-Identifier: Apache-2.0
"""Strings of bounded length in a JSON answer: every escape of JSON, and no text outside the bounds."""

from __future__ import annotations

import json
import random

import pytest
import xgrammar as xgr
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.parser.turn_grammar import sized_strings
from vllm.parser.turn_grammar.formats import structural_tag
from vllm.parser.turn_grammar.sized_strings import sized_json

VOCABULARY = [bytes([byte]) for byte in range(256)] + [b"<end>"]
COMPILER = xgr.GrammarCompiler(xgr.TokenizerInfo(VOCABULARY, stop_token_ids=[256]))
ESCAPES = ['\\"', "\\\\", "\\/", "\\n", "\\t", "\\u00e9", "\\ud83d\\ude00", "\\uD7FF"]


def compiled(schema):
    return COMPILER.compile_structural_tag(json.dumps(structural_tag(sized_json(schema))))


def takes(grammar, text):
    matcher = xgr.GrammarMatcher(grammar)
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(256)


def bounded(low, high):
    return {"type": "string", **({"minLength": low} if low else {}), **({} if high is None else {"maxLength": high})}


@pytest.mark.parametrize(("low", "high"), [(1, None), (3, None), (0, 5), (2, 5), (4, 4), (0, 0), (0, 40), (16, 56)])
def test_each_character_may_be_an_escape(low, high):
    grammar, draw = compiled(bounded(low, high)), random.Random(low)
    for size in {0, 1, 2, 3, 4, 5, 6, low, low - 1, high or 70, (high or 70) + 1} - {-1}:
        for share in (0.0, 0.3, 1.0):
            written = [draw.choice(ESCAPES) if draw.random() < share else draw.choice("aé😀 ") for _ in range(size)]
            text = '"' + "".join(written) + '"'
            assert len(json.loads(text)) == size
            assert takes(grammar, text) == (low <= size and (high is None or size <= high)), text


@pytest.mark.parametrize("odd", ["\x01", "\n", "\t", '"', "\\x", "\\", "\\u12"])
@pytest.mark.parametrize("bounds", [(1, None), (0, 25), (0, 100), (20, 200)])
def test_what_is_no_json_is_refused(odd, bounds):
    assert not takes(compiled(bounded(*bounds)), f'"{"a" * 20}{odd}"')


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ud83d\\u0061"])
def test_half_a_pair_is_no_character(half):
    assert not takes(compiled(bounded(0, 25)), f'"a{half}"')


@pytest.mark.parametrize(("low", "high"), [(0, 41), (0, 100), (5, 256), (40, 300), (40, None), (0, 9000)])
def test_a_long_text_is_within_its_bounds_and_may_hold_escapes(low, high):
    grammar, draw = compiled(bounded(low, high)), random.Random(high)
    top = high or 2000
    for size in (low, top, top // 2):
        assert takes(grammar, json.dumps("é" * size, ensure_ascii=False))
    assert not takes(grammar, json.dumps("a" * (low - 1))) or not low
    assert high is None or not takes(grammar, json.dumps("a" * (high + 1)))
    plain = "a" * max(low - sized_strings.LEAD, 0)
    assert takes(grammar, f'"{plain}{"".join(ESCAPES[:1] * min(low, sized_strings.LEAD))}b\\n"')
    room = min(top - low, 900)
    middle = "a" * low + "b" * (room // 2)
    assert takes(grammar, f'"{middle}\\n{"c" * (room // 8)}"')
    taken = 0
    for _ in range(60):
        size = draw.randrange(top + 40)
        written = [draw.choice(ESCAPES) if draw.random() < 0.05 else "a" for _ in range(size)]
        if takes(grammar, text := '"' + "".join(written) + '"'):
            taken += 1
            assert low <= len(json.loads(text)) <= top or high is None
    assert taken > 3


DEFINED = {"$defs": {"S": {"type": "string", "maxLength": 5}}}
SCHEMAS = [
    {"type": ["string", "null"], "maxLength": 5},
    {"type": "string", "format": "password", "minLength": 3},
    {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "integer"}]},
    {"$ref": "#/$defs/S"},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_wherever_it_stands(schema):
    grammar = compiled({**DEFINED, "type": "object", "properties": {"a": schema}, "required": ["a"]})
    assert takes(grammar, r'{"a": "a\"\n"}')
    assert not takes(grammar, '{"a": "a\x01b"}')
    grammar = compiled({"type": "array", "items": {**SCHEMAS[0], "minLength": 2}})
    assert takes(grammar, r'["a\n", null, "abc"]')
    assert not takes(grammar, '["a"]')


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]) | st.sampled_from("éüßx0aF\\"), max_size=8))
@settings(max_examples=300, deadline=None)
def test_the_texts_of_the_schema_are_read_back_as_they_are(text):
    schema = {"type": "object", "properties": {text: {"type": "string", "maxLength": 3}, "e": {"enum": [text]}}}
    grammar = str(xgr.Grammar.from_json_schema(json.dumps({**schema, "required": ["e"]})))
    again = xgr.Grammar.from_ebnf(sized_strings.with_escapes(grammar))
    kept = [line for line in str(again).splitlines() if not line.startswith("sized_") and "sized_" not in line]
    assert [line for line in kept if "_characters" not in line] == [
        line for line in grammar.splitlines() if "_characters" not in line
    ]


@pytest.mark.parametrize("name", ["année", "größe", "straße", "\u00e9\u00e9a0", "日本a", "\u2028f"])
def test_names_and_values_in_any_script(name):
    sized = {"type": "string", "maxLength": 9}
    schema = {"type": "object", "properties": {name: sized, "e": {"enum": [name]}}, "required": [name, "e"]}
    assert takes(compiled(schema), json.dumps({name: "x", "e": name}, ensure_ascii=False))


def test_names_of_properties():
    schema = {"type": "object", "propertyNames": {"minLength": 2}, "additionalProperties": {"type": "integer"}}
    grammar = compiled(schema)
    assert takes(grammar, '{"ab": 1}')
    assert not takes(grammar, '{"a": 1}')
    assert not takes(grammar, '{"a\x01": 1}')


@pytest.mark.parametrize("high", [10**5, 10**9])
def test_an_endless_bound_is_taken(high):
    assert takes(compiled(bounded(1, high)), r'"a\nb"')


def test_many_bounds_take_a_bounded_number_of_rules():
    schema = {"type": "object", "properties": {f"p{n}": bounded(n % 9, 10 + n) for n in range(300)}}
    text = sized_json(schema)["grammar"]
    singles = [line for line in text.splitlines() if line.startswith("sized_") and "| sized_escape sized" in line]
    assert len(singles) <= sized_strings.MAX_RULES
    grammar = COMPILER.compile_grammar(xgr.Grammar.from_ebnf(text))
    assert takes(grammar, '{"p0": "a\\n"}')
    assert takes(grammar, json.dumps({"p299": "a" * 309}))
    assert not takes(grammar, json.dumps({"p299": "a" * 310}))
