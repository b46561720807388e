# SPDX-License-Identifier: Apache-2.0
"""Command-line names, the one class they stand for, and the check of a tokenizer at start."""

import pytest
from parser_turns import recorded
from toy_tokenizer import ToyTokenizer
from vllm.parser.beam import BeamParser
from vllm.parser.muse import MuseParser
from vllm.parser.parser_manager import ParserManager
from vllm.parser.response_template import ResponseTemplateParser, template_of
from vllm.parser.unified import UnifiedParser, adjusts_always, check_tokenizer
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

BEAM = recorded("beam_parse")
T1 = BEAM["templates"]["T1"]
CLASSES = {"beam": BeamParser, "muse": MuseParser, "response_template": ResponseTemplateParser}


def select(reasoning, tool, auto=True):
    return ParserManager.get_parser(tool_parser_name=tool, reasoning_parser_name=reasoning, enable_auto_tools=auto)


@pytest.mark.parametrize("name", CLASSES)
def test_one_class_stands_for_both_flags(name):
    assert name in ReasoningParserManager.list_registered()
    assert name in ToolParserManager.list_registered()
    for flags, has_reasoning, has_tools in (
        ((name, name), True, True),
        ((name, None), True, False),
        ((None, name), False, True),
    ):
        cls = select(*flags)
        assert issubclass(cls, CLASSES[name])
        assert (cls.reasoning_parser_cls is not None, cls.tool_parser_cls is not None) == (has_reasoning, has_tools)
        assert adjusts_always(cls)


def test_selections_do_not_share_settings():
    assert select("beam", "beam").tool_parser_cls is not None
    assert select("beam", "beam", auto=False).tool_parser_cls is None
    assert BeamParser.enable_auto_tools is False


@pytest.mark.parametrize(
    ("reasoning", "tool"), [("beam", "muse"), ("beam", "qwen3_xml"), ("qwen3", "muse"), ("beam", "response_template")]
)
def test_two_formats_are_refused(reasoning, tool):
    with pytest.raises(TypeError, match="cannot be combined") as caught:
        select(reasoning, tool)
    assert reasoning in str(caught.value)
    assert tool in str(caught.value)


def test_other_parsers_are_left_alone():
    cls = select("qwen3", "qwen3_xml")
    assert not issubclass(cls, UnifiedParser)
    assert not adjusts_always(cls)
    assert not adjusts_always(None)
    check_tokenizer(cls, object(), "m")


def _without(field):
    return {**T1, "fields": {name: spec for name, spec in T1["fields"].items() if name != field}}


@pytest.mark.parametrize(
    ("name", "template", "problem"),
    [
        ("beam", None, "no 'response_template'"),
        ("response_template", None, "no 'response_template'"),
        ("beam", _without("thinking"), "no 'thinking' field"),
        ("beam", _without("tool_calls"), "no 'tool_calls' field"),
        ("beam", {**T1, "version": 2}, "response_template.version"),
    ],
)
def test_unfit_tokenizer_fails_at_start(name, template, problem):
    tokenizer = ToyTokenizer(BEAM["special_tokens"], template)
    with pytest.raises(TypeError) as caught:
        check_tokenizer(select(name, name), tokenizer, "org/model")
    message = str(caught.value)
    assert problem in message
    assert f"--reasoning-parser {name} and --tool-call-parser {name}" in message
    assert "org/model" in message


def test_only_what_is_parsed_is_demanded():
    check_tokenizer(select(None, "beam"), ToyTokenizer(BEAM["special_tokens"], _without("thinking")), "m")
    check_tokenizer(select("beam", None), ToyTokenizer(BEAM["special_tokens"], _without("tool_calls")), "m")
    check_tokenizer(select("beam", "beam"), None, "m")


def test_muse_needs_its_markers():
    with pytest.raises(TypeError, match=r"lacks \['<\|eom\|>'\]"):
        check_tokenizer(select("muse", "muse"), ToyTokenizer(["<|start|>", "<|message|>", "<|eot|>"]), "m")
    check_tokenizer(select("muse", "muse"), ToyTokenizer(recorded("muse_parse")["special_tokens"]), "m")


def test_template_comes_from_the_tokenizer_either_way():
    tokenizer = ToyTokenizer(BEAM["special_tokens"], T1)
    assert template_of(tokenizer) == T1
    tokenizer.response_template = {"version": 1}
    assert template_of(tokenizer) == {"version": 1}
