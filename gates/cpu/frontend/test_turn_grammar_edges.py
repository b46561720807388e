# SPDX-License-Identifier: Apache-2.0
"""Constraints at the edge of what a turn can carry: grammars without an end, budgets beside what clashes with them."""

from __future__ import annotations

import pytest
import xgrammar as xgr
from turn_harness import recorded, request_of, tag_of
from vllm.exceptions import VLLMValidationError
from vllm.parser.turn_grammar import productive
from vllm.parser.turn_grammar.muse_format import MUSE
from vllm.parser.turn_grammar.productive import dead_rules
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format

BEAM = turn_format(recorded("turn_grammar_beam")["templates"]["T1"])
BEAM_PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
MUSE_PROMPT = "<|start|>user<|message|>Hi<|eot|><|start|>assistant"


def constrain(fields, tools=None, turn=BEAM, prompt=None):
    prompt = prompt or (BEAM_PROMPT if turn is BEAM else MUSE_PROMPT)
    return constrain_request(request_of(fields, tools), turn, prompt=prompt, serving=Serving())


def refused(fields, tools=None, turn=BEAM, prompt=None):
    with pytest.raises(VLLMValidationError) as caught:
        constrain(fields, tools, turn, prompt)
    return caught.value


DEAD = {
    "root ::= root": "root",
    'root ::= "a" b\nb ::= b "x"': "b",
    'root ::= "a" | "c" b\nb ::= "x" c\nc ::= b': "b",
    "root ::= b{2,3}\nb ::= b": "b",
}
ALIVE = [
    'root ::= "a" root | "b"',
    'root ::= b{0,3} "x|\\"(y)"\nb ::= "z" b?',
    'root ::= [^b]* (b | [|(=]+)\nb ::= "" | b "q"',
    'root ::= "a"\nunused ::= unused',
]


@pytest.mark.parametrize("grammar", DEAD)
def test_a_grammar_that_never_ends_is_refused(grammar):
    error = refused({"structured_outputs": {"grammar": grammar}})
    assert error.parameter == "structured_outputs"
    assert DEAD[grammar] in str(error)


@pytest.mark.parametrize(("last", "dead"), [('"a"', 0), ('"x" r2999', 3001)])
def test_a_long_chain_of_rules_is_read_once(last, dead, monkeypatch):
    """Its rules come in the worst order: each is known only when the next one is."""
    chain = "".join(f'r{n} ::= "x" r{n + 1}\n' for n in range(2999))
    text = f'root ::= "y" r0\n{chain}r2999 ::= {last}\n'
    looks = []
    real = productive._alternatives

    class Needed(set):
        def __len__(self):
            looks.append(self)
            return super().__len__()

        def __le__(self, other):
            looks.append(self)
            return super().__le__(other)

    monkeypatch.setattr(productive, "_alternatives", lambda body: [Needed(needed) for needed in real(body)])
    assert len(dead_rules(text)) == dead
    assert len(looks) <= 2 * 3001


@pytest.mark.parametrize("grammar", ALIVE)
def test_grammars_that_end_are_served(grammar):
    assert dead_rules(xgr.Grammar.from_ebnf(grammar)) == []
    assert tag_of(constrain({"structured_outputs": {"grammar": grammar}}))


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"min_tokens": 1}, "min_tokens"),
        ({"allowed_token_ids": [65, 66]}, "allowed_token_ids"),
        ({"bad_words": ["<|"]}, "bad_words"),
        ({"use_beam_search": True}, "use_beam_search"),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "z"}}},
            "thinking_token_budget",
        ),
    ],
)
def test_a_budget_that_nothing_would_hold_is_refused(fields, parameter):
    assert refused({**fields, "thinking_token_budget": 2}).parameter == parameter
    assert refused({**fields, "thinking_token_budget": 2}, turn=MUSE).parameter == parameter
    constrain(fields)
    constrain({**fields, "thinking_token_budget": -1})


JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#/x"}}}
NOT_HELD = [
    ({"structured_outputs": {"regex": "(?i)abc"}}, "modifier"),
    ({"structured_outputs": {"regex": "(?=a)b"}}, "ookahead"),
    ({"structured_outputs": {"regex": "["}}, "Unclosed"),
    ({"structured_outputs": {"regex": ""}}, "non-empty"),
    ({"structured_outputs": {"json": "5"}}, "object"),
    ({"structured_outputs": {"json": {"type": "integer", "minimum": 5, "maximum": 1}}}, "range"),
    ({"structured_outputs": {"json_object": False}}, "send true"),
    ({"structured_outputs": {"choice": []}}, "empty"),
    ({"structured_outputs": {"grammar": "root ::="}}, "EBNF"),
    ({"response_format": JSON_SCHEMA}, "'x'"),
    ({"api": "responses", "text": {"format": {"type": "json_schema", "name": "s", "schema": {"$ref": "#/x"}}}}, "'x'"),
]


@pytest.mark.parametrize(("fields", "reason"), NOT_HELD)
@pytest.mark.parametrize("budget", [{}, {"thinking_token_budget": 2}])
def test_a_constraint_that_no_turn_holds_is_refused_by_its_name(fields, reason, budget):
    """vLLM would take it to another library, which an engine with turn grammars does not have: an internal error."""
    for turn in (BEAM, MUSE):
        error = refused({**fields, **budget}, turn=turn)
        assert error.parameter == next(name for name in fields if name != "api")
        assert reason in str(error)
        assert ".cc:" not in str(error)


def test_a_budget_holds_where_plain_turns_are_free(monkeypatch):
    monkeypatch.setenv("VLLM_BEAM_ALWAYS_CONSTRAIN_OUTPUT", "0")
    assert tag_of(constrain({})) is None
    assert '"max_tokens"' in tag_of(constrain({"thinking_token_budget": 2}))


def test_messages_name_the_parser():
    request = request_of({"tool_choice": "required"}, [{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(VLLMValidationError, match="muse cannot guarantee required"):
        constrain_request(request, MUSE, prompt=MUSE_PROMPT, serving=Serving(tool_parser=False))


@pytest.mark.parametrize("fields", [{"allowed_token_ids": [65, 66]}, {"bad_words": ["<|start|>"]}])
def test_masks_that_may_leave_no_token_are_served_without_a_grammar(fields):
    """Or refused, where the turn needs one; other words do not touch it."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    for turn in (BEAM, MUSE):
        assert tag_of(constrain(fields, turn=turn)) is None
        assert refused({**fields, "response_format": {"type": "json_object"}}, turn=turn).parameter == next(
            iter(fields)
        )
        assert refused({**fields, "tool_choice": "required"}, tools, turn=turn).parameter == next(iter(fields))
        assert tag_of(constrain({"bad_words": ["secret"]}, turn=turn))


def test_a_prompt_without_the_assistants_beginning_holds_nothing():
    prompt = BEAM_PROMPT.removesuffix("<|start|>assistant")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert refused({"tool_choice": "required"}, tools, prompt=prompt).parameter == "tool_choice"
    error = refused({"response_format": {"type": "json_object"}}, prompt=prompt)
    assert error.parameter == "add_generation_prompt"
    constrain({}, prompt=prompt)
