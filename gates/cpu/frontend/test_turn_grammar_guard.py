# SPDX-License-Identifier: Apache-2.0
"""A client's own regex, EBNF or sized strings cannot write what closes the answer, as a token or spelled out."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import xgrammar as xgr
from test_turn_grammar_hooks import PROMPT, TEMPLATE, ByteTokenizer, allowed, manager
from turn_harness import ByteMatcher, request_of, tag_of
from vllm.parser.turn_grammar.guarded import guard_of
from vllm.parser.turn_grammar.muse_format import MUSE
from vllm.parser.turn_grammar.request import Serving, constrain_request
from vllm.parser.turn_grammar.template_format import turn_format
from vllm.sampling_params import SamplingParams
from vllm.v1.structured_output.backend_types import StructuredOutputOptions

ANSWER = "<|channel|>analysis<|message|>r<|end|><|start|>assistant<|channel|>final<|message|>"
SIZED = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"]}
PATTERNED = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[^b]*$"}}, "required": ["a"]}
# A constraint and the beginning of an answer, inside of which a closer is text to the constraint.
BODIES = {
    "regex": ({"regex": "[^b]{12}"}, "aa"),
    "any": ({"regex": r"(.|\n)*"}, "aa"),
    "ebnf": ({"grammar": "root ::= [^b]{12}"}, "aa"),
    "sized json": ({"json": SIZED}, '{"a": "a'),
    "json pattern": ({"json": PATTERNED}, '{"a": "a'),
}


def tag(fields, turn=None):
    made = constrain_request(
        request_of({"structured_outputs": fields}, None),
        turn or turn_format(TEMPLATE),
        prompt=PROMPT,
        serving=Serving(),
    )
    return tag_of(made)


def grammar_of(fields, text=None):
    params = SamplingParams()
    params._all_stop_token_ids = {ByteTokenizer.ids["<|return|>"]}
    key = (StructuredOutputOptions.STRUCTURAL_TAG, text or tag(fields))
    request = SimpleNamespace(
        request_id="r", sampling_params=params, structured_output_request=SimpleNamespace(structured_output_key=key)
    )
    return manager()._create_grammar(request)


def unguarded(text):
    return text.replace('"guarded"', '"other"')


@pytest.mark.parametrize("name", BODIES)
def test_the_closer_is_no_text_of_the_answer(name):
    fields, begun = BODIES[name]
    held, free = grammar_of(fields), grammar_of(fields, unguarded(tag(fields)))
    for grammar in (held, free):
        assert grammar.accept_tokens("r", list((ANSWER + begun).encode()))
    closing = {"<|end|>", "<|return|>"}
    assert closing & set(allowed(free))  # control: what the constraint itself admits
    if name != "any":
        assert not closing & set(allowed(held))
    assert not held.accept_tokens("r", list(b"<|end|>aaa"))


@pytest.mark.parametrize("name", BODIES)
def test_every_other_text_is_still_the_clients(name):
    fields, begun = BODIES[name]
    rest = '<|e"}' if "json" in name else "<|end-aaaa"
    held = grammar_of(fields)
    assert held.accept_tokens("r", list((ANSWER + begun + rest).encode()))
    assert {"<|return|>"} <= set(allowed(held))
    assert held.accept_tokens("r", [ByteTokenizer.ids["<|return|>"]])
    assert held.is_terminated()


def test_drafts_and_rollbacks_hold_both():
    held = grammar_of({"regex": "[^b]{30}"})
    assert held.accept_tokens("r", list((ANSWER + "aa").encode()))
    before = allowed(held)
    draft = list(b"a<|end|>a")
    assert held.validate_tokens(draft) == draft[:7]
    assert allowed(held) == before
    assert held.accept_tokens("r", draft[:7])
    held.rollback(7)
    assert allowed(held) == before
    assert held.accept_tokens("r", list(b"a" * 28))
    held.reset()
    assert held.accept_tokens("r", list(ANSWER.encode()))


@pytest.mark.parametrize("name", ["regex", "sized json"])
def test_no_text_leads_where_no_token_is_left(name):
    """The closer spelled out: its last character would be the guard's to refuse."""
    fields, ended = {"regex": ({"regex": "[a-z]{1,9}"}, "ab"), "sized json": ({"json": SIZED}, '{"a": "ab"}')}[name]
    held = grammar_of(fields)
    assert held.accept_tokens("r", list((ANSWER + ended).encode()))
    assert "<|return|>" in allowed(held)
    assert ord("<") not in tokens(held)
    free = manager().backend.compile_grammar(StructuredOutputOptions.STRUCTURAL_TAG, tag(fields))
    assert free.accept_tokens("r", list((ANSWER + ended).encode()))
    assert ord("<") in tokens(free)  # control: as the tag is written


def tokens(grammar):
    mask = xgr.allocate_token_bitmask(1, grammar.vocab_size)
    grammar.fill_bitmask(mask, 0)
    return {token for token in range(grammar.vocab_size) if mask[0, token // 32].item() >> (token % 32) & 1}


@pytest.mark.parametrize("turn", [turn_format(TEMPLATE), MUSE], ids=["beam", "muse"])
@pytest.mark.parametrize("name", BODIES)
def test_the_guard_is_the_turn_with_free_text(turn, name):
    text = tag(BODIES[name][0], turn)
    guard = json.loads(guard_of(text))
    assert '"guarded"' not in json.dumps(guard)
    assert xgr.Grammar.from_structural_tag(json.dumps(guard)) is not None


def test_what_needs_no_guard_has_none():
    plain = constrain_request(request_of({}, None), turn_format(TEMPLATE), prompt=PROMPT, serving=Serving())
    assert guard_of(tag_of(plain)) is None
    assert guard_of(tag({"choice": ["guarded"]})) is None
    schema = {"type": "object", "properties": {"guarded": {"type": "object"}}, "required": ["guarded"]}
    assert guard_of(tag({"json": schema})) is None
    assert grammar_of({"json": schema}).guard is None


@pytest.mark.parametrize(("pattern", "held"), [("^[a-z]{2,4}-[0-9]+$", True), ("^[^b]*$", False), ("^.{1,9}$", False)])
def test_patterns_inside_an_arguments_json(pattern, held):
    """Held to, unless the pattern could write what ends the value; that is never written."""
    inner = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"o": inner}, "required": ["o"]}}
    made = constrain_request(
        request_of({"tool_choice": "required"}, [{"type": "function", "function": function}]),
        turn_format(TEMPLATE),
        prompt=PROMPT,
        serving=Serving(),
    )
    call = ANSWER.split("<|channel|>final")[0] + " to=f<|channel|>analysis <|constrain|>xml<|message|>"
    call += '<rfl:parameter name="o">\n{"a": "%s"}\n</rfl:parameter><|call|>'
    matcher = ByteMatcher(tag_of(made))
    assert matcher.read(call % "ab-12")[1]
    assert matcher.read(call % "AB")[0] is not held
    assert not matcher.read(call % "x<|call|>")[0]
