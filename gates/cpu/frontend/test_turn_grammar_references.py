# SPDX-License-Identifier: Apache-2.0
"""References in a tool's schema: to the whole of it, to a place in it, and strict tools behind them."""

from __future__ import annotations

import json

import pytest
from parser_turns import full, join, stream
from turn_harness import ByteMatcher, recorded, request_of, tag_of
from vllm.exceptions import VLLMValidationError
from vllm.parser.turn_grammar.muse_format import MUSE
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format

BEAM = turn_format(recorded("turn_grammar_beam")["templates"]["T1"])
ASKED = {
    "beam": "<|start|>user<|message|>Hi<|end|><|start|>assistant",
    "muse": "<|start|>user<|message|>Hi<|eot|><|start|>assistant",
}
INTEGER = {"type": "integer"}
BOTH = pytest.mark.parametrize("name", ASKED)


def call(name, arguments):
    if name == "beam":
        written = (f'<rfl:parameter name="{key}">\n{value}\n</rfl:parameter>' for key, value in arguments.items())
        return (
            "<|channel|>analysis<|message|>r<|end|><|start|>assistant to=f"
            "<|channel|>analysis <|constrain|>xml<|message|>" + "\n".join(written) + "<|call|>"
        )
    written = (f'<atem:parameter name="{key}">{value}</atem:parameter>\n' for key, value in arguments.items())
    return (
        ' to=self<|message|>r<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
        + "".join(written)
        + "</atem:invoke>\n</atem:function_calls><|eot|>"
    )


def tools(name, parameters, strict):
    """A function that tells whether a call with these arguments may be written."""
    function = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}
    request = request_of({"tool_choice": "required"}, [function])
    turn = BEAM if name == "beam" else MUSE
    matcher = ByteMatcher(tag_of(constrain_request(request, turn, prompt=ASKED[name], serving=Serving())))
    return lambda **arguments: matcher.read(call(name, arguments))[1]


def parsed(name, listed, text):
    """The arguments that the parser reads of the call, whole and streamed."""
    options = {"request": {"tools": listed}, "reasoning_parser": name, "tool_parser": name, "enable_auto_tools": True}
    data = recorded(f"{name}_parse")
    case = {"options": options, "prompt": ASKED[name], "text": text, "template": "T1"}
    streamed = join(stream(data, case, list(text)))["tool_calls"]
    (one,) = full(data, case)["tool_calls"]
    assert streamed == [one]
    return json.loads(one["arguments"])


def schema(defs=None, required=None, **properties):
    made = {"type": "object", "properties": properties, "required": list(required or ()), "additionalProperties": False}
    return made if defs is None else {**made, "$defs": defs}


@BOTH
@pytest.mark.parametrize("strict", [False, True])
def test_the_whole_schema_inside_a_property(name, strict):
    takes = tools(name, schema(id=INTEGER, children={"type": "array", "items": {"$ref": "#"}}), strict)
    assert takes(id=1, children='[{"id": 2, "children": [{"id": 3}]}, {}]')
    assert not takes(children="[[]]")
    assert not takes(children='[{"id": "x"}]')
    assert not takes(children='[{"id": 2, "children": [{"other": 3}]}]')


@BOTH
def test_a_place_in_the_schema_is_not_one_in_the_property(name):
    inner = {"type": "object", "properties": {"a": {"type": "string"}, "l": {"type": "array"}}}
    inner["properties"]["l"] = {"type": "array", "items": {"$ref": "#/properties/a"}}
    takes = tools(name, schema(a=INTEGER, o=inner), False)
    assert takes(o='{"l": [1]}')
    assert not takes(o='{"l": ["s"]}')


@BOTH
def test_definitions_inside_a_property(name):
    inner = {"type": "object", "properties": {"l": {"$ref": "#/properties/o/$defs/X"}}, "$defs": {"X": INTEGER}}
    takes = tools(name, schema(o=inner), False)
    assert takes(o='{"l": 1}')
    assert not takes(o='{"l": "s"}')


@BOTH
def test_the_whole_schema_inside_a_definition(name):
    node = {"type": "object", "properties": {"root": {"$ref": "#"}}, "additionalProperties": False}
    takes = tools(
        name, schema({"N": node, "root": INTEGER}, t={"type": "array", "items": {"$ref": "#/$defs/N"}}), False
    )
    assert takes(t='[{"root": {"t": []}}]')
    assert not takes(t='[{"root": []}]')


@BOTH
def test_data_that_looks_like_a_reference_is_data(name):
    takes = tools(name, schema(o={"type": "object", "properties": {"$ref": {"type": "string"}}}), False)
    assert takes(o='{"$ref": "#"}')


@BOTH
def test_what_cannot_end_is_not_forced(name):
    """Each of its kind must hold one more: the arguments are free, a strict tool is refused."""
    node = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "required": ["n"]}
    endless = schema({"N": node}, tree={"type": "array", "items": {"$ref": "#/$defs/N"}, "minItems": 1})
    assert tools(name, endless, False)(tree="x")
    with pytest.raises(VLLMValidationError, match="no finite JSON"):
        tools(name, endless, True)


POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}


