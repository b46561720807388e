# SPDX-License-Identifier: Apache-2.0
"""Stress: overload, disconnects, oversize prompts, slow readers. The server stays up and answers afterwards.

Bounded in count and time by the profile; a refusal with a client error or 503 is a fine answer to overload, a dropped
connection, a 500 or a dead server is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gates.core.client import ServerTrouble
from gates.core.gate import Context, Gate, checks
from gates.core.result import GateResult


def _overload(ctx: Context) -> str:
    count = ctx.profile.concurrency * 8
    body = {"model": ctx.client.model, "prompt": "Hello", "max_tokens": 8, "temperature": 0}

    def one(index: int) -> str:
        try:
            status = ctx.client.request("POST", "/v1/completions", {**body, "prompt": f"Hello {index}"}).status
        except ServerTrouble as trouble:
            return str(trouble)
        return "" if status in (200, 429, 503) else f"status {status}"

    with ThreadPoolExecutor(max_workers=count) as pool:
        wrong = [text for text in pool.map(one, range(count)) if text]
    return f"{len(wrong)} of {count} requests: {wrong[0]}" if wrong else ""


def _disconnects(ctx: Context) -> str:
    body = {"model": ctx.client.model, "prompt": "Hello", "max_tokens": 256, "temperature": 1, "ignore_eos": True}

    def one(index: int) -> int:
        return ctx.client.stream("/v1/completions", {**body, "seed": index}, stop_after=1 + index % 4).status

    wrong = [s for s in ctx.client.map(one, range(ctx.profile.concurrency * 4)) if s != 200]
    return f"statuses {wrong[:4]}" if wrong else ""


def _oversize(ctx: Context) -> str:
    limit = ctx.facts.max_model_len or 1 << 20
    for size in (limit + 1, 4 * limit):
        text = "a " * size
        status = ctx.client.request(
            "POST", "/v1/completions", {"model": ctx.client.model, "prompt": text, "max_tokens": 4}
        ).status
        if not 400 <= status < 500:
            return f"{size} words: status {status}"
    return ""


def _slow_reader(ctx: Context) -> str:
    body = {
        "model": ctx.client.model,
        "prompt": "Hello",
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    seen = 0
    for kind, _, _ in ctx.client._send("POST", "/v1/completions", body, ctx.profile.deadline_s):
        seen += kind == "bytes"
        if seen < 6:
            time.sleep(0.2)
    return "" if seen else "no bytes"


def _alive(ctx: Context) -> str:
    if ctx.client.request("GET", "/health").status != 200:
        return "health is not 200"
    answer = ctx.client.complete("Hello", max_tokens=2, temperature=0)
    return "" if answer["usage"]["completion_tokens"] == 2 else f"usage {answer['usage']}"


def _try(step: Callable[[Context], str], ctx: Context) -> str:
    """A step's complaint. The server was seen healthy before, so one that is gone now is its fault, not the gate's."""
    try:
        return step(ctx)
    except ServerTrouble as trouble:
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
