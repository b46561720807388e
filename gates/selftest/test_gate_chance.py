# SPDX-License-Identifier: Apache-2.0
"""What chance and other users do to a good server is no FAIL, and what a bad one does still is."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from gates.controls import matrix, proxy
from gates.controls.faults import Fault
from gates.core import gate, records, server_facts, stats
from gates.core.client import Client, ServerTrouble
from gates.core.errors import Failed, Skip
from gates.core.result import GateResult, Verdict
from gates.core.runner import run_one
from gates.core.suite import Api, as_plain
from gates.device import api_sampling, api_stream, canary, length_band, output_shape

GATES = gate.discover()


@pytest.fixture
def ctx(good_server: str, tmp_path: Path) -> gate.Context:
    return matrix.context(good_server, tmp_path)


def _lengths(ctx: gate.Context, monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> GateResult:
    monkeypatch.setattr(length_band, "lengths", lambda ctx: [(count, "text") for count in counts])
    return run_one(GATES["output-length-band"], ctx)


KNOWN = [30, 45, 60, 80, 100, 120, 150, 200]


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        (KNOWN, KNOWN, Verdict.PASS),
        (KNOWN, [count + 2 for count in KNOWN], Verdict.PASS),
        (KNOWN, [round(count * 1.5) for count in KNOWN], Verdict.FAIL),
        (KNOWN, [1] * len(KNOWN), Verdict.FAIL),
        (KNOWN, [0] * len(KNOWN), Verdict.FAIL),
        (KNOWN, [60, 20, 100, 60, 170, 90, 260, 190], Verdict.SKIP),  # +21 %, and any of them either way
    ],
)
def test_answers_of_chance_lengths_are_told_from_other_lengths(
    ctx: gate.Context, monkeypatch: pytest.MonkeyPatch, then: list[int], now: list[int], verdict: Verdict
) -> None:
    assert _lengths(ctx, monkeypatch, then).reason == records.NOTHING_YET
    seen = _lengths(ctx, monkeypatch, now)
    assert seen.verdict is verdict, seen
    if verdict is Verdict.SKIP:
        assert "8 samples are too few to tell: 0.21" in seen.reason


def test_answers_that_vary_by_a_third_seldom_fail() -> None:
    """They did in 19 of 60 runs."""
    rng = random.Random(3)

    def outside() -> bool:
        pairs = [(100 * rng.gauss(1, 0.3), 100 * rng.gauss(1, 0.3)) for _ in range(20)]
        low, high = stats.ratio_interval(pairs)
        return stats.magnitude(low - 1, high - 1)[0] > 0.1

    assert sum(outside() for _ in range(200)) <= 4


def test_answers_cut_beside_others_that_kept_their_length_are_no_chance(
    ctx: gate.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lengths(ctx, monkeypatch, [60, 90, 75, 70, 85, 72, 80, 78])
    seen = _lengths(ctx, monkeypatch, [60, 2, 75, 2, 85, 2, 80, 2])
    assert seen.verdict is Verdict.FAIL, seen


@pytest.mark.parametrize("beside", [[40, 55, 70], [90, 60, 30]])
def test_answers_cut_at_their_room_did_not_keep_their_length(
    ctx: gate.Context, monkeypatch: pytest.MonkeyPatch, beside: list[int]
) -> None:
    """They are as long as they were whatever chance does: what the others do decides."""
    cut = [ctx.profile.answer_tokens] * 5
    _lengths(ctx, monkeypatch, [*cut, 90, 20, 60])
    assert _lengths(ctx, monkeypatch, [*cut, *beside]).verdict is not Verdict.FAIL
    assert length_band.kept_length([*cut, 90, 20, 60], [*cut, *beside], cut[0]) is False
    assert length_band.kept_length([*cut, 90, 20, 60], [*cut, 90, 20, 9], cut[0]) is True
    assert length_band.kept_length(cut, cut, cut[0]) is False
    assert length_band.kept_length([80, 120, 96], [80, 120, 20], cut[0]) is True


def test_lengths_of_chance_that_are_often_cut_seldom_fail(ctx: gate.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sets from one distribution. Counting answers that were cut both times as kept made 9 of 150 fail."""
    monkeypatch.setattr(records.Record, "read", lambda self, parse: parse({"counts": known}))
    rng, failed = random.Random(1), 0
    for _ in range(150):
        known, counts = (
            [min(96, round((160, 160, 160, 50)[i % 4] * rng.lognormvariate(0, 0.5))) for i in range(20)] for _ in "ab"
        )
        monkeypatch.setattr(length_band, "lengths", lambda ctx, counts=counts: [(count, "") for count in counts])
        failed += GATES["output-length-band"].run(ctx).verdict is Verdict.FAIL
    assert failed == 0


