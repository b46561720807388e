# SPDX-License-Identifier: Apache-2.0
"""Turn grammars against recorded accept and reject sets of request settings.

The recordings are values observed from vLLM 0.33.0 with xgrammar 0.2.8 on response templates
T1 to T3. Where this project decides otherwise, DEVIATIONS says what and why.
"""

from __future__ import annotations

import json

import pytest
from turn_harness import ByteMatcher, constrained, recorded, tag_of
from vllm.exceptions import VLLMValidationError
from vllm.parser.turn_grammar.template_format import turn_format

GOLDEN = recorded("turn_grammar_beam")
SETTINGS = {setting["name"]: setting for setting in GOLDEN["settings"]}

# (setting, text) -> our (accepted, complete, rejected byte).
# A closer inside a JSON string of an answer would end the answer when parsed and leave broken
# JSON, so the answer's JSON excludes the closers; the recording admits them.
DEVIATIONS = {
    (
        "json_schema",
        "<|channel|>analysis<|message|>r<|end|><|start|>assistant<|channel|>final"
        '<|message|>{"a": 1, "b": "<|end|>"}<|return|>',
    ): (False, False, 104),
}


def turn_of(setting):
    return turn_format(GOLDEN["templates"][setting["template"]])


@pytest.mark.parametrize("name", SETTINGS)
def test_setting(name):
    setting = SETTINGS[name]
    turn = turn_of(setting)
    if setting.get("error"):
        with pytest.raises(VLLMValidationError) as caught:
            constrained(setting, turn, GOLDEN["tools"])
        assert caught.value.parameter == (setting.get("error_parameter") or "tool_choice")
        return
    request = constrained(setting, turn, GOLDEN["tools"])
    tag = tag_of(request)
    if setting["constraint_left_as_requested"]:
        assert request.response_format is not None or request.structured_outputs is not None
        assert request.structured_outputs is None or tag is None
        return
    assert (tag is not None) == setting["has_tag"]
    assert request._grammar_from_parser == setting["grammar_from_parser"]
    if tag is None:
        return
    if setting["request"].get("api") == "responses":
        assert request.structured_outputs is None
    else:
        assert request.response_format is None
        assert request._grammar_from_tool_parser == setting["grammar_from_parser"]
    matcher = ByteMatcher(tag)
    wrong = []
    for text, accepted, complete, rejected in setting["strings"]:
        expected = DEVIATIONS.get((name, text), (accepted, complete, rejected))
        if matcher.read(text) != tuple(expected):
            wrong.append((text, matcher.read(text), expected))
    assert not wrong


def test_strings_tell_grammars_apart():
    """Control: the recorded strings of one setting fail under another setting's grammar."""
    tag = tag_of(constrained(SETTINGS["tools_required"], turn_of(SETTINGS["tools_required"]), GOLDEN["tools"]))
    matcher = ByteMatcher(tag)
    differing = [text for text, *expected in SETTINGS["tools_auto"]["strings"] if matcher.read(text) != tuple(expected)]
    assert len(differing) > 20


def test_tag_text_is_canonical():
    """The tag's text is xgrammar's cache key: the same request gives the same text."""
    texts = {
        tag_of(
            constrained(
                SETTINGS["tools_auto"], turn_of(SETTINGS["tools_auto"]), json.loads(json.dumps(GOLDEN["tools"]))
            )
        )
        for _ in range(3)
    }
    assert len(texts) == 1


SPECIAL = recorded("turn_grammar_special_tokens")


@pytest.mark.parametrize("index", range(len(SPECIAL["cases"])))
def test_allowed_special_tokens(index):
    case = SPECIAL["cases"][index]
    name = case["setting"]
    base = dict(SETTINGS["tools_auto"])
    base["request"] = {"no_tools": {"tools": None}, "tools_auto": {}, "tools_required": {"tool_choice": "required"}}[
        name
    ]
    tag = tag_of(constrained(base, turn_of(base), GOLDEN["tools"]))
    matcher = ByteMatcher(tag, SPECIAL["special_tokens"], case["tokenizer_stop_tokens"])
    assert matcher.allowed(case["generated"], case["override_stop_tokens"]) == (case["allowed_special_tokens"])
