# SPDX-License-Identifier: Apache-2.0
"""Requests that would explode a grammar: bounded work, a 400 that names the parameter, nothing half-set."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
import xgrammar as xgr
from pydantic import ValidationError
from turn_harness import ByteMatcher, recorded, request_of, tag_of
from vllm.exceptions import VLLMValidationError
from vllm.parser.turn_grammar import cache, limits
from vllm.parser.turn_grammar.muse_format import MUSE
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.structured import answer_body
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.parser.turn_grammar.tries import other_names
from vllm.parser.turn_grammar.turn import Tool, TurnRules, answer_delimiters, turn_tag

TURN = turn_format(recorded("turn_grammar_beam")["templates"]["T1"])
PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
THINK = "<|channel|>analysis<|message|>r<|end|><|start|>assistant"
XML = "<|channel|>analysis <|constrain|>xml<|message|>"


def tool(parameters, name="f", **fields):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def constrain(fields, tools=None, turn=TURN):
    request = request_of(fields, tools)
    return constrain_request(request, turn, prompt=PROMPT, serving=Serving())


def nested(depth: int):
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return {"type": "object", "properties": {"a": schema}}


def refused(fields, tools, parameter, turn=TURN):
    """The error's text, whether the request's model raises it or the grammar."""
    request = None
    try:
        request = request_of(fields, tools)
        constrain_request(request, turn, prompt=PROMPT, serving=Serving())
    except ValidationError as caught:
        error = caught.errors()[0]["ctx"]["error"]
    except VLLMValidationError as caught:
        error = caught
    else:
        pytest.fail("it was served")
    assert error.parameter == parameter
    assert len(str(error)) < 600
    assert getattr(request, "_parser_structured_outputs", None) is None
    return str(error)


WIDE = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(600)}}
ENUM = {"type": "object", "properties": {"a": {"type": "string", "enum": [f"v{i}" for i in range(5000)]}}}


@pytest.mark.parametrize(
    "schema",
    [
        nested(200),
        WIDE,
        ENUM,
        {
            "type": "object",
            "properties": {
                f"p{i}": {
                    "type": "array",
                    "items": {"type": "object", "properties": {f"q{j}": {"type": "string"} for j in range(400)}},
                }
                for i in range(60)
            },
        },
    ],
)
def test_exploding_schemas_are_refused(schema):
    assert "f" in refused({}, [tool(schema)], "tools")
    refused(
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}},
        None,
        "response_format",
    )


LONG = "v" * (limits.MAX_TEXT + 1)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [LONG]},
        {"const": LONG},
        {"type": "string", "pattern": LONG},
        {"type": "object", "properties": {LONG: {"type": "integer"}}},
        {"enum": [LONG[:-1] + str(number) for number in range(9)]},
        {"enum": ["v" * 8000 + str(number) for number in range(17)]},
    ],
)
def test_long_texts_are_refused(schema):
    """Compiling takes the square of their length."""
    refused({}, [tool({"type": "object", "properties": {"a": schema}})], "tools")
    body = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    refused({"response_format": body}, None, "response_format")
    if "enum" in schema:
        refused({"structured_outputs": {"choice": schema["enum"]}}, None, "structured_outputs")


def test_long_descriptions_are_served():
    """Control: what no grammar spells out has no such bound."""
    assert tag_of(constrain({}, [tool({"type": "object", "description": LONG * 4, "properties": {}})]))


def test_the_same_schemas_within_bounds_are_served():
    """Control: the bounds are not what makes these fail."""
    tag = tag_of(
        constrain(
            {}, [tool(nested(20)), tool({**WIDE, "properties": dict(list(WIDE["properties"].items())[:50])}, "g")]
        )
    )
    assert xgr.Grammar.from_structural_tag(tag) is not None


def test_megabyte_tool_lists():
    many = [tool({"type": "object", "properties": {}}, f"t{i}") for i in range(limits.MAX_TOOLS + 1)]
    assert "at most" in refused({}, many, "tools")
    long = [tool({"type": "object", "properties": {"a": {"type": "string", "description": "x" * (5 << 20)}}})]
    assert "bytes" in refused({}, long, "tools")


def test_definitions_go_beside_the_properties_that_reach_them():
    """A text for each property with all definitions would be built before anything bounds it: gigabytes."""
    wide = {f"p{i}": {"type": "object", "properties": {"x": {"$ref": "#/$defs/A"}}} for i in range(30)}
    entry = {"type": "object", "description": "y" * 100_000, "properties": {"b": {"$ref": "#/$defs/B"}}}
    defs = {"A": entry, "B": {"type": "integer"}, "C": {"type": "string", "enum": ["unused"]}}
    text = tag_of(constrain({"tool_choice": "required"}, [tool({"type": "object", "properties": wide, "$defs": defs})]))
    assert len(text) < 2 * limits.STRICT_TAG_BYTES
    assert "p29" in text  # the schema is held
    assert "yyy" not in text
    assert "unused" not in text
    small = tool({"type": "object", "properties": {"p": wide["p0"]}, "required": ["p"], "$defs": defs})
    matcher = ByteMatcher(tag_of(constrain({"tool_choice": "required"}, [small])))
    call = THINK + " to=f" + XML + '<rfl:parameter name="p">\n{"x": {"b": %s}}\n</rfl:parameter><|call|>'
    assert matcher.read(call % "7")[1]
    assert not matcher.read(call % '"7"')[0]


def test_schemas_too_large_with_what_they_refer_to_are_given_up_unbuilt(monkeypatch):
    """Each property may take the whole of a definition's enumeration with it."""
    built = []
    whole = cache.turn_tag
    monkeypatch.setattr(cache, "turn_tag", lambda *given: built.append(len(json.dumps(whole(*given)))) or whole(*given))
    entry = {"type": "object", "properties": {"a": {"type": "integer", "enum": list(range(4000))}}}
    wide = {f"p{i}": {"type": "object", "properties": {"x": {"$ref": "#/$defs/A"}}} for i in range(400)}
    tools = [tool({"type": "object", "properties": wide, "$defs": {"A": entry}}), tool({}, "g")]
    assert tag_of(constrain({"tool_choice": "required"}, tools))
    assert max(built) < limits.STRICT_TAG_BYTES


