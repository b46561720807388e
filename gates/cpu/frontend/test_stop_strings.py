# SPDX-License-Identifier: Apache-2.0
"""A client's stop strings end its answer, and nothing else of the turn."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_turns import parser_class, recorded, request_for
from toy_tokenizer import ToyTokenizer
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.answer_stops import AnswerScan, AnswerStops
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer

OPENER, CLOSERS = "<|channel|>final<|message|>", ("<|return|>", "<|end|><|start|>assistant")
REGIONS = [(OPENER, CLOSERS)]
THINKING = "<|channel|>analysis<|message|>stop here, assistant\n<|end|><|start|>assistant"
CALL = ' to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name="a">\nb\n</rfl:parameter><|call|>'
FORMATS = {
    "beam": (THINKING + OPENER, "<|start|>assistant", "T1"),
    "muse": (" to=self<|message|>stop, user\n<|eom|><|start|>assistant to=user<|message|>", "<|start|>assistant", None),
}


class Detokenizer(BaseIncrementalDetokenizer):
    """vLLM's own, over tokens that are pieces of a text."""

    def decode_next(self, next_token_id):
        return next_token_id


def tokens(text):
    """Markers whole, all other text by characters."""
    return re.findall(r"<\|[a-z]+\|>|.", text, re.DOTALL)


def generated(text, stops, size=1, **given):
    """(output, the stop string that ended it) of `text`, `size` tokens a step."""
    params = SamplingParams(stop=stops, max_tokens=1000, **given)
    detokenizer, seen = Detokenizer(SimpleNamespace(sampling_params=params)), ""
    pieces = tokens(text)
    for at in range(0, len(pieces), size):
        stop = detokenizer.update(pieces[at : at + size], stop_terminated=False)
        seen += detokenizer.get_next_output_text(finished=stop is not None, delta=True)
        if stop is not None:
            break
    else:
        stop = None
        seen += detokenizer.get_next_output_text(finished=True, delta=True)
    assert seen == detokenizer.output_text
    return seen, stop


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("word", ["stop", "assistant", "final", "\n", "|", "<", "message|>"])
def test_the_detokenizer_stops_in_the_answer_alone(word, size):
    lead = THINKING + OPENER
    assert generated(lead + "yes and no<|return|>", AnswerStops([word], REGIONS), size) == (
        lead + "yes and no<|return|>",
        None,
    )
    assert generated(f"{lead}yes {word} no", AnswerStops([word], REGIONS), size) == (lead + "yes ", word)
    kept = generated(f"{lead}yes {word} no", AnswerStops([word], REGIONS), size, include_stop_str_in_output=True)
    assert kept == (f"{lead}yes {word}", word)


def test_control_an_ordinary_list_stops_in_a_marker():
    assert generated(THINKING + OPENER + "yes", ["final"]) == (THINKING + "<|channel|>", "final")


def test_calls_are_not_cut():
    assert generated(THINKING + CALL, AnswerStops(["\n", "b"], REGIONS)) == (THINKING + CALL, None)


@pytest.mark.parametrize("word", ["a", "assist", "<|end|>", "<|start|>", "|>a"])
@pytest.mark.parametrize("size", [1, 2, 50])
def test_a_header_behind_a_visible_message_does_not_stop_the_call(word, size):
    """Its last word may come in pieces."""
    text = OPENER + "To begin with." + "<|end|><|start|>assistant" + CALL
    assert generated(text, AnswerStops([word], REGIONS), size) == (text, None)


def test_what_only_looked_like_a_closer_is_answer():
    text, seen = OPENER + "one<|end|><|start|>asp and more", ""
    scans = {word: AnswerScan(AnswerStops([word], REGIONS)) for word in ("as", "<|start|>")}
    found = {word: AnswerScan(AnswerStops([word], REGIONS)).find(text) for word in scans}
    assert found == {word: (word, text.index(word)) for word in scans}
    for piece in tokens(text):
        seen += piece
        if seen.endswith("asp"):
            break
        assert not any(scan.find(seen) for scan in scans.values())
    assert {word: scan.find(seen) for word, scan in scans.items()} == found


