# SPDX-License-Identifier: Apache-2.0
"""From a parameter's text to its JSON value, and how early the text is certain to stay text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.parser.chat_format import json_text
from vllm.parser.chat_format.conversion import JsonConversion, SchemaConversion, convert, schema_types
from vllm.parser.chat_format.turn import tool_properties


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, ("integer",)),
        ({"type": ["string", "null"]}, ("string", "null")),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ("integer", "null")),
        ({"type": "string", "oneOf": [{"type": "number"}], "nullable": True}, ("string", "number", "null")),
        ({"enum": ["a"]}, ()),
        (None, ()),
        ("x", ()),
        ({"type": 3, "anyOf": "x"}, ()),
    ],
)
def test_declared_types(schema, types):
    assert schema_types(schema) == types


PERIOD = {"type": "object", "properties": {"kind": {"type": "string"}}}
NESTED = {
    "type": "object",
    "$defs": {
        "P": PERIOD,
        "E": {"type": "string", "enum": ["1", "2"]},
        "via": {"$ref": "#/$defs/P"},
        "loop": {"$ref": "#/$defs/loop"},
        "a/b": {"type": "integer"},
        "wide": {"anyOf": [{"$ref": "#/$defs/wide"}] * 3},
    },
    "properties": {
        "period": {"$ref": "#/$defs/P", "description": "d"},
        "opt": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}], "default": None},
        "one": {"allOf": [{"$ref": "#/$defs/via"}]},
        "code": {"$ref": "#/$defs/E"},
        "slash": {"$ref": "#/%24defs/a~1b"},
        "loop": {"$ref": "#/$defs/loop"},
        "wide": {"$ref": "#/$defs/wide"},
        "two": {"allOf": [{"$ref": "#/$defs/P"}, {"type": "object"}]},
        "gone": {"$ref": "#/$defs/none"},
        "far": {"$ref": "https://example.org/s"},
        "odd": {"$ref": 5},
    },
}


def test_local_references_give_a_type():
    """A parameter behind `$ref` came back as a JSON string."""
    properties = tool_properties([{"type": "function", "function": {"name": "sales", "parameters": NESTED}}])["sales"]
    types = {key: schema_types(schema) for key, schema in properties.items()}
    assert types == {
        "period": ("object",), "opt": ("object", "null"), "one": ("object",), "code": ("string",),
        "slash": ("integer",), "loop": (), "wide": (), "two": (), "gone": (), "far": (), "odd": (),
    }  # fmt: skip
    assert json.loads(SchemaConversion(types["period"]).value('{"kind": "week"}')) == {"kind": "week"}
    assert json.loads(SchemaConversion(types["opt"]).value("null")) is None
    assert json.loads(JsonConversion(types["code"]).value("2")) == "2"


def test_a_schema_nested_without_end_is_not_followed_for_ever():
    schema = {}
    schema["anyOf"] = [schema, {"type": "string"}]
    assert "string" in schema_types(schema)


@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        ("number", "9007199254740993", 9007199254740993), ("number", "-" + "9" * 30, -(10**30) + 1),
        ("number", " 12 ", 12), ("number", "1e3", 1000), ("number", "9" * 400, "9" * 400),
        ("integer", "7", 7), ("integer", "7.0", 7), ("integer", "7.5", "7.5"), ("integer", "soon", "soon"),
        ("integer", "inf", "inf"), ("number", "2.50", 2.5), ("number", "3", 3), ("number", "3.0", 3.0),
        ("number", "NaN", "NaN"), ("number", "-inf", "-inf"), ("number", "1e999", "1e999"), ("boolean", "True", True),
        ("boolean", "0", False), ("boolean", "yes", "yes"), ("null", "None", None), ("null", "nil", "nil"),
        ("object", '{"a": 1}', {"a": 1}), ("object", "[1]", "[1]"), ("object", '{"a": NaN}', '{"a": NaN}'),
        ("array", "[]", []), ("array", "[1e999]", "[1e999]"), ("string", "12", "12"), ("string integer", "12", 12),
        ("string null", "null", None), ("object", "{" * 100_000, "{" * 100_000), ("integer", "9" * 5000, "9" * 5000),
        ("array", "[" * 100_000 + "]" * 100_000, "[" * 100_000 + "]" * 100_000),
    ],
)  # fmt: skip
def test_first_type_that_fits(types, text, value):
    got = convert(text, tuple(types.split()))
    assert (type(got), got) == (type(value), value)


_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "null ",
            "None",
            "nulls",
            "true",
            "TRUE x",
            " 12",
            "1e5",
            "1_0",
            "{",
            "[1",
            ' {"a": 1} ',
            "-",
            "\n",
            "0x1",
            "½",
            "١",
        ]
    ),
)
_NAMES = st.lists(
    st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"]), min_size=1, max_size=3
)


@given(_TEXTS, _NAMES, st.integers(1, 5))
def test_text_is_released_only_when_it_stays_text(text, names, size):
    """The one thing streaming relies on: once `undecided` says no, the value is the text, however it goes on."""
    for conversion in (SchemaConversion(tuple(names)), JsonConversion(tuple(names)), JsonConversion()):
        for at in range(0, len(text), size):
            if not conversion.undecided(text[at : at + size]):
                for rest in (text[at + size :], "", " ", "}", "0"):
                    whole = text[: at + size] + rest
                    assert json.loads(conversion.value(whole)) == json.loads(json_text.dumps(whole))
                break


def test_text_that_cannot_convert_is_released_at_once():
    assert not SchemaConversion(("integer",)).undecided("soon")
    assert not SchemaConversion(("string", "null")).undecided("nobody")
    assert not SchemaConversion(("object",)).undecided("not json")
    assert not JsonConversion().undecided("text")
    assert SchemaConversion(("string", "null")).undecided("nul")
    assert SchemaConversion(("object",)).undecided('{"a": ')


@pytest.mark.parametrize(("types", "text", "value"), [
    ((), "1", 1), (("string", "null"), "null", None), (("string", "null"), '{"a": 1}', '{"a": 1}'),
    (("integer",), "7.0", 7.0), (("string", "integer"), "7", 7), (("string", "boolean"), "1", "1"), ((), "NaN", "NaN"),
])  # fmt: skip
def test_json_rule(types, text, value):
    assert json.loads(JsonConversion(types).value(text)) == value


@given(st.text(st.characters(codec=None), max_size=30), st.integers(0, 30))
def test_escaping_is_by_character(text, at):
    whole = json_text.string_body(text)
    assert json_text.string_body(text[:at]) + json_text.string_body(text[at:]) == whole
    whole.encode()
    assert json.loads(f'"{whole}"').encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


@pytest.mark.parametrize("schema", [{"type": "string", "nullable": True}, {"type": ["string", "null"]}])
@pytest.mark.parametrize(
    ("text", "value"), [("null", None), ("nullx", "nullx"), ("12", "12"), ("", ""), ("None", "None")]
)
def test_muse_strings_that_may_be_null(schema, text, value):
    """Two ways to say the same in a schema are one type: `null` is null, anything else the text."""
    conversion = JsonConversion(schema_types(schema))
    assert json.loads(conversion.value(text)) == value


@pytest.mark.parametrize("other", [None, "null", "integer", "array", "object"])
@pytest.mark.parametrize("text", ['"exact phrase"', '""', ' "a" ', '"a" "b"', '"', '"\\n"'])
def test_quotes_are_part_of_a_muse_value_that_may_be_a_string(text, other):
    """An optional string lost the quotes of a search phrase that a string kept."""
    declared = [{"type": "string"}, {"type": other}] if other else [{"type": "string"}]
    types = schema_types({"anyOf": declared})
    for conversion in (JsonConversion(types), SchemaConversion(types)):
        assert not conversion.undecided(text), "it can be sent at once"
        assert json.loads(conversion.value(text)) == text


@pytest.mark.parametrize("types", [(), ("integer",), ("object", "null")])
def test_a_json_string_is_read_where_no_string_is_declared(types):
    conversion = JsonConversion(types)
    assert conversion.undecided('"a')
    assert json.loads(conversion.value('"a"')) == "a"


@pytest.mark.parametrize("text", ["1" * 400, "-" + "1" * 400, "9" * 5000, "1e400", "[" + "1" * 400 + "]"])
@pytest.mark.parametrize("names", ["string integer", "string number", "string array", "integer", "number", ""])
def test_numbers_beyond_every_float(text, names):
    """An integer of 400 digits is JSON, but no float; no such number may raise."""
    types = tuple(names.split())
    for conversion in (JsonConversion(types), SchemaConversion(types)):
        assert json.loads(conversion.value(text)) in (text, json.loads(text) if len(text) < 4000 else text)


@pytest.mark.parametrize("types", [("object",), ("array", "null")])
@pytest.mark.parametrize("pieces", [["\n\u2028{"], ["\n", "\u2028", "{"], ["\n\u2028", "{"]])
def test_white_space_that_is_none_of_jsons_decides_at_once(types, pieces):
    conversion = SchemaConversion(types)
    assert not [conversion.undecided(piece) for piece in pieces][-1], "a brace behind it begins no container"