def test_annotations_are_no_part_of_a_grammar():
    schema = {"type": "object", "title": "T", "description": "x" * 10_000, "properties": {"title": {"type": "integer"}}}
    for given in ({**schema, "required": ["title"]}, {**schema, "description": "other", "required": ["title"]}):
        fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": given}}}
        tags = [
            tag_of(constrain(fields)),
            tag_of(constrain({}, [tool({"type": "object", "properties": {"o": given}})])),
        ]
        assert all(len(text) < 9000 and "xxx" not in text and '"T"' not in text for text in tags)
        assert '"title": {"type": "integer"}' in tags[0]


def test_what_is_known_of_texts_is_bounded(monkeypatch):
    from vllm.parser.turn_grammar import formats

    monkeypatch.setattr(formats, "_KNOWN", {})
    monkeypatch.setattr(formats, "_KNOWN_TEXTS", 3)
    for index in range(5):
        formats.accepted(formats.regex(f"{index}" * 5000))
    assert len(formats._KNOWN) == 3
    assert all(len(key) == 32 for key in formats._KNOWN)


@pytest.mark.parametrize(
    "pattern",
    ["[a-z]{1,16000}", "[a-z]{4000}", "^[a-z]{4000,}$", "(a{1,50}){1,50}", "((a|bc){30}){40}", "(?<n>a){9999}"],
)
@pytest.mark.parametrize("where", ["pattern", "patternProperties"])
def test_patterns_that_repeat_much_are_refused(where, pattern):
    schema = {"type": "string", "pattern": pattern}
    if where != "pattern":
        schema = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}}
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    assert "repeats" in refused(asked, None, "response_format")


