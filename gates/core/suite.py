# SPDX-License-Identifier: Apache-2.0
"""Numbered API checks: small functions with a number and a sentence, collected into one gate per category."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gates.core import gate as gates
from gates.core.client import Client, Reply, ServerTrouble, Stream
from gates.core.errors import Failed
from gates.core.gate import Context, Skip
from gates.core.result import GateResult

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

    def post(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> Reply:
        return self.client.request("POST", path, body)

    def choice(self, messages: list[dict[str, Any]] | str = "Hello", **options: Any) -> dict[str, Any]:
        """First choice of a chat answer that must be a 200."""
        reply = self.post(self.body(messages, **options))
        if reply.status >= 500:
            raise ServerTrouble(f"status {reply.status}: {reply.text[:120]!r}", where="POST /v1/chat/completions")
        expect(reply.status == 200, f"status {reply.status}: {reply.text[:160]}")
        choices = reply.json().get("choices") or []
        if not choices:
            raise ServerTrouble("an answer without choices", where="POST /v1/chat/completions", action="is this vLLM?")
        return dict(choices[0])

    def message(self, messages: list[dict[str, Any]] | str = "Hello", **options: Any) -> dict[str, Any]:
        return dict(self.choice(messages, **options).get("message") or {})

    def stream(self, messages: list[dict[str, Any]] | str = "Hello", **options: Any) -> Stream:
        out = self.client.stream("/v1/chat/completions", self.body(messages, **options))
        if out.status >= 500:
            raise ServerTrouble(f"status {out.status}: {out.error[:120]!r}", where="POST /v1/chat/completions")
        expect(out.status == 200, f"status {out.status}: {out.error[:160]}")
        return out

    def refused(self, body: Any, path: str = "/v1/chat/completions", status: tuple[int, ...] = (400, 422)) -> Reply:
        """The request must be answered with a client error and a message, quickly and without killing the server."""
        reply = self.client.request("POST", path, body)
        expect(reply.status in status, f"status {reply.status} where {status[0]} is due: {reply.text[:120]!r}")
        text = json.dumps(reply.data) if reply.data is not None else ""
        expect("message" in text or "detail" in text, f"no error message: {reply.text[:120]!r}")
        return reply


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
        """Run every check; a check that meets a broken server ends the gate in ERROR, since the rest would too."""
        outcomes: dict[str, str] = {}
        for number, check in enumerate(self.checks, 1):
            ctx.progress(f"{number}/{len(self.checks)} {check.text}")
            try:
                check.run(Api(ctx))
                outcomes[check.name] = ""
            except Failed as failed:
                outcomes[check.name] = str(failed) or "failed"
            except Skip as skip:
                outcomes[check.name] = f"skip: {skip}"
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                outcomes[check.name] = f"the answer has another shape ({type(error).__name__}: {error})"
        return gates.checks(self.name, outcomes)

    def gate(self, *faults: str) -> gates.Gate:
        return gates.Gate(self.name, "api", self.summary, self.run, faults)
