# SPDX-License-Identifier: Apache-2.0
"""Known faults as changes to a good server's requests and answers, each named after what a user would report."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gates.controls import server_faults

Body = dict[str, Any]


@dataclass
class Fault:
    """A spoiler. Each hook may change its argument; None keeps it as it is.

    Attributes:
        request: before the request goes to the good server.
        reply: a whole JSON answer on its way back; gets (path, request body, answer).
        chunks: all chunks of a stream on their way back.
        told: another JSON answer to a GET on its way back; gets (path, answer).
        page: another text (metrics) on its way back; gets (path, text).
        raw: replaces the exchange altogether; returns (status, content type, bytes) or None.
        torn: the stream ends without [DONE].
        most_at_once: beyond so many requests under way the server answers 500; 0 for no limit.
        transport: the server is no OpenAI server any more: any gate may end in ERROR, none may say FAIL or be misled.
    """

    name: str
    summary: str
    request: Callable[[str, Body], Body] | None = None
    reply: Callable[[str, Body, Body], Body] | None = None
    chunks: Callable[[str, Body, list[Body]], list[Body]] | None = None
    told: Callable[[str, Any], Any] | None = None
    page: Callable[[str, str], str] | None = None
    raw: Callable[[str, Body], tuple[int, str, bytes] | None] | None = None
    torn: bool = False
    most_at_once: int = 0
    transport: bool = False
    memory: dict[str, Any] = field(default_factory=dict)


def _wobble(text: str) -> float:
    """A reproducible offset of 0.5 to 2.5 nats."""
    return 0.5 + (zlib.crc32(text.encode()) % 1000) / 500


def _shift_prompt_logprobs(path: str, body: Body, answer: Body) -> Body:
    for choice in answer.get("choices") or []:
        for i, row in enumerate(choice.get("prompt_logprobs") or []):
            for token, entry in (row or {}).items():
                entry["logprob"] -= _wobble(f"{i}:{token}")
    return answer


def _duplicate_token(path: str, body: Body, answer: Body) -> Body:
    for choice in answer.get("choices") or []:
        block = choice.get("logprobs") or {}
        names = block.get("tokens") or []
        for i in range(5, len(names), 6):
            names[i] = names[i - 1]
        text = choice.get("text")
        if isinstance(text, str) and len(text) > 4:
            choice["text"] = text[:3] + text[2:]
    return answer


def _window(path: str, body: Body, answer: Body) -> Body:
    """Decoded tokens past the eighth are scored as if the oldest key were missing."""
    for choice in answer.get("choices") or []:
        values = (choice.get("logprobs") or {}).get("token_logprobs") or []
        for i in range(8, len(values)):
            values[i] -= 0.25
    return answer


def _blind(path: str, body: Body) -> Body:
    if not path.endswith("completions"):
        return body
    prompt = body.get("prompt")
    if isinstance(prompt, str) and 40 < len(prompt) < 4000:
        body["prompt"] = prompt[-max(6, len(prompt) // 16) :]
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message.get("content"), str) and len(message["content"]) > 400:
            message["content"] = message["content"][-120:]
    return body


def _code(body: Body) -> str:
    """The code that the isolation gate put into a request, or ""."""
    found = re.findall(r"[B-DF-HJ-NP-TV-XZ]{10}", json.dumps(body.get("prompt") or body.get("messages")))
    return str(found[-1]) if found else ""


def _texts(answer: Body) -> list[tuple[Body, str]]:
    """Where the text of an answer's choices stands, of a plain or a chat completion."""
    places = [(choice, "text") for choice in answer.get("choices") or []]
    places += [(choice["message"], "content") for choice, _ in places if isinstance(choice.get("message"), dict)]
    return [(holder, name) for holder, name in places if isinstance(holder.get(name), str)]


def _leak(memory: dict[str, Any]) -> Callable[[str, Body, Body], Body]:
    def reply(path: str, body: Body, answer: Body) -> Body:
        own, previous = _code(body), memory.get("code")
        if own:
            memory["code"] = own
        if previous and own and previous != own:
            for holder, name in _texts(answer):
                holder[name] += " " + previous
        return answer

    return reply


def _swap(memory: dict[str, Any]) -> Callable[[str, Body, Body], Body]:
    """Each answer to a request with a code is the one before it."""

    def reply(path: str, body: Body, answer: Body) -> Body:
        for holder, name in _texts(answer) if _code(body) else ():
            holder[name], memory["text"] = memory.get("text", holder[name]), holder[name]
        return answer

    return reply


