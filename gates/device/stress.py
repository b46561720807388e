# SPDX-License-Identifier: Apache-2.0
"""Stress: overload, disconnects, oversize prompts, slow readers. The server stays up and answers afterwards.

Bounded in count and time by the profile; a refusal with a client error or 503 is a fine answer to overload, a dropped
connection, a 500 or a dead server is not.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gates.core.client import BadStatus, ServerTrouble, turned_away, with_choices
from gates.core.gate import Context, Gate, checks
from gates.core.result import GateResult

COMPLETIONS = "/v1/completions"


def _let_in(status: int) -> int:
    if turned_away(status):
        raise BadStatus(status, "", "the stress")
    return status


def _overload(ctx: Context) -> str:
    count = ctx.profile.concurrency * 8
    body = {"model": ctx.client.model, "prompt": "Hello", "max_tokens": 8, "temperature": 0}

    def one(index: int) -> str:
        try:
            reply = ctx.client.request("POST", COMPLETIONS, {**body, "prompt": f"Hello {index}"})
            if reply.status == 200:
                with_choices(reply.json(), COMPLETIONS, "text", str)
        except ServerTrouble as trouble:
            return str(trouble)
        return "" if reply.status in (200, 429, 503) else f"status {reply.status}"

    with ThreadPoolExecutor(max_workers=count) as pool:
        wrong = [text for text in pool.map(one, range(count)) if text]
    return f"{len(wrong)} of {count} requests: {wrong[0]}" if wrong else ""


def _disconnects(ctx: Context) -> str:
    body = {"model": ctx.client.model, "prompt": "Hello", "max_tokens": 256, "temperature": 1, "ignore_eos": True}

    def one(index: int) -> int:
        return ctx.client.stream(COMPLETIONS, {**body, "seed": index}, stop_after=1 + index % 4).status

    wrong = [_let_in(s) for s in ctx.client.map(one, range(ctx.profile.concurrency * 4)) if s != 200]
    return f"statuses {wrong[:4]}" if wrong else ""


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
    return "" if seen.chunks else "no events"


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
