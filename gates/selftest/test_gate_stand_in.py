# SPDX-License-Identifier: Apache-2.0
"""The stand-in server shows what its gates look for, and a check knows when a penalty has nothing to turn."""

from __future__ import annotations

import math

import pytest

from gates.controls import toy_chat, toy_server
from gates.controls.toy_model import ToyModel
from gates.core.scoring import Continuation
from gates.device.api_sampling import open_places, turned

HELLO = {"role": "user", "content": "Hello"}


def _complete(**options: object) -> dict:
    body = {"prompt": "Hello", "max_tokens": 24, "ignore_eos": True, "temperature": 0, "logprobs": 3, **options}
    return toy_server.complete(ToyModel(), body)["choices"][0]


def test_greedy_tokens_do_not_all_score_alike() -> None:
    assert len({round(value, 6) for value in _complete()["logprobs"]["token_logprobs"]}) > 8


@pytest.mark.parametrize("only", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}])
def test_each_filter_alone_leaves_the_likeliest(only: dict) -> None:
    drawn = _complete(temperature=1, seed=9)["text"]
    assert drawn != _complete()["text"]
    assert _complete(temperature=1, seed=9, **only)["text"] == _complete()["text"]


def test_every_row_lists_its_token_and_no_more_than_certain() -> None:
    body = {"messages": [HELLO], "max_tokens": 12, "logprobs": True, "top_logprobs": 5}
    made = toy_chat.turns(ToyModel(), body)
    rows = toy_chat.chat_reply(made, body, "toy")["choices"][0]["logprobs"]["content"]
    for row in rows:
        listed = {entry["token"]: entry["logprob"] for entry in row["top_logprobs"]}
        assert listed[row["token"]] == row["logprob"]
        assert math.fsum(map(math.exp, listed.values())) <= 1
    streamed = [
        row
        for chunk in toy_chat.chat_chunks(made, body, "toy")
        for choice in chunk["choices"]
        for row in (choice.get("logprobs") or {}).get("content", [])
    ]
    assert streamed == rows


def test_earlier_messages_change_the_answer() -> None:
    system = {"role": "system", "content": "Be brief."}
    alone, with_system = ({"messages": m, "temperature": 0} for m in ([HELLO], [system, HELLO]))
    first, second = (toy_chat.turns(ToyModel(), body)[0].content for body in (alone, with_system))
    assert first != second


def test_where_a_penalty_must_turn_an_answer() -> None:
    near = Continuation((1, 1, 1), (-0.5, -0.5, -0.5), "length", ({1: -0.5, 2: -3.0}, {1: -0.5, 2: -1.0}, {1: -0.5}))
    assert turned(near, 2.0, by_count=False) == 1
    far = Continuation((1, 1, 1), (-0.1,) * 3, "length", ({1: -0.1, 2: -3.0},) * 3)
    assert turned(far, 2.0, by_count=False) is None, "once is not enough to reach the other token"
    assert turned(far, 2.0, by_count=True) == 2, "twice is"


def test_filters_are_tried_where_one_token_is_ahead_of_likely_others() -> None:
    rows = ({1: -0.1, 2: -4.0}, {1: -0.6, 2: -0.7}, {1: -0.9, 2: -1.9}, {1: -0.2})
    seen = Continuation((1, 1, 1, 1), (-0.1, -0.6, -0.9, -0.2), "length", rows)
    assert open_places(seen) == [2, 0], "not at the near-tie, nor where nothing else is listed"
