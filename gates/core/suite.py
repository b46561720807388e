# SPDX-License-Identifier: Apache-2.0
"""Numbered API checks: small functions with a number and a sentence, collected into one gate per category."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gates.core import gate as gates
from gates.core.client import BadStatus, Client, Reply, ServerTrouble, Stream, turned_away, with_choices
from gates.core.errors import Failed, Skip
from gates.core.gate import Context
from gates.core.result import GateResult, Verdict

# What reading an answer of another shape raises.
ODD_SHAPES = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
PATH = "/v1/chat/completions"
AWHILE_S, MOST_SILENT, TOKENS_A_PIECE = 2.0, 0.75, 8  # what a stream must keep to, see `held_back`
CHAT = f"POST {PATH}"
MARKERS = (
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|call|>",
    "<|return|>",
    "<rfl:",
    "</rfl:",
    "<|eom|>",
    "<|eot|>",
    "<atem:",
    "</atem:",
)


def expect(condition: object, message: str) -> None:
    """Raise `Failed` unless the condition is true."""
    if not condition:
        raise Failed(message)


def marker_in(text: str | None) -> str:
    """The first format marker in a text, or ""."""
    return next((m for m in MARKERS if m in (text or "")), "")


@dataclass
class Api:
    """What a check is given: the server, short request helpers, and whether the model can follow instructions."""

    ctx: Context

    @property
    def client(self) -> Client:
        return self.ctx.client

    def needs(self, skill: str) -> None:
        """Skip the check on a model that was never taught what it asks for."""
        if not self.ctx.wording.can(skill):
            raise Skip(f"needs a model that can: {skill}")

    @property
    def room(self) -> int:
        return self.ctx.profile.answer_tokens

    def body(self, messages: list[dict[str, Any]] | str = "Hello", **options: Any) -> dict[str, Any]:
        """A chat request body, greedy and with room for the answer unless the options say otherwise."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return {"model": self.client.model, "messages": messages, "max_tokens": self.room, "temperature": 0, **options}

    def post(self, body: dict[str, Any] | bytes, path: str = PATH) -> Reply:
        """Any answer but that the client is turned away, which is no verdict on the server (`BadStatus`)."""
        return self._let_in(self.client.request("POST", path, body), f"POST {path}")

    def get(self, path: str) -> Reply:
        """As `post`."""
        return self._let_in(self.client.request("GET", path), f"GET {path}")

    def _let_in(self, reply: Reply, where: str) -> Reply:
        if turned_away(reply.status):
            raise BadStatus(reply.status, reply.text, where)
        return reply

    def choice(self, messages: list[dict[str, Any]] | str = "Hello", **options: Any) -> dict[str, Any]:
        """First choice of a chat answer that must be a 200."""
        reply = self.post(self.body(messages, **options))
        if reply.status >= 500 or turned_away(reply.status):
            raise BadStatus(reply.status, reply.text, CHAT)
        expect(reply.status == 200, f"status {reply.status}: {reply.text[:160]}")
        return dict(with_choices(reply.json(), PATH, "message", dict)["choices"][0])

    def message(self, messages: list[dict[str, Any]] | str = "Hello", **options: Any) -> dict[str, Any]:
        return dict(self.choice(messages, **options).get("message") or {})

    def stream(self, messages: list[dict[str, Any]] | str = "Hello", **options: Any) -> Stream:
        out = self.events(PATH, self.body(messages, **options))
        for chunk in out.chunks:
            if chunk.get("choices") != []:
                with_choices(chunk, PATH, "delta", dict)
        return out

    def events(self, path: str, body: dict[str, Any], **options: Any) -> Stream:
        """An event stream that must be a 200; options as for `Client.stream`."""
        out = self.client.stream(path, body, **options)
        if out.status >= 500 or turned_away(out.status):
            raise BadStatus(out.status, out.error, f"POST {path}")
        expect(out.status == 200, f"status {out.status}: {out.error[:160]}")
        return out

    def plain_answer(self) -> bool:
        """Whether the server still answers the plainest request."""
        try:
            self.client.chat("Hello", max_tokens=1)
        except ServerTrouble:
            return False
        return True

    def refused(self, body: Any, path: str = PATH, status: tuple[int, ...] = (400, 422)) -> Reply:
        """The request must be answered with a client error and a message, quickly and without killing the server."""
        reply = self.client.request("POST", path, body)
        if turned_away(reply.status) and reply.status not in status:
            raise BadStatus(reply.status, reply.text, f"POST {path}")
        expect(reply.status in status, f"status {reply.status} where {status[0]} is due: {reply.text[:120]!r}")
        text = json.dumps(reply.data) if reply.data is not None else ""
        expect("message" in text or "detail" in text, f"no error message: {reply.text[:120]!r}")
        return reply


