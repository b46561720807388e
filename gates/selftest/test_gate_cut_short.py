# SPDX-License-Identifier: Apache-2.0
"""Answers and streams that end before their time, or hold an error in the place of text: nothing was compared then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from behind_fault import run_behind

from gates.controls import matrix, server_faults, toy_server
from gates.core import gate, scoring
from gates.core.client import BadStatus, Client
from gates.core.errors import Failed
from gates.core.result import Verdict

COMPLETIONS = "/v1/completions"
ERROR = {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}}


@pytest.fixture(scope="module")
def stand_in(good_server: str) -> gate.Context:
    return matrix.context(good_server, Path("nowhere"))


def _cut(answer: dict[str, Any], tokens: int, reason: str = "abort") -> dict[str, Any]:
    for choice in answer.get("choices") or []:
        if (block := choice.get("logprobs")) and "token_logprobs" in block:
            choice["logprobs"] = {name: values[:tokens] for name, values in block.items()}
            choice.update(text=choice["text"][:tokens], finish_reason=reason)
    return answer


@pytest.mark.parametrize("tokens", [0, 1, 31])
def test_a_continuation_is_as_long_as_was_asked(stand_in: gate.Context, tokens: int) -> None:
    class Short(toy_server.Handler):
        def _send(self, status: int, data: Any, kind: str = "application/json") -> None:
            super()._send(status, _cut(data, tokens) if isinstance(data, dict) else data, kind)

    server, address = toy_server.start(Short)
    with pytest.raises(Failed, match=f"{tokens} tokens where 32 were asked for"):
        scoring.continue_greedily(Client(address, model="toy"), [97, 98], max_tokens=32)
    server.shutdown()
    assert len(scoring.continue_greedily(stand_in.client, [97, 98], max_tokens=32).tokens) == 32


def test_a_server_that_caps_answers_is_no_fault_of_it(stand_in: gate.Context) -> None:
    """As vLLM's `max_new_tokens` among the generation settings that override a client's."""
    seen = run_behind(stand_in, "decode-vs-prefill", reply=lambda path, body, answer: _cut(answer, 24, "length"))
    assert seen.verdict is Verdict.SKIP, seen
    assert "ends answers at 24 tokens" in seen.reason


def test_a_server_that_miscounts_has_no_cap(stand_in: gate.Context) -> None:
    def one_less(path: str, body: dict, answer: dict) -> dict[str, Any]:
        return _cut(answer, body.get("max_tokens", 1) - 1, "length")

    seen = run_behind(stand_in, "decode-vs-prefill", reply=one_less)
    assert seen.verdict is Verdict.FAIL, seen


def test_decode_is_not_judged_by_its_first_token(stand_in: gate.Context) -> None:
    """Which the prefill makes."""
    seen = run_behind(stand_in, "decode-vs-prefill", reply=lambda path, body, answer: _cut(answer, 1))
    assert seen.verdict is Verdict.FAIL, seen
    assert "1 tokens where" in seen.reason


def _warm(memory: set[str]) -> Callable[[str, dict, dict], dict]:
    """Answers from the cache end after two tokens."""

    def reply(path: str, body: dict, answer: dict) -> dict[str, Any]:
        key = json.dumps([body.get("prompt"), body.get("cache_salt")])
        known = "cache_salt" in body and key in memory
        memory.add(key)
        return _cut(answer, 2) if known else answer

    return reply


@pytest.mark.long
def test_an_answer_that_the_cache_cuts_short_is_caught(stand_in: gate.Context) -> None:
    seen = run_behind(stand_in, "cache-honesty", reply=_warm(set()))
    assert seen.verdict is Verdict.FAIL, seen
    memory: dict[str, Any] = {}

    def aborted(path: str, body: dict, answer: dict) -> dict[str, Any]:
        return _cut(answer, 1) if server_faults._head(body) in memory.get("spoiled", ()) else answer

    seen = run_behind(stand_in, "cache-honesty", request=server_faults.hung_up(memory), reply=aborted)
    assert seen.verdict is Verdict.FAIL, seen


def _of_errors(path: str, body: dict, chunks: list[dict]) -> list[dict]:
    return [ERROR] if path == COMPLETIONS else chunks


@pytest.mark.parametrize(
    ("told", "status"),
    [(ERROR, 500), ({"error": {"message": "later", "code": 429}}, 429), ({"error": "out of memory"}, 500)],
)
def test_an_error_in_a_stream_is_one(told: dict, status: int) -> None:
    class Broken(toy_server.Handler):
        def _events(self, events: list[Any], done: bool) -> None:
            super()._events([*events[:2], told], done)

    server, address = toy_server.start(Broken)
    client = Client(address, model="toy")
    with pytest.raises(BadStatus) as error:
        client.stream(COMPLETIONS, {"prompt": "a", "max_tokens": 9})
    assert error.value.status == status
    client.stream(COMPLETIONS, {"prompt": "a", "max_tokens": 9}, stop_after=2)
    server.shutdown()


def test_a_null_error_and_a_chunk_without_choices_are_none(stand_in: gate.Context) -> None:
    """Some servers begin with what they filtered, and tell usage in a chunk of its own."""

    class Wordy(toy_server.Handler):
        def _events(self, events: list[Any], done: bool) -> None:
            plain = [{**event, "error": None} for event in events]
            super()._events([{"choices": [], "prompt_filter_results": []}, *plain, {"choices": [], "usage": {}}], done)

    server, address = toy_server.start(Wordy)
    body = {"prompt": "a", "max_tokens": 9}
    seen = Client(address, model="toy").stream(COMPLETIONS, body, stop_after=1)
    assert [bool(chunk["choices"]) for chunk in seen.chunks] == [False, True]
    seen = Client(address, model="toy").stream(COMPLETIONS, body)
    assert len(seen.chunks) == 11
    server.shutdown()


@pytest.mark.long
def test_streams_of_errors_are_no_streams(stand_in: gate.Context) -> None:
    seen = run_behind(stand_in, "stress", chunks=_of_errors)
    assert seen.verdict is Verdict.FAIL, seen
    assert {k for k, v in seen.details["checks"].items() if v} == {"disconnects", "slow reader"}
    seen = run_behind(stand_in, "api-stream", chunks=lambda path, body, chunks: [*chunks[:3], ERROR])
    assert seen.verdict is Verdict.FAIL, seen
    assert "status 500" in seen.reason


@pytest.mark.long
@pytest.mark.parametrize(
    "hooks",
    [
        {"chunks": _of_errors},
        {"chunks": lambda path, body, chunks: [{**chunk, "choices": []} for chunk in chunks]},
        {"raw": lambda path, body: (500, "text/plain", b"no") if body.get("stream") else None},
    ],
)
def test_without_neighbours_that_were_aborted_nothing_is_said_of_them(stand_in: gate.Context, hooks: dict) -> None:
    assert run_behind(stand_in, "cache-honesty", **hooks).verdict is Verdict.ERROR


@pytest.mark.long
def test_a_stream_without_text_or_end_fails_its_slow_reader(stand_in: gate.Context) -> None:
    def bare(path: str, body: dict, chunks: list[dict], **kept: Any) -> list[dict]:
        return [{**c, "choices": [{**x, **kept} for x in c["choices"]]} for c in chunks]

    for kept, told in (({"text": ""}, "no text"), ({"finish_reason": None}, "finish reasons []")):
        seen = run_behind(stand_in, "stress", chunks=lambda p, b, c, kept=kept: bare(p, b, c, **kept))
        assert {k for k, v in seen.details["checks"].items() if v} == {"slow reader"}, seen
        assert told in seen.details["checks"]["slow reader"]


def _under_load(text: str | None, tokens: int, finish: str = "length") -> Callable[[str, dict, dict], dict]:
    def reply(path: str, body: dict, answer: dict) -> dict[str, Any]:
        if body.get("max_tokens") == 8 and str(body.get("prompt")).startswith("Hello "):
            choice = answer["choices"][0]
            choice.update(finish_reason=finish, text=choice["text"] if text is None else text)
            answer["usage"] = {"completion_tokens": tokens} if tokens >= 0 else None
        return answer

    return reply


@pytest.mark.long
@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        (_under_load("", 0), "0 tokens"),
        (_under_load("", 0, "stop"), "0 tokens"),
        (_under_load(None, 3, "abort"), "3 tokens"),
        (_under_load(None, 3, "stop"), ""),  # a server that knows no `ignore_eos`
        (_under_load(None, -1), ""),  # one that tells no usage
        (_under_load("", 8), ""),  # the prompt alone is answered so, too: tokens that no text shows
    ],
)
def test_answers_under_overload_are_whole(stand_in: gate.Context, reply: Any, wrong: str) -> None:
    seen = run_behind(stand_in, "stress", reply=reply)
    assert seen.verdict is (Verdict.FAIL if wrong else Verdict.PASS), seen
    assert wrong in seen.details["checks"]["overload"]


@pytest.mark.long
def test_a_text_that_is_lost_under_load_alone_is_missed(stand_in: gate.Context) -> None:
    asked: dict[str, int] = {}

    def reply(path: str, body: dict, answer: dict) -> dict[str, Any]:
        prompt = str(body.get("prompt"))
        asked[prompt] = asked.get(prompt, 0) + 1
        return _under_load("", 8)(path, body, answer) if asked[prompt] == 1 else answer

    seen = run_behind(stand_in, "stress", reply=reply)
    assert seen.details["checks"]["overload"].startswith("32 of 32 requests: no text"), seen
