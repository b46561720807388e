# SPDX-License-Identifier: Apache-2.0
"""The response-template engine against that of transformers, on random output: regions, values, argument types.

The engine is pure Python; it is taken from the overlay, without vLLM.
"""

import json
import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "overlay" / "vllm"))

from transformers.utils.chat_parsing.response_parser import ResponseParser  # noqa: E402
from transformers.utils.chat_parsing.response_templates import load_response_template  # noqa: E402
from vllm.parser.chat_format.content import field_value  # noqa: E402
from vllm.parser.chat_format.conversion import convert, schema_types  # noqa: E402
from vllm.parser.chat_format.regions import RegionParser  # noqa: E402
from vllm.parser.chat_format.template import load_template  # noqa: E402

DATA = json.loads((ROOT / "gates" / "cpu" / "frontend" / "data" / "beam_parse.json").read_text(encoding="utf-8"))
_FUNCTION = {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.arguments}"}}
TEMPLATES = {
    **DATA["templates"],
    "json calls": {
        "start_anchor": "<a>",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "content": {},
            "tool_calls": {
                "open": ["<tool>", "<tools>"],
                "close": ["</tool>", "</tools>"],
                "repeats": True,
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [["<q>", "</q>"]]},
                "transform": _FUNCTION,
            },
        },
    },
    "every kind": {
        "start_anchor_pattern": "<a>|<b>",
        "defaults": {"role": "assistant"},
        "fields": {
            "count": {"open": "<int>", "close": "</int>", "content": "int"},
            "share": {"open": "<float>", "close": "</float>", "content": "float"},
            "flag": {"open": "<bool>", "close_pattern": "</bool>|$", "content": "bool"},
            "notes": {"open": "<kv>", "close": "</kv>", "content": "kv-lines", "repeats": True},
            "tags": {
                "open": "<tags>",
                "close": "</tags>",
                "content": "xml-inline",
                "content_args": {"tag_pattern": r"<(?P<key>\w+)=(?P<value>[^>]*)>", "merge_duplicates": True},
            },
            "typed": {
                "open": "<typed>",
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<(?P<key>\w+)=(?P<value>.*?)/>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
            },
            "items": {
                "open": "<items>",
                "close": "</items>",
                "content": "json",
                "transform": {"id": "{a}"},
                "transform_each": True,
            },
        },
    },
}
_HEADER = " to=f<|channel|>analysis <|constrain|>xml<|message|>"
_PIECES = {
    "T": [
        "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|><|start|>assistant", "<|return|>",
        "<|call|>", "<|end|>", "<|start|>assistant", _HEADER, '<rfl:parameter name="k">\n', "\n</rfl:parameter>",
        "</rfl:parameter>", '<rfl:parameter name="k">', "x", "\n", " ", "<", "1",
    ],
    "json calls": [
        "<think>", "</think>", "<tool>", "<tools>", "</tool>", "</tools>", '{"name": "f", "arguments": {}}',
        "{name: <q>f</q>, arguments: 1}", '{"name": "a, b: c", arguments :1}', "[1]", "x", "<", "{", "\x01",
    ],
    "every kind": [
        "<int>", "</int>", "<float>", "</float>", "<bool>", "</bool>", "<kv>", "</kv>", "<tags>", "</tags>", "<typed>",
        "<items>", "</items>", "1", "2.5", "true", "x", "a: b\n", "c:\n", "<a=1>", "<a=2>", "<b=>", "<n=3/>", "<n=x/>",
        '[{"a": 1}]', '[{"b": 1}]', "[]", " ", "<",
    ],
}  # fmt: skip


class Collector:
    """Regions of one turn: [name, captures, text]."""

    def __init__(self):
        self.regions = []

    def opened(self, field, captures, visible, at):
        self.regions.append([field.name, captures, ""])

    def text(self, field, text, visible):
        self.regions[-1][2] += text

    def closed(self, field, visible, complete, at):
        pass


def _ours(template, prefix, chunks):
    handler = Collector()
    parser = RegionParser(template, handler, prefix)
    for chunk in chunks:
        parser.feed(chunk)
    parser.finish()
    found = []
    for name, captures, text in handler.regions:
        try:
            value = field_value(template.fields[name], text, captures)
        except (ValueError, TypeError):
            value = "malformed"
        found.append([name, value])
    return found


def _theirs(template, prefix, chunks):
    """The reference's regions; None if one of them is malformed, which it raises."""
    try:
        parser = ResponseParser(template, prefix=prefix)
        events = list(parser.initial_events)
        for chunk in chunks:
            events += parser.feed(chunk)
        events += parser.finalize()[1]
    except (ValueError, KeyError, TypeError):
        return None
    return [[event["field"], event["value"]] for event in events if event["type"] == "region_close"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_regions_and_values_match(name):
    pieces = _PIECES["T" if name.startswith("T") else name]
    ours, theirs = load_template(TEMPLATES[name]), load_response_template(TEMPLATES[name])
    compared = 0
    for seed in range(1500):
        draw = random.Random(seed)
        # A closer whose next anchor is missing is completed here and not there: end every text beyond doubt.
        text = "".join(draw.choice(pieces) for _ in range(draw.randrange(1, 14))) + "."
        prefix = draw.choice(["", "<a>", "<|start|>assistant", "x<a>" + draw.choice(pieces)])
        at = sorted(draw.randrange(len(text)) for _ in range(draw.randrange(4)))
        chunks = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
        expected = _theirs(theirs, prefix, chunks)
        found = _ours(ours, prefix, chunks)
        if expected is None:
            assert any(value == "malformed" for _, value in found), (seed, prefix, chunks)
            continue
        compared += 1
        assert found == expected, (seed, prefix, chunks)
    assert compared > 300


_SCHEMAS = [{"type": kind} for kind in ("string", "integer", "number", "boolean", "null", "object", "array")] + [
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    {"type": "number", "nullable": True},
    {},
]
_TEXTS = [
    "1",
    "1.0",
    "1.5",
    "true",
    "TRUE",
    "0",
    "null",
    "None",
    "nan",
    "-inf",
    '{"a": 1}',
    "[1]",
    "x",
    "",
    " 7 ",
    "1e3",
    "1_0",
]


@pytest.mark.parametrize("schema", _SCHEMAS, ids=str)
@pytest.mark.parametrize("text", _TEXTS)
def test_argument_types_match(schema, text):
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"k": schema}}}}
    ]
    parser = ResponseParser(load_response_template(TEMPLATES["T1"]), prefix="", tools=tools)
    call = f'{_HEADER}<rfl:parameter name="k">\n{text}\n</rfl:parameter><|call|>'
    parser.feed(call)
    ((message),) = parser.finalize()[0]["tool_calls"]
    expected = message["function"]["arguments"]["k"]
    got = convert(text, schema_types(schema))
    assert (type(got), got) == (type(expected), expected)