@BOTH
@pytest.mark.parametrize(
    "given",
    [
        {"$ref": "#/$defs/P"},
        {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]},
        {"allOf": [{"$ref": "#/$defs/P"}], "description": "d"},
    ],
    ids=["reference", "optional", "all of one"],
)
def test_a_strict_tool_is_held_behind_references(name, given):
    """As the OpenAI client writes them of Pydantic models."""
    takes = tools(name, schema({"P": POINT}, ["p"], p=given), True)
    assert takes(p='{"x": 1.5}')
    assert not takes(p="text")
    assert not takes(p='{"x": "s"}')
    assert not takes(zz="1", p='{"x": 1}')
    assert not takes()
    assert tools(name, schema({"P": POINT}, ["p"], p=given), False)(p="text")


@BOTH
def test_a_strict_enumeration_behind_a_reference(name):
    takes = tools(name, schema({"E": {"type": "string", "enum": ["a", "b"]}}, ["e"], e={"$ref": "#/$defs/E"}), True)
    assert takes(e="a")
    assert not takes(e="c")


@BOTH
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (schema(p={}, q={"minimum": 1}), "'minimum' without a type at properties.q"),
        ({**schema(p=INTEGER), "additionalProperties": True}, "additionalProperties is not false"),
        ({**schema(p=INTEGER), "minProperties": 1}, "minProperties"),
        (schema(p={"$ref": "#/$defs/none"}), "property 'p' declares no type"),
    ],
)
def test_what_a_strict_tool_is_not_held_to_is_refused(name, given, reason):
    with pytest.raises(VLLMValidationError, match=f"(?s){reason}.*strict tool 'f' is not enforced") as caught:
        tools(name, given, True)
    assert caught.value.parameter == "tools"
    assert tools(name, given, False) is not None


FIXED = {
    "literal or none": ({"enum": ["x", None]}, {"x": "x", "null": None}, ["y", "1"]),
    "numbers": ({"enum": [1, 2]}, {"1": 1, "2": 2}, ["3", "x"]),
    "constant": ({"const": 3}, {"3": 3}, ["4"]),
    "mixed": ({"enum": ["a", "b", 3]}, {"a": "a", "3": 3}, ["c", "4"]),
    "text that reads as JSON": ({"enum": ["3.10", "true", "on"]}, {"3.10": "3.10", "true": "true"}, ["3.1", "False"]),
    "in a union": ({"anyOf": [{"const": 1}, {"type": "null"}]}, {"1": 1, "null": None}, ["2"]),
}


@BOTH
@pytest.mark.parametrize("case", FIXED)
def test_fixed_values_of_a_strict_tool_have_their_own_type(name, case):
    given, values, others = FIXED[case]
    parameters = schema(required=["p"], p=given)
    takes = tools(name, parameters, True)
    assert [takes(p=text) for text in values] == [True] * len(values)
    assert [takes(p=text) for text in others] == [False] * len(others)
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    for text, value in values.items():
        assert parsed(name, [tool], call(name, {"p": text})) == {"p": value}


@BOTH
def test_a_strict_list_of_its_own_kind(name):
    """As Zod writes a schema that refers to itself."""
    rest = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    takes = tools(name, schema(required=["v", "next"], v={"type": "string"}, next=rest), True)
    assert takes(v="a", next='{"v": "b", "next": {"v": "c", "next": null}}')
    assert takes(v="a", next="null")
    assert not takes(v="a", next='{"v": "b"}')
    takes = tools(name, schema(required=["v"], v={"type": "string"}, next={"$ref": "#"}), True)
    assert takes(v="a", next='{"v": "b", "next": {"v": "c"}}')
    assert not takes(v="a", next="x")


@BOTH
@pytest.mark.parametrize("given", [{"type": "object"}, {"type": "object", "additionalProperties": False}, {}, None])
def test_a_strict_tool_without_parameters(name, given):
    takes = tools(name, given, True)
    assert takes()
    assert not takes(p="1")


@BOTH
def test_a_length_inside_of_an_argument_is_left_and_the_rest_held(name):
    """As Pydantic's `list[constr(max_length=3)]`: no grammar holds a length and the call's own delimiters."""
    short = {"type": "string", "minLength": 1, "maxLength": 3}
    takes = tools(name, schema(required=["p"], p={"type": "array", "items": short}), True)
    assert takes(p='["abcd"]')
    assert not takes(p="[1]")


@BOTH
def test_a_strict_tool_whose_schema_is_a_reference(name):
    """As Pydantic writes a model that holds its own kind; notes of a vendor hold nothing."""
    node = schema(required=["v"], v=INTEGER, rest={"type": "array", "items": {"$ref": "#/$defs/N"}})
    whole = {"$ref": "#/$defs/N", "$defs": {"N": node}, "x-order": ["v"]}
    takes = tools(name, whole, True)
    assert takes(v="1", rest='[{"v": 2, "rest": []}]')
    assert not takes(v="1", rest='[{"v": "x"}]')
    assert not takes(rest="[]")
    tool = {"type": "function", "function": {"name": "f", "parameters": whole, "strict": True}}
    assert parsed(name, [tool], call(name, {"v": 1, "rest": "[]"})) == {"v": 1, "rest": []}