def test_a_field_that_was_there_before_is_missed() -> None:
    client = Client("http://127.0.0.1:9")
    with pytest.raises(Skip, match="knows no prompt_logprobs"):
        client.has("prompt_logprobs", False, "POST /v1/completions")
    client.has("prompt_logprobs", True, "POST /v1/completions")
    with pytest.raises(ServerTrouble, match="without prompt_logprobs, which others had"):
        client.has("prompt_logprobs", False, "POST /v1/completions")


@pytest.mark.parametrize(("short", "verdict"), [(0, Verdict.PASS), (1, Verdict.SKIP), (3, Verdict.FAIL)])
def test_one_terse_answer_of_twenty_is_no_verdict(
    ctx: gate.Context, monkeypatch: pytest.MonkeyPatch, short: int, verdict: Verdict
) -> None:
    answers = [(1, "T")] * short + [(50, "text")] * (20 - short)
    monkeypatch.setattr(output_shape, "lengths", lambda ctx: answers)
    assert run_one(GATES["one-token-only"], ctx).verdict is verdict


class _Busy:
    """A server with a gauge of other requests, whose log probabilities move in their batch."""

    def __init__(self, running: list[float]) -> None:
        self.running, self.off, self.rng = running, 0.0, random.Random(4)

    def page(self, path: str, text: str) -> str:
        now = self.running.pop(0) if len(self.running) > 1 else self.running[0]
        return text.replace("num_requests_running 0.0", f"num_requests_running {now}")

    def reply(self, path: str, body: dict, answer: dict) -> dict:
        for choice in answer.get("choices") or []:
            for row in choice.get("prompt_logprobs") or []:
                for entry in (row or {}).values():
                    entry["logprob"] -= self.off
        return answer


def _canary(ctx: gate.Context, busy: _Busy) -> GateResult:
    server, address = proxy.serve(ctx.client.root, Fault("busy", "others use it", page=busy.page, reply=busy.reply))
    client = Client(address, model=ctx.facts.model)
    result = run_one(GATES["canary"], dataclasses.replace(ctx, client=client))
    server.shutdown()
    return result


@pytest.mark.parametrize(
    ("running", "off", "verdict"),
    [
        ([0.0], 0.1, Verdict.FAIL),
        ([3.0], 0.1, Verdict.SKIP),
        ([3.0], 0.0, Verdict.PASS),
        ([3.0, 3.0, 0.0], 0.1, Verdict.FAIL),  # alone at the second attempt
        ([0.0, 2.0], 0.1, Verdict.SKIP),  # they came while it was asked
        ([3.0], 5.0, Verdict.FAIL),  # no batch does that
    ],
)
def test_the_canary_of_a_busy_server_is_not_held_to_one_that_was_alone(
    ctx: gate.Context, monkeypatch: pytest.MonkeyPatch, running: list[float], off: float, verdict: Verdict
) -> None:
    monkeypatch.setattr(canary, "PAUSE_S", 0.0)
    monkeypatch.setattr(canary, "TEXTS", canary.TEXTS[2:])
    assert run_one(GATES["canary"], ctx).reason == records.NOTHING_YET
    busy = _Busy(running)
    busy.off = off
    seen = _canary(ctx, busy)
    assert seen.verdict is verdict, seen
    if verdict is Verdict.SKIP:
        assert "other requests ran on the server" in seen.reason


def test_nothing_is_recorded_beside_others(ctx: gate.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "PAUSE_S", 0.0)
    monkeypatch.setattr(canary, "TEXTS", canary.TEXTS[2:])
    seen = _canary(ctx, _Busy([1.0]))
    assert seen.verdict is Verdict.SKIP
    assert seen.reason != records.NOTHING_YET
    assert not list(ctx.records.glob("canary-*"))
    assert server_facts.RUNNING.startswith("vllm:")


