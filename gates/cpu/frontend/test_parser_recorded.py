# SPDX-License-Identifier: Apache-2.0
"""Both parsers against recorded outputs: full parse, every chunking, boundaries of text deltas, reasoning tokens."""

import json
import re
from pathlib import Path

import deviations
import pytest
from parser_turns import build, chunks_of, full, join, recorded, stream, text_deltas, tokenizer_for

BEAM, MUSE = recorded("beam_parse"), recorded("muse_parse")


def cases(data):
    return [pytest.param(case, id=case["name"]) for case in data["cases"]]


@pytest.mark.parametrize("case", cases(BEAM))
def test_beam_full_parse(case):
    assert full(BEAM, case) == case["expected"]


@pytest.mark.parametrize("case", cases(MUSE))
def test_muse_full_parse(case):
    listed = deviations.MUSE_FULL.get(case["name"])
    if listed is None:
        assert full(MUSE, case) == case["expected"]
        return
    assert full(MUSE, case) == listed[1]
    assert listed[1] != case["expected"], "a listed deviation that is none"


def _check_streams(data, case, listed_calls, listed_deltas):
    whole = full(data, case)
    if case["options"]["request"].get("include_reasoning") is False:
        whole = {**whole, "reasoning": None}
    for recording in case["streams"]:
        deltas = stream(data, case, chunks_of(case["text"], recording))
        joined = join(deltas)
        if case["name"] in listed_calls:
            calls = listed_calls[case["name"]][1]
            if calls is not None:
                assert joined["tool_calls"] == calls
                assert calls != whole["tool_calls"], "a listed deviation that is none"
            else:
                _assert_open_value(joined["tool_calls"], whole["tool_calls"])
            joined["tool_calls"] = whole["tool_calls"]
        assert joined == whole, recording["chunking"]
        if case["name"] not in listed_deltas and recording.get("joined", whole) == whole:
            assert text_deltas(deltas) == sorted(recording["text_deltas"], key=lambda item: (item[0], item[1] != "r"))


def _assert_open_value(sent, parsed):
    assert [call["name"] for call in sent] == [call["name"] for call in parsed]
    assert sent[-1]["arguments"].startswith(parsed[-1]["arguments"].removesuffix("}"))
    with pytest.raises(json.JSONDecodeError):
        json.loads(sent[-1]["arguments"])


@pytest.mark.parametrize("case", cases(BEAM))
def test_beam_streams(case):
    _check_streams(BEAM, case, deviations.BEAM_STREAM, {})


@pytest.mark.parametrize("case", cases(MUSE))
def test_muse_streams(case):
    _check_streams(MUSE, case, deviations.MUSE_STREAM, deviations.MUSE_DELTAS)


@pytest.mark.parametrize(("data", "case"), [(data, case) for data in (BEAM, MUSE) for case in data["cases"]])
def test_reasoning_tokens_and_end(data, case):
    parser, _, prompt = build(data, case)
    tokenizer = tokenizer_for(data, case)
    parser.set_prompt_token_ids(prompt)
    assert parser.count_reasoning_tokens(tokenizer.encode(case["text"])) == case["reasoning_tokens"]
    if parser.reasoning_parser is not None:
        assert parser.is_reasoning_end(prompt) is case["prompt_reasoning_end"]


@pytest.mark.parametrize("case", cases(BEAM))
def test_reasoning_tokens_counted_step_by_step(case):
    parser, _, prompt = build(BEAM, case)
    parser.set_prompt_token_ids(prompt)
    ids = tokenizer_for(BEAM, case).encode(case["text"])
    counts = [parser.count_reasoning_tokens(ids[:end]) for end in range(len(ids) + 1)]
    assert counts[-1] == case["reasoning_tokens"]


def test_every_listed_deviation_has_a_case():
    names = {case["name"] for data in (BEAM, MUSE) for case in data["cases"]}
    listed = {**deviations.MUSE_FULL, **deviations.MUSE_STREAM, **deviations.BEAM_STREAM, **deviations.MUSE_DELTAS}
    assert set(listed) <= names


def test_the_document_lists_every_deviation():
    text = (Path(__file__).parents[3] / "docs" / "muse-parser.md").read_text(encoding="utf-8")
    table = text[text.index("## Recorded cases") :]
    listed = {**deviations.MUSE_FULL, **deviations.MUSE_STREAM, **deviations.BEAM_STREAM, **deviations.MUSE_DELTAS}
    assert set(re.findall(r"`([a-z]\w+)`", table)) == set(listed)