def _stale(memory: dict[str, Any]) -> Callable[[str, Body, Body], Body]:
    def reply(path: str, body: Body, answer: Body) -> Body:
        key = json.dumps([body.get("prompt"), body.get("cache_salt")])
        seen = memory.setdefault("seen", set())
        if "cache_salt" in body and key in seen:
            for choice in answer.get("choices") or []:
                values = (choice.get("logprobs") or {}).get("token_logprobs") or []
                for i in range(len(values)):
                    values[i] -= 1.0
        seen.add(key)
        return answer

    return reply


def _each_message(change: Callable[[Body], None]) -> Callable[[str, Body, Body], Body]:
    def reply(path: str, body: Body, answer: Body) -> Body:
        for choice in answer.get("choices") or []:
            if isinstance(choice.get("message"), dict):
                change(choice)
        return answer

    return reply


def _marker(choice: Body) -> None:
    choice["message"]["content"] = (choice["message"].get("content") or "") + "<|end|>"


def _marker_chunks(path: str, body: Body, chunks: list[Body]) -> list[Body]:
    for chunk in reversed(chunks):
        for choice in chunk.get("choices") or []:
            if "delta" in choice:
                choice["delta"]["content"] = "<|end|>"
                return chunks
    return chunks


def _early(path: str, body: Body, answer: Body) -> Body:
    for choice in answer.get("choices") or []:
        if isinstance(choice.get("message"), dict) and not choice["message"].get("tool_calls"):
            choice["message"].update(content="", reasoning="")
            choice["finish_reason"] = "stop"
    if answer.get("usage") and "/chat/" in path:
        answer["usage"].update(completion_tokens=1)
    return answer


def _drop_argument(choice: Body) -> None:
    for call in choice["message"].get("tool_calls") or []:
        try:
            arguments = json.loads(call["function"]["arguments"])
            if arguments:
                arguments.pop(next(iter(arguments)))
            call["function"]["arguments"] = json.dumps(arguments)
        except (ValueError, AttributeError):
            continue


def _drop_chunks(path: str, body: Body, chunks: list[Body]) -> list[Body]:
    """The first value of every streamed call loses its key: the fragments up to the first comma are swallowed."""
    for chunk in chunks:
        for choice in chunk.get("choices") or []:
            for piece in (choice.get("delta") or {}).get("tool_calls") or []:
                function = piece.get("function") or {}
                if function.get("arguments", "").strip(" {"):
                    function["arguments"] = function["arguments"].replace('"', "", 1)
                    return chunks
    return chunks


def _drop_auto(path: str, body: Body, chunks: list[Body]) -> list[Body]:
    """As `_drop_chunks`, only where the model chose to call."""
    chosen = body.get("tools") and body.get("tool_choice") in (None, "auto")
    return _drop_chunks(path, body, chunks) if chosen else chunks


def _late(path: str, body: Body, chunks: list[Body]) -> list[Body]:
    """All fragments of a call arrive as one, at its end."""
    held: Body | None = None
    out: list[Body] = []
    for chunk in chunks:
        pieces = [p for c in chunk.get("choices") or [] for p in (c.get("delta") or {}).get("tool_calls") or []]
        if not pieces:
            if held and any(c.get("finish_reason") for c in chunk.get("choices") or []):
                out.append(held)
                held = None
            out.append(chunk)
        elif held is None:
            held = chunk
        else:
            first = held["choices"][0]["delta"]["tool_calls"][0]
            for piece in pieces:
                first["function"]["arguments"] += (piece.get("function") or {}).get("arguments") or ""
    return out


def _unconstrained(path: str, body: Body) -> Body:
    if "schema" in json.dumps(body.get("response_format") or {}).replace("json_schema", ""):
        body.pop("response_format")
    body.pop("structured_outputs", None)
    if "text" in body:
        body.pop("text")
    return body


def _endless(choice: Body) -> None:
    message = choice["message"]
    if message.get("tool_calls"):
        return
    message["reasoning"] = (message.get("reasoning") or "") + (message.get("content") or "")
    message["content"] = None
    choice["finish_reason"] = "length"


def _repeat(path: str, body: Body, answer: Body) -> Body:
    if not path.endswith("/v1/completions") or not body.get("temperature"):
        return answer
    for choice in answer.get("choices") or []:
        if isinstance(choice.get("text"), str):
            choice["text"] = "!" * max(32, len(choice["text"]))
    return answer


def _html(path: str, body: Body) -> tuple[int, str, bytes] | None:
    return 200, "text/html", b"<html><body>Welcome to the gateway</body></html>"


