# SPDX-License-Identifier: Apache-2.0
"""Reports about other models' parsers, as they would look in these formats: none may happen here.

Each case is read whole and in pieces of several sizes, as a stream and as a full parse.
"""

import json

import pytest
from parser_texts import joined, read
from vllm.parser.chat_format.turn_piece import TurnMode

CALL = "<|channel|>analysis <|constrain|>xml<|message|>"
NEXT = "<|end|><|start|>assistant"
THINK = f"<|channel|>analysis<|message|>t{NEXT}"
PATH = '<rfl:parameter name="path">\na\n</rfl:parameter>\n'
CONTENT = '<rfl:parameter name="content">\n'
END = "\n</rfl:parameter>"
M_NEXT = "<|eom|><|start|>assistant"
M_END = "</atem:invoke>\n</atem:function_calls>"


def muse(tool, body=""):
    return f' to={tool}<|message|><atem:function_calls>\n<atem:invoke name="{tool}">\n{body}{M_END}'


def tag(key, value):
    return f'<atem:parameter name="{key}">{value}</atem:parameter>\n'


# name: (format, output, reasoning, content, calls)
CASES = {
    "opener cut by the token limit": ("T1", f"{THINK}<|channel|>fin", "t", "", []),
    "header cut by the token limit": ("T1", f"{THINK} to=write_fi", "t", "", []),
    "muse header cut by the token limit": ("muse", " to=self<|message|>t<|eom|><|start|>assis", "t", "", []),
    "call after a call without arguments": (
        "T1",
        f"{THINK} to=noop{CALL}{NEXT} to=write_file{CALL}{PATH}<|call|>",
        "t",
        "",
        [("noop", {}), ("write_file", {"path": "a"})],
    ),
    "muse call after a call without arguments": (
        "muse",
        muse("noop") + M_NEXT + muse("write_file", tag("path", "a")) + "<|eot|>",
        "",
        "",
        [("noop", {}), ("write_file", {"path": "a"})],
    ),
    "letters outside ASCII are sent once": (
        "T1",
        f' to=get_weather{CALL}<rfl:parameter name="city">\nMünster 🌧 北京{END}<|call|>',
        "",
        "",
        [("get_weather", {"city": "Münster 🌧 北京"})],
    ),
    "text behind a call": (
        "muse",
        muse("noop") + M_NEXT + " to=user<|message|>Done.<|eot|>",
        "",
        "Done.",
        [("noop", {})],
    ),
    "answer behind a call": (
        "T1",
        f" to=noop{CALL}{NEXT}<|channel|>final<|message|>Done.",
        "",
        "Done.",
        [("noop", {})],
    ),
    "call header inside a value": (
        "T1",
        f" to=write_file{CALL}{PATH}{CONTENT}a to=noop{CALL}b{END}<|call|>",
        "",
        "",
        [("write_file", {"path": "a", "content": f"a to=noop{CALL}b"})],
    ),
    "another channel does not become part of a name": (
        "T1",
        f"{THINK} to=noop<|channel|>commentary<|message|>x{NEXT}<|channel|>final<|message|>y",
        "t",
        "y",
        [],
    ),
    "another argument syntax is no call": (
        "T1",
        f'{THINK} to=noop<|channel|>analysis <|constrain|>json<|message|>{{"a": 1}}<|call|>',
        "t",
        "",
        [],
    ),
    "text between messages": (
        "T1",
        f"{THINK[: -len('<|start|>assistant')]}<|start|>assistant stray <|channel|>final<|message|>y<|return|>",
        "t",
        "y",
        [],
    ),
    "closer as the first characters of a value": (
        "T1",
        f" to=write_file{CALL}{CONTENT}</rfl:parameter> is a tag{END}<|call|>",
        "",
        "",
        [("write_file", {"content": "</rfl:parameter> is a tag"})],
    ),
    "half closers in a row": (
        "T1",
        f" to=write_file{CALL}{CONTENT}\n</rfl:param\n</rfl:param\n\n{END}<|call|>",
        "",
        "",
        [("write_file", {"content": "\n</rfl:param\n</rfl:param\n\n"})],
    ),
    "stop tokens in a row": ("T1", "<|channel|>final<|message|>x<|return|><|return|><|call|>", "", "x", []),
    "call token in a row": ("T1", f" to=noop{CALL}<|call|><|call|>", "", "", [("noop", {})]),
    "windows line ends and odd characters": (
        "T1",
        f" to=write_file{CALL}{CONTENT}a\r\nb\x00\u2028\ufeff\x7f{END}<|call|>",
        "",
        "",
        [("write_file", {"content": "a\r\nb\x00\u2028\ufeff\x7f"})],
    ),
    "python literals are text where they are not JSON": (
        "T1",
        f" to=search{CALL}<rfl:parameter name=\"tags\">\n['a', 'b']{END}<|call|>",
        "",
        "",
        [("search", {"tags": "['a', 'b']"})],
    ),
    "value without text": (
        "T1",
        f' to=get_weather{CALL}<rfl:parameter name="city">\n{END}<rfl:parameter name="days">\n{END}<|call|>',
        "",
        "",
        [("get_weather", {"city": "", "days": ""})],
    ),
    "muse value without text": (
        "muse",
        muse("get_weather", tag("city", "") + tag("days", "")),
        "",
        "",
        [("get_weather", {"city": "", "days": ""})],
    ),
    "next opener directly behind a value": (
        "T1",
        f' to=write_file{CALL}<rfl:parameter name="path">\na\n{CONTENT}b{END}<|call|>',
        "",
        "",
        [("write_file", {"path": "a", "content": "b"})],
    ),
    "muse parameter tag left out": (
        "muse",
        ' to=write_file<|message|><atem:invoke name="write_file.path">/tmp/a</atem:parameter>\n'
        + tag("content", "b")
        + M_END,
        "",
        "",
        [("write_file", {"path": "/tmp/a", "content": "b"})],
    ),
    "muse tool that only looks like it": (
        "muse",
        ' to=write_file<|message|><atem:invoke name="write_file.path">\n' + tag("content", "b") + M_END,
        "",
        "",
        [("write_file.path", {"content": "b"})],
    ),
    "muse wrapper twice": (
        "muse",
        " to=noop<|message|><atem:function_calls>\n<atem:function_calls>\n"
        f'<atem:invoke name="noop">\n{M_END}\n</atem:function_calls><|eot|>',
        "",
        "",
        [("noop", {})],
    ),
}


@pytest.mark.parametrize("fragments", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize("name", CASES)
def test_reported_case(name, fragments):
    model, text, *wanted = CASES[name]
    for size in (1, 2, 3, 5, 16, len(text)):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        reasoning, content, calls = joined(read(model, chunks, TurnMode(fragments=fragments)))
        assert [reasoning, content, [(tool, json.loads(arguments)) for tool, arguments in calls]] == wanted, size


def test_white_space_without_end_behind_an_invoke_tag():
    head = ' to=x<|message|><atem:invoke name="write_file.path">'
    for size in (1, 7, 1000):
        text = head + " " * 500 + "v</atem:parameter></atem:invoke>"
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert joined(read("muse", chunks))[2] == [("write_file.path", "{}")]
