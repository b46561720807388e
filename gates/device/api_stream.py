# SPDX-License-Identifier: Apache-2.0
"""API checks 20-33, 139 and 141: streaming."""

from __future__ import annotations

import time

from gates.core import server_facts
from gates.core.client import ServerTrouble, offered, said
from gates.core.errors import Skip
from gates.core.suite import PATH, Api, Suite, as_plain, expect, held_back, marker_in, reasoning_of

COMPLETIONS = "/v1/completions"
POLL_S, PATIENCE = 0.2, 50  # seconds, readings: until a server has noticed that a client hung up
SUITE = Suite("api-stream", "event order, joined text, usage, disconnects")


def _reasoning(stream: object) -> str:
    return "".join(reasoning_of(delta) for delta in stream.deltas())  # type: ignore[attr-defined]


@SUITE.check(20, "the first chunk names the role")
def _role(api: Api) -> None:
    first = next(iter(api.stream(max_tokens=8).deltas()), {})
    expect(first.get("role") == "assistant", f"first delta {first}")


@SUITE.check(21, "all chunks share id, model and created")
def _same(api: Api) -> None:
    chunks = api.stream(max_tokens=8).chunks
    for name in ("id", "model", "created"):
        expect(len({c.get(name) for c in chunks}) == 1, f"{name} changes")


@SUITE.check(22, "exactly one finish reason")
def _finish(api: Api) -> None:
    reasons = api.stream().finish_reasons()
    expect(len(reasons) == 1, f"finish reasons {reasons}")


@SUITE.check(23, "[DONE] ends the stream")
def _done(api: Api) -> None:
    expect(api.stream(max_tokens=4).done, "no [DONE]")


@SUITE.check(24, "joined content equals the plain answer")
def _content(api: Api) -> None:
    as_plain(lambda: api.stream().joined("content"), lambda: api.message().get("content") or "")


@SUITE.check(25, "joined reasoning equals the plain answer's")
def _reason(api: Api) -> None:
    as_plain(lambda: _reasoning(api.stream()), lambda: reasoning_of(api.message()))


@SUITE.check(26, "reasoning comes before content")
def _order(api: Api) -> None:
    kinds = ["r" if reasoning_of(d) else "c" for d in api.stream().deltas() if reasoning_of(d) or d.get("content")]
    expect("cr" not in "".join(kinds), "reasoning after content")


@SUITE.check(27, "no marker in any chunk, and none across chunks")
def _markers(api: Api) -> None:
    stream = api.stream()
    found = marker_in(stream.joined("content")) or marker_in(_reasoning(stream))
    expect(not found, f"{found} in the stream")


@SUITE.check(28, "no flood of empty deltas")
def _flood(api: Api) -> None:
    deltas = list(api.stream().deltas())
    empty = [
        d
        for d in deltas
        if not any(d.get(k) for k in ("role", "content", "reasoning", "reasoning_content", "tool_calls"))
    ]
    expect(len(empty) <= 2 + len(deltas) // 10, f"{len(empty)} of {len(deltas)} deltas are empty")


@SUITE.check(29, "usage comes last, alone, and only when asked")
def _usage(api: Api) -> None:
    with_usage = api.stream(max_tokens=8, stream_options={"include_usage": True}).chunks
    expect(with_usage[-1].get("usage") and not with_usage[-1].get("choices"), f"last chunk {with_usage[-1]}")
    expect(not any(c.get("usage") for c in with_usage[:-1]), "usage before the end")
    expect(not any(c.get("usage") for c in api.stream(max_tokens=8).chunks), "usage although not asked")


@SUITE.check(30, "continuous usage never falls")
def _continuous(api: Api) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [
        c["usage"]["completion_tokens"]
        for c in api.stream(max_tokens=16, stream_options=options).chunks
        if c.get("usage")
    ]
    expect(counts == sorted(counts) and counts, f"counts {counts}")


def _running(api: Api) -> float:
    running = (server_facts.metrics(api.client) or {}).get(server_facts.RUNNING)
    if running is None:
        raise ServerTrouble(f"a page without {server_facts.RUNNING}, which it had before", where="GET /metrics")
    return running


def _least(api: Api, below: float, readings: int) -> float:
    """The least number of requests that run at so many readings, or the first one under `below`."""
    least = float("inf")
    for reading in range(readings):
        time.sleep(POLL_S if reading else 0.0)
        least = min(least, _running(api))
        if least < below:
            break
    return least


@SUITE.check(31, "a client that hangs up frees its request")
def _hangup(api: Api) -> None:
    """The gauge counts everybody's requests, so a leak is what leaves just one more each time, whether others are under
    way or earlier leaks are."""
    body = api.body(max_tokens=4096 if api.ctx.wording.chat else api.room, ignore_eos=True)
    if server_facts.RUNNING not in (server_facts.metrics(api.client) or {}):
        raise Skip(f"the server reports no {server_facts.RUNNING}")
    others = _least(api, 1, PATIENCE // 5)
    for count in range(1, 4):
        expect(not api.events(PATH, body, stop_after=2).done, "a stream ended by itself: nothing to hang up on")
        left = _least(api, others + count, PATIENCE)
        if left == 0:
            return
        if left != others + count:
            raise Skip(f"{left:.0f} requests run on the server, of which {count} can be this check's")
    waited = f"{PATIENCE * POLL_S:.0f} s later"
    expect(False, f"requests under way {waited}: {left:.0f}, and {others:.0f} before")


@SUITE.check(32, "a stream cut by max_tokens says length")
def _length(api: Api) -> None:
    expect(api.stream(max_tokens=3).finish_reasons() == ["length"], "finish is not length")


@SUITE.check(33, "characters are never split between chunks")
def _emoji(api: Api) -> None:
    stream = api.stream("Write five emoji: 🧪 👩🏽‍🔬 東京")
    expect("�" not in stream.joined("content") + _reasoning(stream), "a replacement character")


@SUITE.check(139, "the text is shown while it is made")
def _paced(api: Api) -> None:
    for _ in range(3):
        stream = api.stream(max_tokens=min(64, api.room), stream_options={"include_usage": True})
        if not (late := held_back(stream)):
            return
    expect(False, late)


@SUITE.check(141, "a completion's joined text equals the plain one's")
def _completion(api: Api) -> None:
    asked = {"model": api.client.model, "prompt": "Hello", "max_tokens": 24, "temperature": 0}
    if not offered(api.post(asked, COMPLETIONS).status):
        raise Skip(f"the server has no {COMPLETIONS}")

    def streamed() -> str:
        return "".join(choice["text"] for chunk in said(api.events(COMPLETIONS, asked)) for choice in chunk["choices"])

    as_plain(streamed, lambda: api.client.complete("Hello", max_tokens=24, temperature=0)["choices"][0]["text"])


GATE = SUITE.gate("marker-in-content", "half-stream", "lost-chunks")
