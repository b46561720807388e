# SPDX-License-Identifier: Apache-2.0
"""API checks 93-100: log probabilities of answers."""

from __future__ import annotations

import math
from typing import Any

from gates.core import scoring, stats
from gates.core.errors import Skip
from gates.core.suite import PATH, Api, Suite, expect, reasoning_of
from gates.device.api_usage import CONVERSATION

SUITE = Suite("api-logprobs", "logprobs of chat answers: complete, sorted, finite, hidden when due")


def _rows(api: Api, **options: Any) -> list[dict[str, Any]]:
    return _rows_of(api.choice(logprobs=True, **{"max_tokens": 12, "top_logprobs": 3, **options}))


def _rows_of(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return list((choice.get("logprobs") or {}).get("content") or [])


def _limit(api: Api) -> float:
    """Nats a token that two readings of a few may differ by: beyond it is another place or scale, not rounding, which
    decode-vs-prefill judges."""
    return 5 * api.ctx.thresholds["decode-vs-prefill"].of(api.ctx.profile.name).value


@SUITE.check(93, "one row per completion token")
def _count(api: Api) -> None:
    body = api.body(logprobs=True, top_logprobs=1, max_tokens=12)
    answer = api.client.ok("POST", "/v1/chat/completions", body)
    rows = (answer["choices"][0].get("logprobs") or {}).get("content") or []
    expect(len(rows) == answer["usage"]["completion_tokens"], f"{len(rows)} rows, usage {answer['usage']}")


@SUITE.check(94, "top_logprobs gives k sorted entries")
def _sorted(api: Api) -> None:
    for row in _rows(api):
        values = [entry["logprob"] for entry in row["top_logprobs"]]
        expect(len(values) >= 3 and values[:3] == sorted(values[:3], reverse=True), f"{values}")


@SUITE.check(95, "every chosen token's log probability is finite and at most 0")
def _finite(api: Api) -> None:
    for row in _rows(api, temperature=1, seed=5):
        expect(math.isfinite(row["logprob"]) and row["logprob"] <= 0, f"{row['logprob']}")


@SUITE.check(96, "the rows' bytes join to text")
def _bytes(api: Api) -> None:
    raw = b"".join(bytes(row.get("bytes") or []) for row in _rows(api))
    expect(raw, "no bytes")


@SUITE.check(97, "a stream's rows are the plain answer's, one for every token whose text is shown")
def _stream(api: Api) -> None:
    plain = _rows(api)
    stream = api.stream(logprobs=True, top_logprobs=3, max_tokens=12)
    rows = [
        row
        for c in stream.chunks
        for choice in c.get("choices") or []
        for row in ((choice.get("logprobs") or {}).get("content") or [])
    ]
    # A stream may leave out rows of the turn's header, which no delta shows and which come first; it may not lose or
    # reorder others.
    rest = reversed(plain)
    same = [next((other for other in rest if other["token"] == row["token"]), None) for row in reversed(rows)][::-1]
    told = [row["token"] for row in rows]
    expect(rows and all(same), f"{told} are not in order among {[row['token'] for row in plain]}")
    pairs = [(row, other) for row, other in zip(rows, same, strict=True) if other is not None]
    gap = stats.mean([abs(row["logprob"] - other["logprob"]) for row, other in pairs])
    limit = _limit(api)
    expect(gap <= limit, f"{gap:.3g} nats a token from the plain answer's, allowed are {limit:g}")
    listed = [(len(row["top_logprobs"]), len(other["top_logprobs"])) for row, other in pairs]
    expect(all(a == b for a, b in listed), f"candidates a token in the stream and in the plain answer: {listed}")
    shown = "".join(reasoning_of(delta) + (delta.get("content") or "") for delta in stream.deltas())
    expect(shown in "".join(told), f"the rows {told} do not spell {shown!r}")


@SUITE.check(98, "rows are hidden with include_reasoning false in a stream of reasoning")
def _hidden(api: Api) -> None:
    stream = api.stream(logprobs=True, top_logprobs=1, max_tokens=4, include_reasoning=False)
    rows = [
        row
        for c in stream.chunks
        for choice in c.get("choices") or []
        for row in ((choice.get("logprobs") or {}).get("content") or [])
    ]
    expect(not rows or stream.joined("content"), "rows of hidden reasoning")


@SUITE.check(99, "under a grammar the chosen token is possible")
def _grammar(api: Api) -> None:
    rows = _rows(api, structured_outputs={"choice": ["alpha", "beta"]}, max_tokens=api.room)
    expect(
        rows and all(math.isfinite(row["logprob"]) for row in rows), "a chosen token with an infinite log probability"
    )


@SUITE.check(100, "top_logprobs 0 is accepted")
def _zero(api: Api) -> None:
    expect(_rows(api, top_logprobs=0), "no rows")


@SUITE.check(135, "a chosen token is among its candidates, which are no more than certain together")
def _mass(api: Api) -> None:
    for row in _rows(api, top_logprobs=5):
        listed = [(entry["token"], entry["logprob"]) for entry in row["top_logprobs"]]
        expect((row["token"], row["logprob"]) in listed, f"{row['token']!r} at {row['logprob']} is not in {listed}")
        mass = math.fsum(stats.exp(value) for _, value in listed)
        expect(mass <= 1 + 1e-3, f"the candidates {listed} have a mass of {mass:.3f}")


@SUITE.check(137, "a system message and earlier turns reach the model")
def _reach(api: Api) -> None:
    told = []
    for messages in (CONVERSATION[-1:], CONVERSATION[-3:], CONVERSATION):
        rows = _rows_of(api.choice(messages, logprobs=True, top_logprobs=3, max_tokens=12))
        told.append([[entry["logprob"] for entry in row["top_logprobs"]] for row in rows])
    expect(told[0] != told[1], "the same log probabilities without the earlier turns")
    expect(told[1] != told[2], "the same log probabilities without the system message")


@SUITE.check(138, "a chat answer's log probabilities are those of its text read back")
def _read_back(api: Api) -> None:
    body = api.body(logprobs=True, top_logprobs=1, max_tokens=32, return_token_ids=True)
    answer = api.client.ok("POST", PATH, body)
    prompt, made = answer.get("prompt_token_ids"), answer["choices"][0].get("token_ids")
    rows = _rows_of(answer["choices"][0])
    if not prompt or not made:
        raise Skip("the server does not return token ids")
    read = scoring.score(api.client, [*prompt, *made], top=1).logprobs[len(prompt) - 1 :]
    expect(len(rows) == len(made), f"{len(rows)} rows for {len(made)} tokens")
    gap = stats.mean([abs(row["logprob"] - value) for row, value in zip(rows, read, strict=True)])
    limit = _limit(api)
    expect(gap <= limit, f"{gap:.3g} nats a token from its own reading, allowed are {limit:g}")


GATE = SUITE.gate(
    "lost-row", "scaled-logprobs", "scaled-stream", "neighbour-logprobs", "dropped-system", "dropped-history"
)