def answer_of(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def repeating(count, times, keyword="patternProperties"):
    """An object whose keys or values are held by `count` patterns that repeat `times` each."""
    found = {f"^k{i}[a-z]{{1,{times}}}$": {"type": "integer"} for i in range(count)}
    if keyword == "patternProperties":
        return {"type": "object", "patternProperties": found}
    return {"type": "object", "properties": {f"q{i}": {"type": "string", "pattern": p} for i, p in enumerate(found)}}


@pytest.mark.parametrize("keyword", ["patternProperties", "pattern"])
def test_many_patterns_that_repeat_are_refused_together(keyword):
    """Each alone is within the bound; their times add up, to minutes."""
    assert "others repeat too" in refused(answer_of(repeating(100, 250, keyword)), None, "response_format")
    assert tag_of(constrain(answer_of(repeating(10, 20, keyword))))


@pytest.mark.parametrize("pattern", [f"^[a-z]{{{'9' * 5000}}}$", f"^[a-z]{{{'9' * 18}}}$", "(?L)^[a-z]{3}$"])
def test_patterns_that_no_reader_takes_are_no_internal_error(pattern):
    schema = {"type": "string", "pattern": pattern}
    refused(answer_of(schema), None, "response_format")
    assert tag_of(
        constrain({}, [tool({"type": "object", "properties": {"p": schema, "o": {"properties": {"q": schema}}}})])
    )


@pytest.mark.parametrize("turn", [TURN, MUSE], ids=["beam", "muse"])
@pytest.mark.parametrize(
    "tools",
    [
        [("f", repeating(1, 16_000))],
        [("f", repeating(100, 250, "pattern"))],
        [(f"f{i}", repeating(10, 250, "pattern")) for i in range(30)],
    ],
)
def test_tools_whose_patterns_repeat_much_are_given_up_unbuilt(turn, tools, monkeypatch):
    """A strict tool is refused; another keeps its name, and its schema is in no grammar that is built."""
    judged = []
    monkeypatch.setattr("vllm.parser.turn_grammar.formats._judged", judged.append)
    given = [tool({"type": "object", "properties": {"p": schema}}, name) for name, schema in tools]
    text = tag_of(constrain({"tool_choice": "required"}, given, turn))
    assert all("16000" not in piece for piece in [*judged, text])
    # 64 times 250 squared is the bound; a second call repeats the grammar of the first.
    assert text.count("250}") + sum(piece.count("250}") for piece in judged) <= 3 * 64
    assert tools[-1][0] in text
    strict = [tool({"type": "object", "properties": {"p": schema}}, name, strict=True) for name, schema in tools]
    assert "repeats" in refused({}, strict, "tools", turn)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("[a-z]{1,64}", 64), ("a+b*c?", 0), ("(ab){3}c", 6), ("(a{2}|b){3}x{4,}", 13), (r"\{5000}", 0), ("a{0,1}", 0)],
)
def test_repeats_are_counted_as_they_unfold(pattern, count):
    from vllm.parser.turn_grammar.repeats import unfolded

    assert unfolded(pattern) == count


def test_large_tool_sets_give_up_schemas_not_names(monkeypatch):
    monkeypatch.setattr(cache, "STRICT_TAG_BYTES", 40_000)
    tools = tuple(
        Tool(f"tool{i}", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
        for i in range(60)
    )
    text = cache.bounded_text(TURN, TurnRules(tools=tools, answer=False))
    assert len(text) < 4 * 40_000
    matcher = ByteMatcher(text)
    call = THINK + " to={}" + XML + '<rfl:parameter name="a">\n{}\n</rfl:parameter><|call|>'
    assert matcher.read(call.format("tool0", "7"))[1]
    assert not matcher.read(call.format("tool0", "x"))[0]
    assert matcher.read(call.format("tool59", "x"))[1]
    assert not matcher.read(call.format("tool60", "7"))[0]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"c": {"$ref": "#"}}},
        {
            "type": "object",
            "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/A"}}},
            "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
        },
        {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#/$defs/none"}}}},
        {"type": "object", "properties": {"c": {"type": "string", "enum": ["</rfl:parameter>\n<|call|>"]}}},
        {"type": "object", "properties": {"c": {"type": "string", "pattern": "(?<=a)b\\1"}}},
        {"type": "object", "properties": {"c": {"type": "string", "pattern": "^(a{1,9999}){1,9999}$"}}},
        {"type": "array"},
        {"properties": 3},
        {"type": ["object"]},
        {"type": "object", "required": ["x"], "properties": {}},
    ],
)
def test_schemas_that_cannot_be_held_to_are_served_free(schema):
    """Names stay enforced; any arguments pass; the grammar compiles."""
    matcher = ByteMatcher(tag_of(constrain({"tool_choice": "required"}, [tool(schema)])))
    assert matcher.read(THINK + " to=f" + XML + '<rfl:parameter name="c">\nx\n</rfl:parameter><|call|>')[1]
    assert not matcher.read(THINK + " to=g" + XML + "<|call|>")[0]


