# SPDX-License-Identifier: Apache-2.0
"""Isolation under preemption: every request carries a code of its own; no answer may hold another's.

The server is driven past its cache so that it preempts (its own counter tells how often); a run without preemptions
proves nothing and is SKIPped. Every request asks for its code back. Foreign content is the verdict, whatever else is
missing; where too few answers hold their own code the gate could not have seen a leak, and is SKIPped. Pieces of codes
are told apart from five characters on: a single leaked token may be shorter than that.
"""

from __future__ import annotations

import random
import threading

from gates.core import load, prompts, server_facts, stats
from gates.core.client import ServerTrouble
from gates.core.errors import Skip
from gates.core.gate import Context, Gate
from gates.core.result import GateResult, Measurement, Verdict

PREEMPTIONS = "vllm:num_preemptions_total"
GROWTH = 192  # tokens an answer has at least: more than one KV block of 128
CROWD = 4  # times the profile's concurrency are under way, as far as `crowd_tokens` allows
REPEATED = 0.25  # share of answers that must hold their own code


def codes(count: int, seed: int) -> list[str]:
    """Codes that share no five-character run with each other, so that a torn code is still told apart."""
    rng = random.Random(seed)
    out: list[str] = []
    grams: set[str] = set()
    while len(out) < count:
        code = "".join(rng.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(10))
        parts = {code[i : i + 5] for i in range(6)}
        if not parts & grams:
            grams |= parts
            out.append(code)
    return out


def foreign(answer: str, own: int, everyone: list[str]) -> list[str]:
    """Five-character pieces of other requests' codes in an answer."""
    pieces = {code[i : i + 5]: who for who, code in enumerate(everyone) for i in range(6)}
    return [piece for piece, who in pieces.items() if who != own and piece in answer]


def _least(ctx: Context) -> int:
    """Tokens an answer has at least."""
    return max(ctx.profile.greedy_tokens, GROWTH)


def _room(ctx: Context) -> int:
    return max(_least(ctx), ctx.profile.answer_tokens) if ctx.wording.chat else _least(ctx)


def _rung(ctx: Context) -> int:
    """Lengths are a quarter, a half and three quarters of it."""
    longest = ctx.profile.isolation_rung or max(ctx.profile.rungs)
    wanted = tuple(rung for rung in ctx.profile.rungs if rung <= longest)
    return ctx.lengths(wanted, reserve=2 * _least(ctx) + 64)[-1]


def _width(ctx: Context, rung: int) -> int:
    """Answers under way at once: more than the cache holds, so that the usual bound does not count."""
    return load.at_once(rung // 2, CROWD * ctx.profile.concurrency, ctx.profile.crowd_tokens)


def asks(ctx: Context) -> list[load.Asked]:
    """What is sent; that each is preempted once, and read again, is more than the Beam page saw (60 of 84)."""
    rung, count = _rung(ctx), ctx.profile.isolation_outputs
    lengths = [rung * (1 + index % 3) // 4 for index in range(count)]
    return [load.Asked(tokens, _room(ctx), at_once=_width(ctx, rung), reads=2) for tokens in lengths]


def _prompt(ctx: Context, code: str, tokens: int, seed: int, per_filler: float) -> str:
    rng = random.Random(seed)
    between = " ".join(ctx.wording.filler(rng) for _ in range(round(tokens / per_filler)))
    wording = ctx.wording
    return f"{wording.copy_opening}{code}{wording.copy_closing}{between}{wording.copy_again}"


def _answer(ctx: Context, prompt: str) -> str:
    """The answer's whole text, reasoning included. Only rows that outgrow their blocks while they decode make a full
    server preempt, so every answer is at least `_least` tokens long."""
    room = _least(ctx)
    if not ctx.wording.chat:
        answer = ctx.client.complete(prompt, max_tokens=room, temperature=0, ignore_eos=True)
        return str(answer["choices"][0].get("text") or "")
    room = _room(ctx)
    message = ctx.client.chat(prompt, max_tokens=room, min_tokens=_least(ctx), temperature=0)["choices"][0].get(
        "message", {}
    )
    return " ".join(str(message.get(part) or "") for part in ("reasoning", "reasoning_content", "content"))


def _run(ctx: Context) -> GateResult:
    count = ctx.profile.isolation_outputs
    everyone = codes(count, ctx.seed())
    before = (server_facts.metrics(ctx.client) or {}).get(PREEMPTIONS)
    rung = _rung(ctx)
    per_filler = prompts.tokens_per_filler(ctx.client, ctx.wording, random.Random(ctx.seed()))
    done = 0
    lock = threading.Lock()

    def one(index: int) -> tuple[list[str], bool]:
        nonlocal done
        # lengths differ so that rows join, leave and are preempted at different steps; a third share their prompt
        prompt = _prompt(ctx, everyone[index], rung * (1 + index % 3) // 4, index // 3, per_filler)
        answer = _answer(ctx, prompt)
        with lock:
            done += 1
            if done % 50 == 0:
                ctx.progress(f"{done}/{count} answers")
        return foreign(answer, index, everyone), everyone[index] in answer

    found = ctx.client.map(one, range(count), at_once=_width(ctx, rung))
    after = (server_facts.metrics(ctx.client) or {}).get(PREEMPTIONS)
    leaks = {str(i): pieces for i, (pieces, _) in enumerate(found) if pieces}
    own = sum(repeated for _, repeated in found)
    preempted = None if before is None or after is None else int(after - before)
    low, high = (round(share, 9) for share in stats.wilson(len(leaks), count))
    details = {"preemptions": preempted, "outputs": count, "own": own, "leaks": leaks, "prompt_tokens_up_to": rung}
    measurement = Measurement(float(len(leaks)), "answers with foreign content", low * count, high * count, count)
    if leaks:
        counted = "an unknown number of" if preempted is None else preempted
        reason = f"{len(leaks)} of {count} answers hold another request's code, with {counted} preemptions"
        return GateResult("isolation", Verdict.FAIL, reason, measurement, 0.0, "max", "zero tolerance", details=details)
    if preempted is None:
        raise Skip(f"the server does not count its preemptions ({PREEMPTIONS}): enable its metrics")
    if preempted < 0:
        raise ServerTrouble("the preemption counter fell", where=f"GET /metrics {PREEMPTIONS}", action="a restart?")
    if own < REPEATED * count:
        raise Skip(f"only {own} of {count} answers hold their own code: a leak could not have been seen")
    if preempted == 0:
        held = f"{_width(ctx, rung)} prompts of {rung // 2} tokens on average"
        raise Skip(
            f"the server never preempted with {held} at once: give it a smaller cache, or more sequences at once"
        )
    return GateResult("isolation", Verdict.PASS, "", measurement, 0.0, "max", "zero tolerance", details=details)


GATE = Gate(
    "isolation",
    "isolation",
    "no answer holds another request's content while requests are preempted",
    _run,
    ("leaked-canary", "swapped-answers"),
    asks,
)