def test_the_earliest_stop_counts_and_the_first_listed_of_two_at_one_place():
    text = OPENER + "one two three"
    for size in (1, 4, 100):
        assert generated(text, AnswerStops(["three", "two"], REGIONS), size) == (OPENER + "one ", "two")
    assert generated(text, AnswerStops(["tw", "two"], REGIONS), 100)[1] == "tw"


def test_min_tokens_are_written_first():
    text = OPENER + "a.b.c"
    stops = AnswerStops(["."], REGIONS)
    assert generated(text, stops, min_tokens=len(tokens(OPENER)) + 2) == (OPENER + "a.b", ".")
    assert generated(text, stops, min_tokens=100) == (text, None)


@pytest.mark.parametrize(
    ("written", "output", "expected"),
    [
        (OPENER + "begun", " and.on", (" and", ".")),
        (OPENER + "be.gun", "on", ("on", None)),
        ("<|channel|>fin", "al<|message|>x.y", ("al<|message|>x", ".")),
        ("<|channel|>analysis<|message|>so.", "far.<|end|><|start|>assistant", ("far.<|end|><|start|>assistant", None)),
        (OPENER + "be.gun<|return|>", "a.b", ("a.b", None)),
    ],
)
def test_a_prompt_may_have_begun_the_turn(written, output, expected):
    for size in (1, 2, 50):
        assert generated(output, AnswerStops(["."], REGIONS, written), size) == expected


def test_choices_of_one_request_do_not_share_their_place():
    stops = AnswerStops(["."], REGIONS)
    first, second = AnswerScan(stops), AnswerScan(stops)
    assert first.find(OPENER + "a.") == (".", len(OPENER) + 1)
    assert second.find("a.") is None


PIECES = st.lists(
    st.sampled_from([OPENER, "<|return|>", "<|end|>", "<|start|>assistant", "ab", "a", "b", "<|", ".", "final"]),
    max_size=14,
)


@given(pieces=PIECES, written=PIECES, stops=st.lists(st.sampled_from(["a", "ab", "ba", ".", "<|", "aa"]), min_size=1))
def test_any_chunking_finds_the_same(pieces, written, stops):
    text, given_stops = "".join(pieces), AnswerStops(stops, REGIONS, "".join(written))
    whole = AnswerScan(given_stops).find(text)
    scan, found, seen = AnswerScan(given_stops), None, ""
    for piece in tokens(text):
        seen += piece
        if (found := scan.find(seen)) is not None:
            break
    # One that ends earlier may begin later.
    assert (found is None) == (whole is None)
    if found and whole:
        assert found[1] + len(found[0]) <= whole[1] + len(whole[0])
        inside = "".join(written) + text[: found[1]]
        opened = inside.rfind(OPENER)
        assert opened >= 0
        assert not any(closer in inside[opened:] for closer in CLOSERS)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("given", ["stop", ["stop", "user"]])
def test_the_parser_says_where_the_answer_is(name, given):
    lead, anchor, template = FORMATS[name]
    data = recorded(f"{name}_parse")
    tokenizer = ToyTokenizer(data["special_tokens"], data.get("templates", {}).get(template))
    options = {"request": {"stop": given}, "reasoning_parser": name, "tool_parser": name, "enable_auto_tools": True}
    request = request_for(options, data["tools"])
    parser = parser_class(options)(tokenizer, request.tools)
    parser.set_prompt_token_ids(tokenizer.encode(f"<|start|>user<|message|>Hi{anchor}"))
    parser.adjust_request(request)
    assert list(request.stop) == ([given] if isinstance(given, str) else given)
    params = request.to_sampling_params(100, {})
    assert generated(f"{lead}now stop it", params.stop) == (f"{lead}now ", "stop")


def test_without_a_reasoning_parser_thinking_is_the_answer():
    data = recorded("beam_parse")
    tokenizer = ToyTokenizer(data["special_tokens"], data["templates"]["T1"])
    options = {"request": {"stop": ["x"]}, "reasoning_parser": None, "tool_parser": "beam", "enable_auto_tools": True}
    request = request_for(options, data["tools"])
    parser = parser_class(options)(tokenizer, request.tools)
    parser.set_prompt_token_ids(tokenizer.encode("<|start|>assistant"))
    parser.adjust_request(request)
    assert type(request.stop) is list