def test_recursive_definitions_are_enforced():
    schema = {
        "type": "object",
        "properties": {"tree": {"type": "array", "items": {"$ref": "#/$defs/N"}}},
        "$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}},
    }
    matcher = ByteMatcher(tag_of(constrain({"tool_choice": "required"}, [tool(schema)])))
    call = THINK + " to=f" + XML + '<rfl:parameter name="tree">\n{}\n</rfl:parameter><|call|>'
    assert matcher.read(call.format('[{"n": {"n": {}}}]'))[1]
    assert not matcher.read(call.format('[{"n": 3}]'))[0]


@pytest.mark.parametrize("name", ["two words", "a<b", "", "\u00a0", "x\ny"])
def test_names_the_format_cannot_spell(name):
    assert "cannot be encoded" in refused({}, [tool({"type": "object", "properties": {}}, name)], "tools")


@pytest.mark.parametrize("turn", [TURN, MUSE], ids=["beam", "muse"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_long_names_are_refused_by_their_length(turn, choice):
    for length in (limits.MAX_NAME + 1, 1100, 1_000_000):
        text = refused({"tool_choice": choice}, [tool(None, "a" * length)], "tools", turn)
        assert f"{length} characters, at most {limits.MAX_NAME}" in text
    longest = "a" * limits.MAX_NAME
    matcher = ByteMatcher(tag_of(constrain({"tool_choice": choice}, [tool(None, longest)])))
    assert matcher.read(THINK + " to=" + longest + XML + "<|call|>")[1]
    assert matcher.read(THINK + " to=" + longest[1:] + XML + "<|call|>")[1] is (choice == "auto")


def test_names_of_any_length_can_be_left_out():
    """The bound on names is for the grammar's size; the regex itself is built without a stack."""
    text = other_names(r"\s<", ["a" * 5000, "b"])
    assert text.count("(?:") == 5002
    short = re.compile(other_names(r"\s<", ["ab", "abc", "b"]))
    assert [name for name in ("a", "ab", "abc", "abcd", "abx", "b", "bb", "c", "") if short.fullmatch(name)] == [
        "a",
        "abcd",
        "abx",
        "bb",
        "c",
    ]


@pytest.mark.parametrize("turn", [TURN, MUSE], ids=["beam", "muse"])
@pytest.mark.parametrize("text", ["[" * 1200, "[" * 12_000, '{"a":' * 1200])
def test_brackets_in_an_untyped_enumeration_are_text(turn, text):
    schema = {"type": "object", "properties": {"a": {"enum": [text]}}}
    assert xgr.Grammar.from_structural_tag(tag_of(constrain({}, [tool(schema)], turn))) is not None


@pytest.mark.parametrize("turn", [TURN, MUSE], ids=["beam", "muse"])
def test_choices_that_would_end_the_answer_are_refused(turn):
    closer = answer_delimiters(turn)[0]
    assert "would end the answer" in refused(
        {"structured_outputs": {"choice": ["a", f"a{closer}b"]}}, None, "structured_outputs", turn
    )


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 1200, "{", '{"a": NaN}'])
def test_a_schema_as_text_is_read_with_care(text):
    assert "not JSON" in refused({"structured_outputs": {"json": text}}, None, "structured_outputs")
    with pytest.raises(VLLMValidationError, match="send an object"):
        answer_body(SimpleNamespace(all_constraints_none=lambda: False, json_object=None, json=text), ())


def test_muse_names():
    with pytest.raises(VLLMValidationError, match="cannot be encoded"):
        constrain({}, [tool(None, "näme")], MUSE)
    for name in ('a"b', "a<b", ""):
        with pytest.raises(VLLMValidationError, match="cannot be encoded"):
            constrain({}, [tool({"type": "object", "properties": {name: {"type": "string"}}}, strict=True)], MUSE)


