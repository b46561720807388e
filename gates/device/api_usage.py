# SPDX-License-Identifier: Apache-2.0
"""API checks 115-126: usage figures and errors."""

from __future__ import annotations

from typing import Any

from gates.core.errors import Skip
from gates.core.suite import PATH, Api, Suite, expect

SUITE = Suite("api-usage-errors", "usage adds up; bad requests are 400s and leave the server up")

CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "Which colour has the sky?"},
    {"role": "assistant", "content": "Blue.", "reasoning_content": "A colour was named: name one back."},
    {"role": "user", "content": "And grass?"},
]


def _usage(api: Api, **options: Any) -> dict[str, int]:
    return dict(api.client.ok("POST", "/v1/chat/completions", api.body(**options))["usage"])


@SUITE.check(115, "totals add up")
def _totals(api: Api) -> None:
    usage = _usage(api, max_tokens=8)
    expect(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], f"{usage}")


@SUITE.check(116, "completion tokens count the reasoning")
def _reasoning(api: Api) -> None:
    expect(_usage(api, max_tokens=6)["completion_tokens"] == 6, "6 tokens were made")


@SUITE.check(117, "prompt tokens are stable")
def _stable(api: Api) -> None:
    expect(_usage(api, max_tokens=2)["prompt_tokens"] == _usage(api, max_tokens=2)["prompt_tokens"], "they change")


@SUITE.check(118, "a stream's usage equals the plain answer's")
def _stream(api: Api) -> None:
    stream = api.stream(max_tokens=8, stream_options={"include_usage": True})
    plain = _usage(api, max_tokens=8)
    last = stream.chunks[-1]["usage"]
    expect(all(last[k] == plain[k] for k in ("prompt_tokens", "completion_tokens")), f"{last} against {plain}")


@SUITE.check(119, "missing messages are a 400")
def _messages(api: Api) -> None:
    api.refused({"model": api.client.model})


@SUITE.check(120, "temperature -1 is a 400")
def _temperature(api: Api) -> None:
    api.refused(api.body(temperature=-1))


@SUITE.check(121, "n=0 is a 400")
def _n(api: Api) -> None:
    api.refused(api.body(n=0))


@SUITE.check(122, "json_schema without a schema is a 400")
def _schema(api: Api) -> None:
    api.refused(api.body(response_format={"type": "json_schema"}))


@SUITE.check(123, "top_logprobs without logprobs is a 400")
def _top(api: Api) -> None:
    api.refused(api.body(top_logprobs=3))


@SUITE.check(124, "stream_options without stream is a 400")
def _stream_options(api: Api) -> None:
    api.refused(api.body(stream_options={"include_usage": True}))


@SUITE.check(125, "a prompt beyond the context is a 400")
def _context(api: Api) -> None:
    limit = api.ctx.facts.max_model_len
    if limit is None:
        raise Skip("the server does not tell its context length")
    token = api.client.tokenize("a")[-1]
    api.refused({"model": api.client.model, "prompt": [token] * (limit + 8), "max_tokens": 1}, "/v1/completions")


@SUITE.check(126, "a tool name that cannot be spelled is a 400, and the server is still healthy")
def _name(api: Api) -> None:
    tool = {
        "type": "function",
        "function": {"name": "two words <x>", "parameters": {"type": "object", "properties": {}}},
    }
    api.refused(api.body(tools=[tool], tool_choice="required"))
    for body in (b"{", b"[]", b"null", b'{"messages": 3}', b"\xff\xfe"):
        status = api.post(body).status
        expect(400 <= status < 500, f"{body!r}: status {status}")
    expect(api.get("/health").status == 200, "unhealthy afterwards")


@SUITE.check(134, "a completion's prompt tokens are those of its text")
def _prompt(api: Api) -> None:
    text = "How many tokens are these?"
    counted = api.client.complete(text, max_tokens=1)["usage"]["prompt_tokens"]
    expect(counted == len(api.client.tokenize(text)), f"{counted} counted, {len(api.client.tokenize(text))} there")


@SUITE.check(136, "a system message and earlier turns are counted")
def _history(api: Api) -> None:
    def count(messages: list[dict[str, Any]]) -> int:
        return int(api.client.ok("POST", PATH, api.body(messages, max_tokens=1))["usage"]["prompt_tokens"])

    last, turns = count(CONVERSATION[-1:]), count(CONVERSATION[1:])
    expect(turns > last, f"{turns} prompt tokens with earlier turns, {last} without")
    # A template may hold a system message of its own where none is sent: compare two that are sent.
    longer = [{**CONVERSATION[0], "content": f"{CONVERSATION[0]['content']} Use no other words."}, *CONVERSATION[1:]]
    short, long = count(CONVERSATION), count(longer)
    expect(long > short, f"{long} prompt tokens with a longer system message, {short} with a shorter one")


GATE = SUITE.gate("miscounted-usage", "dropped-system", "dropped-history", "lax-validation")
