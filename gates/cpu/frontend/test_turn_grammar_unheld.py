# SPDX-License-Identifier: Apache-2.0
"""JSON Schema keywords that xgrammar passes over are refused by their place; those it holds are served."""

from __future__ import annotations

import contextlib
import json

import pytest
from jsonschema import Draft202012Validator
from turn_harness import ByteMatcher, recorded, request_of, tag_of
from vllm.exceptions import VLLMValidationError
from vllm.parser.turn_grammar import formats
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.parser.turn_grammar.unheld import unheld

TURN = turn_format(recorded("turn_grammar_beam")["templates"]["T1"])
PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
INTEGER = {"type": "integer"}


def record(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


AB = record(a=INTEGER, b=INTEGER)
OPTIONAL = {**AB, "required": ["a"]}
# Schema, keyword, an invalid text that xgrammar admits.
UNHELD = [
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, "uniqueItems", "[1, 1]"),
    ({"type": "array", "items": INTEGER, "contains": {"const": 5}}, "contains", "[1]"),
    ({"type": "integer", "not": {"const": 3}}, "not", "3"),
    ({"allOf": [record(a=INTEGER), record(b=INTEGER)]}, "allOf", '{"a": 1}'),
    ({**OPTIONAL, "anyOf": [{"required": ["b"]}]}, "anyOf", '{"a": 1}'),
    ({"type": "integer", "anyOf": [{"minimum": 5}]}, "anyOf", "3"),
    ({"anyOf": [INTEGER, {"type": "string"}], "minimum": 5}, "minimum", "3"),
    ({"minimum": 5}, "minimum", "3"),
    ({**OPTIONAL, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, "if", '{"a": 1}'),
    ({**OPTIONAL, "dependentRequired": {"a": ["b"]}}, "dependentRequired", '{"a": 1}'),
    ({**OPTIONAL, "dependentSchemas": {"a": {"required": ["b"]}}}, "dependentSchemas", '{"a": 1}'),
    ({"type": "string", "pattern": "^a+$", "maxLength": 2}, "a length beside", '"aaa"'),
    ({"type": "string", "pattern": "^(?!a)a$"}, "look-around", '"a"'),
    ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": INTEGER}}, "minimum", "3"),
    (
        {"type": "object", "propertyNames": {"pattern": "^a$"}, "properties": {"b": INTEGER}},
        "propertyNames",
        '{"b": 1}',
    ),
    ({**record(a=INTEGER), "required": ["z"]}, "required", '{"a": 1}'),
    ({"type": "object", "required": ["a"], "additionalProperties": INTEGER}, "required", "{}"),
    ({"enum": [1, 5], "minimum": 4}, "minimum", "1"),
    ({"type": "integer", "enum": ["a", 1]}, "type", '"a"'),
]
HELD = [
    record(a=INTEGER, b={"type": ["string", "null"], "maxLength": 5}),
    {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1, "$defs": {"a": AB}, "title": "t"},
    record(a={"anyOf": [INTEGER, {"type": "null"}], "default": None, "title": "A"}),
    record(a={"allOf": [{"$ref": "#/$defs/a"}], "description": "d"}) | {"$defs": {"a": AB}},
    record(a={"type": "string", "format": "date-time"}, b={"type": "string", "format": "password"}),
    record(a={"type": "integer", "multipleOf": 5, "minimum": 5}, b={"enum": ["x", 1]}, c={"const": "z"}),
    {
        "type": "object",
        "properties": {"not": INTEGER, "contains": INTEGER, "if": INTEGER},
        "additionalProperties": False,
    },
    {"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": False},
    record(a={"type": "array", "items": INTEGER, "uniqueItems": False}),
    {"oneOf": [record(k={"const": "a"}), record(k={"const": "b"})], "type": "object"},
    True,
    # As Pydantic and others write them.
    record(
        a={
            "discriminator": {"mapping": {"c": "#/$defs/C"}, "propertyName": "k"},
            "oneOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/D"}],
        }
    )
    | {"$defs": {"C": record(k={"const": "c"}), "D": record(k={"const": "d"}), "unused": {"uniqueItems": True}}},
    record(a={"anyOf": [INTEGER, {"type": "null"}], "x-order": 1, "example": 3, "markdownDescription": "m"}),
    record(a={"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}),
    record(a={"type": "string", "format": "password", "minLength": 3, "writeOnly": True}),
    record(a={"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": INTEGER}),
    record(a={"type": ["integer", "null"], "multipleOf": 5}),
    {"type": "object", "oneOf": [{"properties": {"k": {"const": "a"}}, "required": ["k"]}]},
    {**OPTIONAL, "if": {"minimum": 5}},
    record(a={"type": ["number", "null"], "enum": [1, 2.5, None], "minimum": 1}, b={"type": "string", "const": "x"}),
    record(a={"type": "string", "nullable": True, "enum": ["x", None]}),
    record(a={"type": "string", "pattern": '^[^"]+$'}, b={"type": "string", "pattern": "^ab$"}),
]


def asked(schema, strict=True, **fields):
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": strict}}
    request = request_of({"response_format": form, **fields}, None)
    return constrain_request(request, TURN, prompt=PROMPT, serving=Serving())


@pytest.mark.parametrize(("schema", "keyword", "text"), UNHELD)
def test_what_xgrammar_passes_over_is_refused(schema, keyword, text):
    assert list(Draft202012Validator(schema).iter_errors(json.loads(text)))
    grammar = json.dumps(formats.structural_tag(formats.json_value(schema, ["<|end|>"])))
    assert ByteMatcher(grammar).read(text)[1]  # the reason: xgrammar admits the invalid text
    with pytest.raises(VLLMValidationError, match=keyword) as caught:
        asked(record(outer=schema) if "$defs" not in schema else schema)
    assert caught.value.parameter == "response_format"
    assert "$defs" in schema or "properties.outer" in str(caught.value)


@pytest.mark.parametrize("pattern", ['^a"b$', "^a\\\\b$", "^a\nb$", "^a\\nb$"])
def test_a_pattern_that_would_be_written_as_it_stands_is_refused(pattern):
    schema = record(a={"type": "string", "pattern": pattern})
    with pytest.raises(VLLMValidationError, match="a character that JSON escapes in 'pattern'"):
        asked(schema)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("odd", [["date"], [[]], [{}], {}, {"a": 1}, 5, True, None, "x" * 10_000])
@pytest.mark.parametrize(
    "keyword", ["format", "type", "multipleOf", "$ref", "anyOf", "allOf", "required", "pattern", "maxLength", "if"]
)
def test_keywords_of_the_wrong_kind_are_served_or_refused(keyword, odd, strict):
    """They are the client's: no other exception, which would be a 500."""
    for lead in ({"type": "string"}, {"type": "object", "properties": {}}):
        schema = {**lead, keyword: odd}
        with contextlib.suppress(VLLMValidationError):
            asked(record(a=schema), strict)
        function = {"name": "f", "strict": strict, "parameters": {**record(a=schema), "required": odd}}
        request = request_of({"tool_choice": "required"}, [{"type": "function", "function": function}])
        with contextlib.suppress(VLLMValidationError):
            constrain_request(request, TURN, prompt=PROMPT, serving=Serving())


@pytest.mark.parametrize("strict", [False, None])
def test_what_is_not_strict_is_held_to_the_rest(strict):
    """Sets and patterns with lengths are everyday schemas; the answer is held to all else of them."""
    schema = record(a={"type": "array", "items": INTEGER, "uniqueItems": True})
    lead = "<|channel|>analysis<|message|>r<|end|><|start|>assistant<|channel|>final<|message|>"
    matcher = ByteMatcher(tag_of(asked(schema, strict)))
    assert matcher.read(lead + '{"a": [1, 1]}')[0]
    assert not matcher.read(lead + '{"a": ["x"]}')[0]
    with pytest.raises(VLLMValidationError, match="structured output"):
        constrain_request(
            request_of({"structured_outputs": {"json": schema}}, None), TURN, prompt=PROMPT, serving=Serving()
        )


@pytest.mark.parametrize(
    "schema", [{"$ref": "https://example.org/s"}, {"$ref": "#s"}, {"type": "number", "multipleOf": 0.5}]
)
def test_references_to_elsewhere_are_refused(schema):
    with pytest.raises(VLLMValidationError):
        asked(schema)


@pytest.mark.parametrize("schema", HELD)
def test_what_it_holds_is_served(schema):
    assert unheld(schema) is None
    if schema is not True:
        assert tag_of(asked(schema))


def test_tools_are_held_to_the_rest_unless_they_are_strict():
    parameters = record(a=UNHELD[0][0])
    function = {"name": "f", "parameters": parameters}

    def constrain(**fields):
        tools = [{"type": "function", "function": {**function, **fields}}]
        return constrain_request(request_of({"tool_choice": "required"}, tools), TURN, prompt=PROMPT, serving=Serving())

    with pytest.raises(VLLMValidationError, match="uniqueItems") as caught:
        constrain(strict=True)
    assert caught.value.parameter == "tools"
    call = (
        "<|channel|>analysis<|message|>r<|end|><|start|>assistant to=f<|channel|>analysis <|constrain|>xml<|message|>"
    )
    call += '<rfl:parameter name="a">\n%s\n</rfl:parameter><|call|>'
    matcher = ByteMatcher(tag_of(constrain()))
    assert matcher.read(call % "[1, 2]")[1]
    assert not matcher.read(call % '["x"]')[0]


@pytest.mark.parametrize("form", [{}, {"response_format": {"type": "text"}}])
def test_a_form_of_any_text_says_nothing_of_a_schema_beside_it(form):
    """Many clients send it by default; the schema of `structured_outputs` was held less strictly for it."""
    given = {"structured_outputs": {"json": {"type": "array", "items": INTEGER, "uniqueItems": True}}, **form}
    with pytest.raises(VLLMValidationError, match="uniqueItems") as caught:
        constrain_request(request_of(given, None), TURN, prompt=PROMPT, serving=Serving())
    assert caught.value.parameter == "structured_outputs"
