# SPDX-License-Identifier: Apache-2.0
"""API checks 6-19: chat basics."""

from __future__ import annotations

from gates.core.suite import Api, Suite, expect, marker_in, reasoning_of

SUITE = Suite("api-chat", "chat answers, reasoning apart, history, limits")
EMOJI = "naïve café – 東京 🧪👩🏽‍🔬"


@SUITE.check(6, "an answer has content, role assistant and a finish reason")
def _basic(api: Api) -> None:
    choice = api.choice()
    message = choice["message"]
    expect(message.get("role") == "assistant", f"role {message.get('role')!r}")
    expect(choice.get("finish_reason") in ("stop", "length"), f"finish {choice.get('finish_reason')!r}")
    if choice["finish_reason"] == "stop":
        expect(message.get("content"), "stopped without content")


@SUITE.check(7, "reasoning is present and separate")
def _reasoning(api: Api) -> None:
    message = api.message()
    expect(reasoning_of(message), "no reasoning field")
    expect(reasoning_of(message) not in (message.get("content") or "\0"), "the reasoning stands in the content")


@SUITE.check(8, "no format marker in content or reasoning")
def _markers(api: Api) -> None:
    for text in ("Hello", "Describe the format you answer in.", EMOJI):
        message = api.message(text)
        found = marker_in(message.get("content")) or marker_in(reasoning_of(message))
        expect(not found, f"{found} in the answer to {text!r}")


@SUITE.check(9, "the system prompt is obeyed")
def _system(api: Api) -> None:
    api.needs("obey")
    messages = [
        {"role": "system", "content": "Answer every question with the single word PLUM."},
        {"role": "user", "content": "What is 2+2?"},
    ]
    expect("PLUM" in (api.message(messages).get("content") or "").upper(), "the word is missing")


@SUITE.check(10, "earlier turns are remembered")
def _memory(api: Api) -> None:
    api.needs("remember")
    messages = [
        {"role": "user", "content": "My locker number is 7391."},
        {"role": "assistant", "content": "Noted.", "reasoning_content": "A number to keep."},
        {"role": "user", "content": "Which locker number did I name? Number only."},
    ]
    expect("7391" in (api.message(messages).get("content") or ""), "the number is missing")


@SUITE.check(11, "history with reasoning is accepted under both names")
def _history(api: Api) -> None:
    for name in ("reasoning_content", "reasoning"):
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello.", name: "A greeting: greet back."},
            {"role": "user", "content": "Go on"},
        ]
        reply = api.post(api.body(messages))
        expect(reply.status == 200, f"{name}: status {reply.status}: {reply.text[:160]}")


@SUITE.check(12, "max_tokens 1 ends with length")
def _one(api: Api) -> None:
    expect(api.choice(max_tokens=1).get("finish_reason") == "length", "finish is not length")


@SUITE.check(13, "a stop inside the reasoning leaves no content")
def _cut(api: Api) -> None:
    choice = api.choice(max_tokens=6)
    expect(choice.get("finish_reason") == "length", f"finish {choice.get('finish_reason')!r}")
    expect(not choice["message"].get("content"), f"content {choice['message'].get('content')!r}")
    expect(not marker_in(reasoning_of(choice["message"])), "a marker in cut reasoning")


@SUITE.check(14, "include_reasoning false hides it, and nothing else")
def _hidden(api: Api) -> None:
    hidden, plain = api.message(include_reasoning=False), api.message()
    expect(not reasoning_of(hidden), "reasoning is shown")
    texts = [message.get("content") or "" for message in (hidden, plain)]
    expect(texts[0] or not texts[1], f"no content, {texts[1]!r} with the reasoning shown")


@SUITE.check(15, "thinking off still answers")
def _off(api: Api) -> None:
    reply = api.post(api.body(chat_template_kwargs={"enable_thinking": False}))
    expect(reply.status in (200, 400), f"status {reply.status}")
    if reply.status == 200:
        choice = reply.json()["choices"][0]
        content = choice["message"].get("content")
        found = marker_in(content)
        expect(not found, f"{found} in content")
        expect(content or choice.get("finish_reason") != "stop", "stopped without content")


@SUITE.check(16, "reasoning_effort values are mapped or refused, never a 500")
def _effort(api: Api) -> None:
    for value in ("low", "medium", "high", "none", "minimal", "max", "", True, 3):
        status = api.post(api.body(reasoning_effort=value, max_tokens=4)).status
        expect(status in (200, 400, 422), f"{value!r}: status {status}")


@SUITE.check(17, "content parts of type text are accepted")
def _parts(api: Api) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    expect(api.post(api.body(messages, max_tokens=4)).status == 200, "parts refused")


@SUITE.check(18, "unicode survives the round trip")
def _unicode(api: Api) -> None:
    message = api.message(f"Repeat exactly: {EMOJI}")
    expect("�" not in (message.get("content") or "") + reasoning_of(message), "a replacement character")
    if api.ctx.wording.can("repeat emoji"):
        expect(EMOJI in (message.get("content") or ""), "the text did not come back")


@SUITE.check(19, "an empty user message is handled")
def _empty(api: Api) -> None:
    status = api.post(api.body("", max_tokens=4)).status
    expect(status in (200, 400), f"status {status}")


GATE = SUITE.gate("marker-in-content", "early-stop", "hidden-answer")
