# SPDX-License-Identifier: Apache-2.0
"""What a turn grammar admits, the parser reads without loss: calls are of the request's tools and valid under
their schemas, answers are valid under the response format, and the stream joins to the same result."""

from __future__ import annotations

import json
import os
import random
import re

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from turn_harness import recorded, request_of, tag_of
from turn_walk import Walker
from vllm.parser.beam import BeamReasoningParser, BeamToolParser
from vllm.parser.muse import MuseReasoningParser, MuseToolParser
from vllm.parser.turn_grammar.muse_format import MUSE
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.parser.unified import unified_parser_for

TEMPLATES = recorded("turn_grammar_beam")["templates"]
ANCHOR = "<|start|>assistant"
PROMPT = f"<|start|>user<|message|>Hi<|end|>{ANCHOR}"


class Tokenizer:
    """Enough of a tokenizer for the parsers: text in, text out, bytes and markers as ids."""

    def __init__(self, walker: Walker, template):
        self.walker = walker
        self.init_kwargs = {"response_template": template}

    def get_vocab(self):
        return {**{f"<0x{byte:02X}>": byte for byte in range(256)}, **self.walker.ids}

    def encode(self, text, add_special_tokens=False):
        return list(text.encode())

    def decode(self, ids, **options):
        return b"".join(self.walker.vocab[token] for token in ids).decode(errors="replace")


class Lane:
    """One wire format with its grammar, its parser and a walker."""

    def __init__(self, name: str):
        self.name = name
        muse = name == "muse"
        self.walker = Walker("muse" if muse else "beam")
        self.turn = MUSE if muse else turn_format(TEMPLATES[name])
        self.tokenizer = Tokenizer(self.walker, None if muse else TEMPLATES[name])
        classes = (MuseReasoningParser, MuseToolParser) if muse else (BeamReasoningParser, BeamToolParser)
        self.parser_cls = unified_parser_for(*classes, names=("p", "p"), enable_auto_tools=True)

    def draw(self, fields: dict, tools: list[dict] | None, seed: int):
        """(request, text, ended, (reasoning, content, calls)) of one admitted turn."""
        request = request_of(dict(fields), tools)
        constrain_request(request, self.turn, prompt=PROMPT, serving=Serving())
        text, ended = self.walker.turn(tag_of(request), random.Random(seed))
        parser = self.parser_cls(self.tokenizer, request.tools)
        parser.set_prompt_token_ids(list(PROMPT.encode()))
        return request, text, ended, parser.parse(text, request, enable_auto_tools=True)

    def streamed(self, request, text: str, seed: int):
        """The joined stream of `text` in random chunks."""
        rng = random.Random(seed)
        parser = self.parser_cls(self.tokenizer, request.tools)
        reasoning, content, calls, at = "", "", {}, 0
        while at <= len(text):
            size = rng.randint(1, 9)
            last = at + size >= len(text)
            delta = parser.parse_delta(text[at : at + size], [], request, list(PROMPT.encode()), finished=last)
            at += size
            for call in (delta.tool_calls or ()) if delta else ():
                entry = calls.setdefault(call.index, ["", ""])
                entry[0] += call.function.name or ""
                entry[1] += call.function.arguments or ""
            reasoning += (delta.reasoning or "") if delta else ""
            content += (delta.content or "") if delta else ""
            if last:
                break
        return reasoning or None, content or None, [calls[index] for index in sorted(calls)]


LANES = {name: Lane(name) for name in ("T1", "T2", "T3", "muse")}


def tool(name: str, parameters: dict | None) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


