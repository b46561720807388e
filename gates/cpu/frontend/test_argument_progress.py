# SPDX-License-Identifier: Apache-2.0
"""Streamed arguments: how soon they come, and that every prefix is one of the final string."""

import pytest
from parser_turns import recorded, stream

DATA = recorded("argument_progress")
BEAM, MUSE = recorded("beam_parse"), recorded("muse_parse")


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: f"{case['model']}-{case['name']}")
def test_progress(case):
    data = BEAM if case["model"] == "beam" else MUSE
    deltas = stream(data, {**case, "template": "T1", "prompt": case["prompt_text"]}, list(case["text"]))
    checkpoints = dict((fed, wanted) for fed, wanted in case["checkpoints"])
    sent = []
    for fed, delta in enumerate(deltas, start=1):
        for call in delta.tool_calls if delta is not None else ():
            if call.id is not None:
                sent.append([call.function.name, ""])
            sent[call.index][1] += call.function.arguments
        for (name, arguments), final in zip(sent, case["final"], strict=False):
            assert name == final["name"]
            assert final["arguments"].startswith(arguments)
        for index, (name, least) in enumerate(checkpoints.get(fed, ())):
            assert len(sent) > index, f"{name} is not announced after {fed} characters"
            assert sent[index][0] == name
            assert len(sent[index][1]) >= least, f"{name} after {fed} characters"
    assert [{"name": name, "arguments": arguments} for name, arguments in sent] == case["final"]


def test_a_held_stream_would_fail():
    """The control: a parser that sends a call only when it is complete misses the minimum."""
    case = next(case for case in DATA["cases"] if case["name"] == "call_long_argument")
    assert max(least for _, wanted in case["checkpoints"] for _, least in wanted) > 1000
    assert any(least for fed, wanted in case["checkpoints"] if fed < len(case["text"]) - 40 for _, least in wanted)
