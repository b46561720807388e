# SPDX-License-Identifier: Apache-2.0
"""Checking a response template: what is refused, and that the error names the place."""

import copy

import pytest
from parser_turns import recorded
from vllm.parser.chat_format.delimiters import ResponseTemplateError
from vllm.parser.chat_format.patterns import expand, literals, split_group
from vllm.parser.chat_format.tags import TagPattern
from vllm.parser.chat_format.template import load_served_template, load_template

T1 = recorded("beam_parse")["templates"]["T1"]
FIELDS = "response_template.fields"


def changed(path, value=None):
    """T1 with the entry at `path` set, or removed if `value` is None."""
    spec = copy.deepcopy(T1)
    *parents, last = path.split("/")
    place = spec
    for name in parents:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return spec


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        ([], "response_template:"),
        (changed("version", 2), "response_template.version"),
        (changed("version", True), "response_template.version"),
        (changed("extra", 1), "response_template: unknown keys ['extra']"),
        (changed("defaults", []), "response_template.defaults"),
        (changed("fields", {}), "response_template.fields"),
        (changed("fields", []), "response_template.fields"),
        (changed("start_anchor"), "response_template: needs 'start_anchor'"),
        (changed("start_anchor_pattern", "x"), "response_template: gives both 'start_anchor'"),
        (changed("start_anchor", ""), "response_template.start_anchor: must not be an empty string"),
        (changed("fields/thinking", 3), f"{FIELDS}.thinking: must be an object"),
        (changed("fields/thinking/colour", 3), f"{FIELDS}.thinking: unknown keys ['colour']"),
        (changed("fields/thinking/open", 3), f"{FIELDS}.thinking.open: must be a string or a list"),
        (changed("fields/thinking/open", []), f"{FIELDS}.thinking.open: must list at least one"),
        (changed("fields/thinking/open", ["a", 1]), f"{FIELDS}.thinking.open[1]: must be a string"),
        (changed("fields/thinking/close", ["a", ""]), f"{FIELDS}.thinking.close: must not be an empty string"),
        (changed("fields/thinking/open_pattern", "x"), f"{FIELDS}.thinking: gives both 'open'"),
        (changed("fields/tool_calls/open_pattern", "("), f"{FIELDS}.tool_calls.open_pattern: is not a valid"),
        (changed("fields/tool_calls/open_pattern", 5), f"{FIELDS}.tool_calls.open_pattern: must be a regular"),
        (changed("fields/tool_calls/transform"), f"{FIELDS}.tool_calls: named groups ['name']"),
        (changed("fields/tool_calls/transform/type", "{name}!"), f"{FIELDS}.tool_calls.transform.type: "),
        (changed("fields/tool_calls/repeats", 1), f"{FIELDS}.tool_calls.repeats: must be true or false"),
        (changed("fields/tool_calls/join", 1), f"{FIELDS}.tool_calls.join: must be a string"),
        (changed("fields/thinking/join", "\n"), f"{FIELDS}.thinking.join: needs 'repeats'"),
        (changed("fields/thinking/transform_each", True), f"{FIELDS}.thinking.transform_each: is set"),
        (changed("fields/content/content", "yaml"), f"{FIELDS}.content.content: unknown kind 'yaml'"),
        (changed("fields/content/content_args", []), f"{FIELDS}.content.content_args: must be an object"),
        (changed("fields/tool_calls/content_args/tag_pattern"), f"{FIELDS}.tool_calls.content_args.tag_pattern"),
        (changed("fields/tool_calls/content_args/tag_pattern", "(?P<key>x)"), "lacks ['value']"),
        (changed("fields/tool_calls/content_args/value_parser", {"name": "x"}), "value_parser.content: unknown kind"),
    ],
)
def test_errors_name_the_place(spec, where):
    with pytest.raises(ResponseTemplateError) as caught:
        load_template(spec)
    assert where in str(caught.value)


def test_two_implicit_fields_are_refused():
    spec = changed("fields/thinking/open")
    del spec["fields"]["content"]["open"]
    with pytest.raises(
        ResponseTemplateError, match=r"only one field may lack an opener, but \['thinking', 'content'\]"
    ):
        load_template(spec)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (changed("fields/plan", {"open": "<p>"}), f"{FIELDS}.plan: cannot be served"),
        (changed("defaults", {"role": "a", "name": "b"}), "response_template.defaults.name: cannot be served"),
        (changed("fields/thinking/content", "json"), f"{FIELDS}.thinking.content: 'json' cannot be streamed"),
        (changed("fields/content/transform", "{content}"), f"{FIELDS}.content.transform"),
    ],
)
def test_what_the_server_cannot_route(spec, where):
    load_template(spec)
    with pytest.raises(ResponseTemplateError) as caught:
        load_served_template(spec)
    assert where in str(caught.value)


def test_served_form_reads_unmarked_text_only_without_an_answer_field():
    assert load_served_template(T1).implicit is None
    spec = changed("fields/content")
    assert load_served_template(spec).implicit == "content"
    assert all(
        field.optional for field in load_served_template(changed("fields/content/optional", False)).fields.values()
    )


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(?:^|<\|start\|>assistant)<x>", [("<x>", True, ""), ("<|start|>assistant<x>", False, "")]),
        (r"\n(?:</p>|(?=<p))", [("\n</p>", False, ""), ("\n", False, "<p")]),
        ("a|b|abc", [("a", False, ""), ("b", False, ""), ("abc", False, "")]),
        ("(?:x|xy)?z", [("xz", False, ""), ("xyz", False, ""), ("z", False, "")]),
    ],
)
def test_expansion(pattern, expected):
    assert [(item.text, item.at_start, item.ahead) for item in expand(pattern)] == expected


@pytest.mark.parametrize("pattern", ["a+", "[^x]", "(", r"\bx", "x$", "(?i)x", "(?=x)y", "(?:a|b|c|d|e|f|g|h|i)" * 4])
def test_no_expansion_is_guessed(pattern):
    assert expand(pattern) is None


def test_literals_need_no_context():
    assert literals("<a>|<b>") == ("<a>", "<b>")
    assert literals("^<a>") is None
    assert literals("<a>(?=b)") is None


def test_cutting_a_pattern_at_its_group():
    assert split_group('<p k="(?P<key>[^")]+)">', "key") == ('<p k="', '[^")]+', '">')
    assert split_group("(?:(?P<key>x))", "key") is None
    assert split_group("a(?P<key>x)?", "key") is None
    assert split_group("a|(?P<key>x)", "key") is None


@pytest.mark.parametrize(
    "pattern",
    [
        r"<(?P<key>\w+)>(?P<value>.*?)</(?P=key)>",
        r"<p (?P<key>\w+)>(?P<value>[^<]*)</p>",
        r"(?i)<p (?P<key>\w+)>(?P<value>.*?)</p>",
        r"(?:<p (?P<key>\w+)>(?P<value>.*?)</p>)",
    ],
)
def test_patterns_that_cannot_be_cut_are_searched_whole(pattern):
    tags = TagPattern.of(pattern)
    assert tags.tail is None
    assert list(TagPattern.of(r"<p (?P<key>\w+)>(?P<value>.*?)</p>").pairs("<p a>1</p>x<p b>2</p>")) == [
        ("a", "1"),
        ("b", "2"),
    ]
    text = "<p>1</p>" if "(?P=key)" in pattern else "<p a>1</p>"
    assert list(tags.pairs(text)) == [("p" if "(?P=key)" in pattern else "a", "1")]