INNER = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "boolean"},
        {"type": "number"},
        {"type": "string", "enum": ["a", "two words", "<b>", ""]},
        {"type": "integer", "minimum": -3, "maximum": 40},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "format": "ipv4"},
        {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"},
        {"type": ["string", "null"]},
        {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": "integer", "enum": [1, 2, 30]},
        {"const": "only", "type": "string"},
    ]
)
# Inside JSON text a length gives way to the excluded delimiters, so it is drawn at the top only.
SIZED = st.sampled_from([{"type": "string", "minLength": 2, "maxLength": 5}, {"type": "string", "maxLength": 3}])
PROPERTIES = SIZED | st.recursive(
    INNER,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 3}, inner),
        st.builds(
            lambda a, b: {
                "type": "object",
                "properties": {"a": a, "b": b},
                "required": ["a"],
                "additionalProperties": False,
            },
            inner,
            inner,
        ),
    ),
    max_leaves=4,
)
NAMES = st.lists(st.sampled_from(["zeta", "alpha", "mid", "x-1", "päth", "a.b"]), min_size=0, max_size=4, unique=True)


@st.composite
def schemas(draw):
    names = draw(NAMES)
    return {
        "type": "object",
        "properties": {name: draw(PROPERTIES) for name in names},
        "required": draw(st.lists(st.sampled_from(names), unique=True)) if names else [],
    }