def make(name: str) -> Fault:
    """A fresh fault by name (some remember earlier requests).

    Raises:
        KeyError: no such fault.
    """
    memory: dict[str, Any] = {}
    faults = [
        Fault("shifted-logits", "prompt log probabilities are off", reply=_shift_prompt_logprobs),
        Fault("duplicated-token", "a token is emitted twice", reply=_duplicate_token),
        Fault("window-off-by-one", "decode misses the oldest key of its window", reply=_window),
        Fault("blind-context", "only the tail of the prompt is seen", request=_blind),
        Fault("leaked-canary", "an answer holds another request's text", reply=_leak(memory)),
        Fault("swapped-answers", "an answer goes to another request", reply=_swap(memory)),
        Fault("stale-prefix", "a warm prefix cache serves a stale block", reply=_stale(memory)),
        Fault(
            "spoiled-by-abort",
            "a request that is hung up on spoils the blocks it shares",
            request=server_faults.hung_up(memory),
            reply=server_faults.spoiled_blocks(memory),
        ),
        Fault(
            "marker-in-content",
            "a format marker reaches the client",
            reply=_each_message(_marker),
            chunks=_marker_chunks,
        ),
        Fault("early-stop", "answers end at once", reply=_early),
        Fault("half-stream", "streams end without [DONE]", torn=True, transport=True),
        Fault("dropped-argument", "a tool argument is lost", reply=_each_message(_drop_argument), chunks=_drop_chunks),
        Fault("late-arguments", "tool arguments arrive in one piece at the end", chunks=_late),
        Fault("lost-auto-argument", "a call the model chose to make loses a piece in a stream", chunks=_drop_auto),
        Fault("unconstrained-json", "structured output is not enforced", request=_unconstrained),
        Fault("endless-thinking", "the reasoning never ends", reply=_each_message(_endless)),
        Fault("repeating", "the text loops", reply=_repeat),
        Fault("refusing-overload", "some requests die with a 500", most_at_once=8),
        Fault("shrunk-cache", "the KV cache lost half of its blocks", page=server_faults.shrunk_cache),
        Fault("late-compiles", "graphs are compiled while users wait", page=server_faults.late_compiles),
        Fault("other-weights", "other parameters were loaded", told=server_faults.other_weights),
        Fault("silent-version", "the version is not told", told=server_faults.silent_version),
        Fault("lost-row", "a chat answer's last log probability is missing", reply=server_faults.lost_row),
        Fault("scaled-logprobs", "log probabilities of chat are halved", reply=server_faults.scaled_logprobs),
        Fault("scaled-stream", "log probabilities are halved in streams", chunks=server_faults.scaled_stream),
        Fault("lost-chunks", "a streamed completion loses pieces of its text", chunks=server_faults.lost_chunks),
        Fault("lost-deltas", "the Responses API streams no text", chunks=server_faults.lost_deltas),
        Fault("hidden-answer", "with hidden reasoning the answer is lost", reply=server_faults.hidden_answer),
        Fault(
            "miscounted-usage",
            "a prompt token too many is counted",
            reply=server_faults.miscounted_answer,
            chunks=server_faults.miscounted_chunks,
        ),
        Fault("lax-validation", "values out of range are accepted", request=server_faults.lax),
        Fault("lost-item", "the Responses API leaves the reasoning out", reply=server_faults.lost_item),
        Fault("neighbour-logprobs", "a token is told its neighbour's score", reply=server_faults.neighbour_logprobs),
        Fault("dropped-system", "the system message is lost", request=server_faults.dropped_system),
        Fault("dropped-history", "earlier turns are lost", request=server_faults.dropped_history),
        Fault(
            "ignored-filters",
            "top_k, top_p and min_p are ignored",
            request=server_faults.without("top_k", "min_p", "top_p"),
        ),
        Fault("ignored-presence", "the presence penalty is ignored", request=server_faults.without("presence_penalty")),
        Fault("html-server", "a gateway answers in HTML", raw=_html, transport=True),
    ]
    return {fault.name: fault for fault in faults}[name]


NAMES = (
    "shifted-logits", "duplicated-token", "window-off-by-one", "blind-context", "leaked-canary",
    "swapped-answers", "stale-prefix", "spoiled-by-abort",
    "marker-in-content", "early-stop", "half-stream", "dropped-argument", "late-arguments", "unconstrained-json",
    "endless-thinking", "repeating", "refusing-overload", "shrunk-cache", "late-compiles", "other-weights",
    "silent-version", "lost-row", "scaled-logprobs", "miscounted-usage", "lax-validation", "lost-item",
    "lost-auto-argument", "scaled-stream", "lost-chunks", "lost-deltas", "hidden-answer",
    "neighbour-logprobs", "dropped-system", "dropped-history", "ignored-filters", "ignored-presence", "html-server",
)  # fmt: skip