def as_plain(streamed: Callable[[], Any], plain: Callable[[], Any]) -> None:
    """A stream of a greedy answer tells what the plain answer does.

    Where the two differ the plain answer is asked for twice more and the stream once: in another batch, or cold, a
    near-tie may turn.

    Raises:
        Skip: the plain answers differ among themselves, and from the stream.
        Failed: they agree, and no stream does.
    """
    told, first = streamed(), plain()
    if told == first:
        return
    again = [plain() for _ in range(2)]
    if told in again:
        return
    if again != [first, first]:
        raise Skip("greedy answers differ from each other here")
    expect(streamed() == first, f"{str(told)[:200]!r} in a stream, {str(first)[:200]!r} in the plain answer")


def held_back(stream: Stream) -> str:
    """Why a chat stream is none to a user: nothing for most of its time, or all in a piece; "" where it is one.

    Short ones are not judged by time: a second is no wait, and the first request may meet a cold graph.
    """
    shown = [
        now
        for chunk, now in zip(stream.chunks, stream.times_s, strict=True)
        if any(_shows(choice.get("delta") or {}) for choice in chunk.get("choices") or [])
    ]
    whole = stream.times_s[-1] if stream.times_s else 0.0
    if not shown:
        return "nothing is shown"
    if whole > AWHILE_S and shown[0] > MOST_SILENT * whole:
        return f"nothing is shown for {shown[0]:.1f} of {whole:.1f} s"
    tokens = next((c["usage"]["completion_tokens"] for c in reversed(stream.chunks) if c.get("usage")), 0)
    if len(shown) * TOKENS_A_PIECE < tokens:
        return f"{tokens} tokens come in {len(shown)} pieces"
    return ""


def _shows(delta: dict[str, Any]) -> bool:
    return bool(delta.get("content") or reasoning_of(delta) or delta.get("tool_calls"))


def reasoning_of(message: dict[str, Any]) -> str:
    """The reasoning of a message or delta under either field name."""
    return message.get("reasoning") or message.get("reasoning_content") or ""


@dataclass(frozen=True)
class Check:
    number: int
    text: str
    run: Callable[[Api], None]

    @property
    def name(self) -> str:
        return f"{self.number:03d} {self.text}"


def judged(gate: str, outcomes: dict[str, str], broke: list[str]) -> GateResult:
    """`gates.checks`, but ERROR where nothing went wrong except that the answers of some checks (`broke`) were none."""
    result = gates.checks(gate, outcomes)
    failed = {name for name, text in outcomes.items() if text and not text.startswith("skip: ")}
    if failed - set(broke) or not broke:
        return result
    reason = f"{len(broke)} of {len(outcomes)} checks broke, first `{broke[0]}`: {outcomes[broke[0]]}"
    return dataclasses.replace(result, verdict=Verdict.ERROR, reason=reason)


class Suite:
    """Collects the checks of one category."""

    def __init__(self, name: str, summary: str) -> None:
        self.name, self.summary = name, summary
        self.checks: list[Check] = []

    def check(self, number: int, text: str) -> Callable[[Callable[[Api], None]], Callable[[Api], None]]:
        """Register a function as check `number`; numbers follow the project's list of API checks."""

        def add(function: Callable[[Api], None]) -> Callable[[Api], None]:
            if any(c.number == number for c in self.checks):
                raise ValueError(f"check {number} is registered twice in {self.name}")
            self.checks.append(Check(number, text, function))
            return function

        return add

    def run(self, ctx: Context) -> GateResult:
        """Run every check.

        A status that says that the server failed fails the check, as long as a plain request is still answered. An
        answer that is torn, hangs or is no answer of this API then ends the gate in ERROR, after the other checks; a
        client that is turned away and a server that is gone end it at once, since the rest would meet it, too.
        """
        outcomes: dict[str, str] = {}
        broke: list[str] = []
        for number, check in enumerate(self.checks, 1):
            ctx.progress(f"{number}/{len(self.checks)} {check.text}")
            try:
                check.run(Api(ctx))
                outcomes[check.name] = ""
            except Failed as failed:
                outcomes[check.name] = str(failed) or "failed"
            except Skip as skip:
                outcomes[check.name] = f"skip: {skip}"
            except ServerTrouble as trouble:
                if getattr(trouble, "turned_away", False) or not Api(ctx).plain_answer():
                    raise
                outcomes[check.name] = str(trouble)
                if not isinstance(trouble, BadStatus):
                    broke.append(check.name)
            except ODD_SHAPES as error:
                outcomes[check.name] = f"the answer has another shape ({type(error).__name__}: {error})"
        return judged(self.name, outcomes, broke)

    def gate(self, *faults: str) -> gates.Gate:
        return gates.Gate(self.name, "api", self.summary, self.run, faults)