TOOLS = st.builds(lambda first, second: [tool("get_weather", first), tool("f", second)], schemas(), schemas())
CHECK = settings(
    max_examples=int(os.environ.get("TURN_GRAMMAR_EXAMPLES", "6")),
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def valid_calls(calls, tools):
    """Each call names a listed tool and its arguments are valid under that tool's schema."""
    by_name = {entry["function"]["name"]: entry["function"]["parameters"] for entry in tools}
    for call in calls:
        arguments = json.loads(call.arguments, parse_constant=lambda text: pytest.fail(f"not JSON: {text}"))
        assert call.name in by_name
        jsonschema.validate(arguments, by_name[call.name] or {"type": "object", "maxProperties": 0})


@pytest.mark.parametrize("name", LANES)
@CHECK
@given(tools=TOOLS, seed=st.integers(0, 2**32))
def test_required_calls_are_valid(name, tools, seed):
    lane = LANES[name]
    request, text, ended, (reasoning, content, calls) = lane.draw({"tool_choice": "required"}, tools, seed)
    if not ended:
        return
    assert calls, text
    valid_calls(calls, tools)
    joined = lane.streamed(request, text, seed)
    assert joined == (reasoning, content, [[call.name, call.arguments] for call in calls]), text


# The last closer before the next parameter or the end of the call: whatever the parser takes for one earlier is lost.
WRITTEN = {
    "muse": r'name="a">(.*)</atem:parameter>\n<atem:parameter name="b">(.*)</atem:parameter>\n</atem:invoke>',
    "T1": r'name="a">\n(.*)\n</rfl:parameter>\n?<rfl:parameter name="b">\n(.*)\n</rfl:parameter>$',
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize(
    "form", [{"type": "string"}, {"type": "string", "minLength": 3}, {"type": "string", "maxLength": 40}]
)
def test_text_values_are_read_as_they_were_written(name, form):
    lane, tools = (
        LANES[name],
        [tool("f", {"type": "object", "properties": {"a": form, "b": form}, "required": ["a", "b"]})],
    )
    read = 0
    for seed in range(40):
        _request, text, ended, (_, _, calls) = lane.draw(
            {"tool_choice": "required", "parallel_tool_calls": False}, tools, seed
        )
        written = re.search(WRITTEN[name], text, re.DOTALL) if ended else None
        if written:
            assert [json.loads(call.arguments) for call in calls] == [{"a": written[1], "b": written[2]}], text
            read += 1
    assert read > 5


MIXED = [
    {"type": ["string", "integer"], "enum": ["1", "a", 2]},
    {"type": ["string", "null"], "enum": ["null", "b"]},
    {"type": ["boolean", "string"], "enum": [True, "x", "0"]},
    {"type": ["string", "number"], "enum": ["c", 1.5]},
]


@pytest.mark.parametrize("name", ["T1", "muse"])
@pytest.mark.parametrize("schema", MIXED)
def test_enumerations_of_several_types_are_kept_to(name, schema):
    """The text `1` is no string where an integer may stand."""
    tools = [tool("f", {"type": "object", "properties": {"a": schema}, "required": ["a"]})]
    for seed in range(8):
        _, _text, ended, (_, _, calls) = LANES[name].draw({"tool_choice": "required"}, tools, seed)
        if ended:
            valid_calls(calls, tools)


@pytest.mark.parametrize("name", LANES)
@CHECK
@given(tools=TOOLS, seed=st.integers(0, 2**32))
def test_named_call_is_the_one_asked_for(name, tools, seed):
    choice = {"type": "function", "function": {"name": "f"}}
    _request, text, ended, (_, content, calls) = LANES[name].draw({"tool_choice": choice}, tools, seed)
    if ended:
        assert [call.name for call in calls or ()] == ["f"], text
        valid_calls(calls, tools)
        assert not content


@pytest.mark.parametrize("name", LANES)
@CHECK
@given(tools=TOOLS, seed=st.integers(0, 2**32), parallel=st.booleans())
def test_auto_turns_lose_nothing(name, tools, seed, parallel):
    """Either calls or an answer; listed tools get valid arguments; one call when parallel calls are off."""
    lane = LANES[name]
    request, text, ended, (reasoning, content, calls) = lane.draw({"parallel_tool_calls": parallel}, tools, seed)
    if not ended:
        return
    listed = [call for call in calls or () if call.name in ("get_weather", "f")]
    valid_calls(listed, tools)
    assert parallel or len(calls or ()) <= 1
    if lane.turn.always_thinks:
        assert reasoning
        assert not (calls and content)
    assert lane.streamed(request, text, seed) == (
        reasoning,
        content,
        [[call.name, call.arguments] for call in calls or ()],
    ), text


@pytest.mark.parametrize("name", LANES)
@CHECK
@given(schema=schemas(), seed=st.integers(0, 2**32))
def test_json_answers_are_valid(name, schema, seed):
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    _, _text, ended, (_, content, calls) = LANES[name].draw(fields, None, seed)
    if ended:
        assert not calls
        jsonschema.validate(json.loads(content), schema)


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize(
    ("constraint", "check"),
    [
        ({"choice": ["yes", "no way"]}, lambda text: text in ("yes", "no way")),
        ({"regex": "[0-9]{3}-[a-f]+"}, lambda text: text[3] == "-" and text[:3].isdigit()),
        ({"grammar": 'root ::= "a"+ "b"'}, lambda text: text.rstrip("b").strip("a") == "" and text.endswith("b")),
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_structured_answers(name, constraint, check, seed):
    _, text, ended, (_, content, calls) = LANES[name].draw({"structured_outputs": constraint}, None, seed)
    if ended:
        assert check(content), text
        assert not calls


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_thinking_budget_still_ends_in_an_answer(name, budget):
    """The reasoning stays within the budget (one token at least where thinking is required) and an answer follows."""
    lane = LANES[name]
    seen = 0
    for seed in range(12):
        request, _text, ended, (reasoning, content, _) = lane.draw({"thinking_token_budget": budget}, None, seed)
        assert request.thinking_token_budget is None
        if ended and reasoning:
            # Tokens of the walk are at most 12 characters of text; a first character may need a few of its own.
            assert len(reasoning) <= 12 * max(budget, 1) + 25
            seen += content is not None
    assert seen


def test_free_arguments_would_be_invalid():
    """Control: without the schema in the grammar, drawn calls break it."""
    lane, tools = (
        LANES["T1"],
        [tool("get_weather", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})],
    )
    loose = [tool("get_weather", {**tools[0]["function"]["parameters"], "additionalProperties": True})]
    broken = 0
    for seed in range(20):
        _, _, ended, (_, _, calls) = lane.draw({"tool_choice": "required"}, loose, seed)
        try:
            valid_calls(calls if ended else [], tools)
        except jsonschema.ValidationError:
            broken += 1
    assert broken