def test_two_answers_that_are_one_are_caught(ctx: gate.Context) -> None:
    def reply(path: str, body: dict, answer: dict) -> dict[str, Any]:
        if body.get("n") == 2:
            answer["choices"] = [{**answer["choices"][0], "index": index} for index in range(2)]
        return answer

    server, address = proxy.serve(ctx.client.root, Fault("twins", "one answer twice", reply=reply))
    client = Client(address, model=ctx.facts.model)
    suite = dataclasses.replace(ctx, client=client)
    check = next(check for check in api_sampling.SUITE.checks if check.number == 104)
    with pytest.raises(Failed, match="both answers are the same"):
        check.run(Api(suite))
    check.run(Api(ctx))
    server.shutdown()


HANGUP = next(check for check in api_stream.SUITE.checks if check.number == 31)


def _hang_up(ctx: gate.Context, monkeypatch: pytest.MonkeyPatch, *running: float | None) -> None:
    """Check 31 where `/metrics` tells these, then the last of them for ever."""
    told = list(running)
    monkeypatch.setattr(api_stream, "POLL_S", 0.0)
    monkeypatch.setattr(api_stream, "PATIENCE", 10)

    def metrics(client: Client) -> dict[str, float]:
        value = told.pop(0) if len(told) > 1 else told[0]
        return {} if value is None else {server_facts.RUNNING: value}

    monkeypatch.setattr(server_facts, "metrics", metrics)
    HANGUP.run(Api(ctx))


def test_a_request_that_is_not_freed_is_told_from_those_of_other_users(
    ctx: gate.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hang_up(ctx, monkeypatch, 0.0, 0.0, 1.0, 0.0)
    _hang_up(ctx, monkeypatch, 1.0, 1.0, 0.0)  # the last of the requests before
    with pytest.raises(Failed, match="requests under way 0 s later: 3, and 0 before"):
        _hang_up(ctx, monkeypatch, 0.0, 0.0, *[1.0] * 10, *[2.0] * 10, 3.0)
    with pytest.raises(Failed, match="requests under way 0 s later: 7, and 4 before"):  # leaks, and three more
        _hang_up(ctx, monkeypatch, *[4.0] * 3, *[5.0] * 10, *[6.0] * 10, 7.0)
    with pytest.raises(ServerTrouble, match="without vllm:num_requests_running"):
        _hang_up(ctx, monkeypatch, 0.0, 0.0, None)


@pytest.mark.parametrize(
    "running",
    [
        [2.0],
        [0.0, 0.0, 3.0],
        [0.0, 0.0, 1.0],  # another came just then
        [*[2.0] * 3, *[3.0] * 12, *[4.0] * 4, 3.0],  # another came, and went
        [*[4.0] * 3, *[9.0] * 10, *[12.0] * 10, 20.0],  # more and more come
        [*[4.0] * 3, *[5.0] * 10, *[6.0] * 10, 8.0],
    ],
)
def test_where_others_are_under_way_the_gauge_says_nothing(
    ctx: gate.Context, monkeypatch: pytest.MonkeyPatch, running: list[float]
) -> None:
    with pytest.raises(Skip, match=r"requests run on the server, of which [123] can be this check's"):
        _hang_up(ctx, monkeypatch, *running)


def test_a_stream_that_ends_by_itself_frees_nothing(ctx: gate.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    server, address = proxy.serve(ctx.client.root, Fault("short", "one chunk", chunks=lambda p, b, chunks: chunks[:1]))
    with pytest.raises(Failed, match="nothing to hang up on"):
        _hang_up(dataclasses.replace(ctx, client=Client(address, model="toy")), monkeypatch, 0.0)
    server.shutdown()


@pytest.mark.parametrize(
    ("streams", "plain", "expected"),
    [
        ("bb", "aaa", Failed),
        ("ba", "aaa", None),
        ("b", "aab", None),
        ("b", "abb", None),
        ("b", "acc", Skip),
        ("b", "aca", Skip),
        ("b", "b", None),
    ],
)
def test_a_stream_is_held_to_what_the_plain_answers_agree_on(
    streams: str, plain: str, expected: type[Exception] | None
) -> None:
    told, answers = iter(streams), iter(plain)
    with contextlib.nullcontext() if expected is None else pytest.raises(expected):
        as_plain(lambda: next(told), lambda: next(answers))