@pytest.mark.parametrize("turn", [TURN, MUSE], ids=["beam", "muse"])
def test_a_parameter_name_that_would_end_the_call_is_not_spelled(turn):
    """The parser ends the call at the closer, whatever tag it stands in."""
    for closer in turn.call.closers:
        schema = {"type": "object", "properties": {f"a{closer}b": {"type": "integer"}}}
        assert "cannot be encoded" in refused({}, [tool(schema, strict=True)], "tools", turn)
        assert closer + "b" not in tag_of(constrain({}, [tool(schema)], turn))
    spelled = {"type": "object", "properties": {"a to b/[c]": {"type": "integer"}}}
    assert "a to b/[c]" in tag_of(constrain({}, [tool(spelled, strict=True)], turn))


def test_unpaired_surrogates():
    refused({}, [tool({"type": "object", "properties": {"a": {"type": "string", "enum": ["\ud800"]}}})], "tools")
    refused({"structured_outputs": {"choice": ["\ud800", "b"]}}, None, "structured_outputs")
    refused({"structured_outputs": {"regex": "\ud800"}}, None, "structured_outputs")


@pytest.mark.parametrize(
    "constraint",
    [{"regex": "a" * 20_000}, {"grammar": "root ::= " + '"a" ' * 90_000}, {"choice": [f"c{i}" for i in range(5000)]}],
)
def test_long_constraints_are_refused(constraint):
    refused({"structured_outputs": constraint}, None, "structured_outputs")


@pytest.mark.parametrize("budget", [limits.MAX_BUDGET + 1, 2**40, 2**63 - 1])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_budgets_beyond_the_grammars_counter_are_refused(api, budget):
    """xgrammar counts up to 31 bits; one more and the grammar of the whole turn would be lost."""
    fields = {"api": api, "thinking_token_budget": budget}
    assert f"at most {limits.MAX_BUDGET}" in refused(fields, None, "thinking_token_budget")
    served = constrain({**fields, "thinking_token_budget": limits.MAX_BUDGET})
    assert xgr.Grammar.from_structural_tag(tag_of(served)) is not None


@pytest.mark.parametrize("budget", [-2, "many", 1.5, True])
def test_odd_budgets_are_refused(budget):
    request = request_of({"api": "responses"}, None)
    request.thinking_token_budget = budget
    with pytest.raises(VLLMValidationError) as caught:
        constrain_request(request, TURN, prompt=PROMPT, serving=Serving())
    assert caught.value.parameter == "thinking_token_budget"


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "0x10", "01"])
def test_numbers_outside_json_are_not_grammatical(text):
    matcher = ByteMatcher(
        tag_of(
            constrain(
                {"tool_choice": "required"},
                [
                    tool(
                        {
                            "type": "object",
                            "properties": {
                                "n": {"type": "number"},
                                "l": {"type": "array", "items": {"type": "number"}},
                            },
                        }
                    )
                ],
            )
        )
    )
    call = THINK + " to=f" + XML + '<rfl:parameter name="n">\n{}\n</rfl:parameter><|call|>'
    assert matcher.read(call.format("-1.5e3"))[1]
    assert not matcher.read(call.format(text))[0]


def test_the_tag_cache_is_bounded():
    own = cache.TagCache(limit=20_000)
    for index in range(40):
        own.get(TURN, TurnRules(tools=(Tool(f"t{index}"),)))
    assert own.bytes <= 20_000
    assert own.misses == 40
    own.get(TURN, TurnRules(tools=(Tool("t39"),)))
    assert own.hits == 1


def test_tag_grows_with_the_parameters_not_their_square():
    def size(count):
        schema = {"type": "object", "properties": {f"p{i:03}": {"type": "string"} for i in range(count)}}
        return len(json.dumps(turn_tag(TURN, TurnRules(tools=(Tool("f", schema),)))))

    assert size(256) < 16 * size(32)


@pytest.mark.parametrize("turn", [TURN, MUSE], ids=["beam", "muse"])
@pytest.mark.parametrize("entry", [["a"], {"a": 1}, 1, None])
def test_required_entries_that_are_not_names_do_not_crash(turn, entry):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": [entry]}
    assert xgr.Grammar.from_structural_tag(tag_of(constrain({}, [tool(schema)], turn))) is not None
