# SPDX-License-Identifier: Apache-2.0
"""Stress: overload, disconnects, oversize prompts, slow readers. The server stays up and answers afterwards.

Bounded in count and time by the profile; a refusal with a client error or 503 is a fine answer to overload, a dropped
connection, a 500 or a dead server is not.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gates.core.client import BadStatus, ServerTrouble, said, turned_away, with_choices
from gates.core.gate import Context, Gate, checks
from gates.core.result import GateResult

COMPLETIONS = "/v1/completions"


def _let_in(status: int) -> int:
    if turned_away(status):
        raise BadStatus(status, "", "the stress")
    return status


def _cut_short(answer: dict[str, Any], tokens: int) -> str:
    """Why an answer, its end ignored, is not whole. A server may know no `ignore_eos`, and tell no usage."""
    finish, usage = answer["choices"][0].get("finish_reason"), answer.get("usage")
    made = usage.get("completion_tokens") if isinstance(usage, dict) else None
    whole = made is None or made == tokens or (finish == "stop" and made in range(1, tokens))
    return "" if whole else f"{made} tokens where {tokens} were asked for, finish reason {finish!r}"


def _lost_text(ctx: Context, prompt: str, tokens: int) -> str:
    """For an answer without text: whether the prompt alone has one. A model may well write what no text shows."""
    alone = ctx.client.complete(prompt, max_tokens=tokens, temperature=0, ignore_eos=True)
    return "no text, alone there is one" if alone["choices"][0]["text"] else ""


def _overload(ctx: Context) -> str:
    count = ctx.profile.concurrency * 8
    body = {"model": ctx.client.model, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    prompts = [f"Hello {index}" for index in range(count)]

    def one(prompt: str) -> tuple[str, bool]:
        """A complaint, and whether there is no text."""
        try:
            reply = ctx.client.request("POST", COMPLETIONS, {**body, "prompt": prompt})
            if reply.status != 200:
                return "" if reply.status in (429, 503) else f"status {reply.status}", False
            answer = with_choices(reply.json(), COMPLETIONS, "text", str)
        except ServerTrouble as trouble:
            return str(trouble), False
        return _cut_short(answer, 8), not answer["choices"][0]["text"]

    with ThreadPoolExecutor(max_workers=count) as pool:
        seen = list(pool.map(one, prompts))
    told = [
        text or (_lost_text(ctx, prompt, 8) if empty else "")
        for prompt, (text, empty) in zip(prompts, seen, strict=True)
    ]
    wrong = [text for text in told if text]
    return f"{len(wrong)} of {count} requests: {wrong[0]}" if wrong else ""


def _disconnects(ctx: Context) -> str:
    body = {"model": ctx.client.model, "prompt": "Hello", "max_tokens": 256, "temperature": 1, "ignore_eos": True}

    def one(index: int) -> str:
        seen = ctx.client.stream(COMPLETIONS, {**body, "seed": index}, stop_after=1 + index % 4)
        if _let_in(seen.status) != 200:
            return f"status {seen.status}"
        return "" if said(seen) else "a stream without a choice"

    wrong = [text for text in ctx.client.map(one, range(ctx.profile.concurrency * 4)) if text]
    return f"{len(wrong)} of {ctx.profile.concurrency * 4} streams: {wrong[0]}" if wrong else ""


def _oversize(ctx: Context) -> str:
    limit = ctx.facts.max_model_len or 1 << 20
    for size in (limit + 1, 4 * limit):
        text = "a " * size
        status = ctx.client.request(
            "POST", COMPLETIONS, {"model": ctx.client.model, "prompt": text, "max_tokens": 4}
        ).status
        if not 400 <= _let_in(status) < 500:
            return f"{size} words: status {status}"
    return ""


def _slow_reader(ctx: Context) -> str:
    body = {
        "model": ctx.client.model,
        "prompt": "Hello",
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
    }
    seen = ctx.client.stream(COMPLETIONS, body, slow_reads=(0.2,) * 5)
    if _let_in(seen.status) != 200:
        return f"status {seen.status}"
    if len(reasons := seen.finish_reasons()) < 1:
        return f"finish reasons {reasons}"
    text = "".join(str(choice.get("text") or "") for chunk in said(seen) for choice in chunk["choices"])
    return "" if text else _lost_text(ctx, "Hello", 24)


def _alive(ctx: Context) -> str:
    if _let_in(ctx.client.request("GET", "/health").status) != 200:
        return "health is not 200"
    answer = ctx.client.complete("Hello", max_tokens=2, temperature=0)
    told = answer.get("usage")  # what it says is judged by api-usage-errors
    counted = told.get("completion_tokens", 2) if isinstance(told, dict) else 2
    return "" if counted in (2, None) else f"usage {told}"


def _try(step: Callable[[Context], str], ctx: Context) -> str:
    """A step's complaint. The server was seen healthy before, so one that is gone now is its fault, not the gate's.

    Raises:
        BadStatus: the client is turned away, by a rate limit for one: that says nothing of the server.
    """
    try:
        return step(ctx)
    except ServerTrouble as trouble:
        if getattr(trouble, "turned_away", False):
            raise
        return str(trouble)


def _run(ctx: Context) -> GateResult:
    steps = {"overload": _overload, "disconnects": _disconnects, "oversize": _oversize, "slow reader": _slow_reader}
    if trouble := _alive(ctx):
        raise ServerTrouble(f"not healthy before the stress: {trouble}", action="see the server's log")
    outcomes: dict[str, str] = {}
    for name, step in steps.items():
        ctx.progress(name)
        outcomes[name] = _try(step, ctx)
        outcomes[f"alive after {name}"] = _try(_alive, ctx)
    return checks("stress", outcomes)


GATE = Gate(
    "stress",
    "robustness",
    "overload, disconnects, oversize and slow readers leave the server up",
    _run,
    ("refusing-overload",),
)
