# SPDX-License-Identifier: Apache-2.0
"""Copy: 64 tokens at the head of the context must come back exactly after everything in between."""

from __future__ import annotations

import random

from gates.core import prompts, stats
from gates.core.client import ServerTrouble
from gates.core.gate import Context, Gate, judge
from gates.core.load import Asked
from gates.core.result import GateResult, Measurement

LENGTH = 64


def matched(expected: list[int], got: list[int]) -> int:
    """Leading tokens that agree."""
    count = 0
    for a, b in zip(expected, got, strict=False):
        if a != b:
            break
        count += 1
    return count


def _case(ctx: Context, rung: int, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    line = ctx.wording.filler(rng)
    for _ in range(LENGTH):
        if len(wanted := ctx.client.tokenize(line)) >= LENGTH:
            break
        line += " " + ctx.wording.filler(rng)
    else:
        raise ServerTrouble(f"{len(wanted)} tokens for {LENGTH} sentences", where="POST /tokenize")
    want = min(LENGTH, ctx.profile.answer_tokens)
    filler_room = max(0, rung - len(wanted))
    per = prompts.tokens_per_filler(ctx.client, ctx.wording, rng)
    between = " ".join(ctx.wording.filler(rng) for _ in range(round(filler_room / per)))
    text = f"{ctx.wording.copy_opening}{line}{ctx.wording.copy_closing}{between}{ctx.wording.copy_again}"
    answer = prompts.ask(ctx.client, ctx.wording, text, max_tokens=ctx.profile.answer_tokens)
    got = ctx.client.tokenize(answer.strip())
    return matched(wanted[:want], got[:want]), want


def _rungs(ctx: Context) -> list[int]:
    return ctx.lengths(ctx.profile.rungs, reserve=ctx.profile.answer_tokens + 4 * LENGTH)


def asks(ctx: Context) -> list[Asked]:
    """What is sent: one text a length."""
    return ctx.asked(_rungs(ctx), ctx.profile.answer_tokens)


def _run(ctx: Context) -> GateResult:
    rungs = _rungs(ctx)
    ctx.progress(f"{len(rungs)} rungs")
    outcomes = ctx.ask(lambda r: _case(ctx, r, ctx.seed(r)), rungs, lambda r: r)
    share = sum(hit for hit, _ in outcomes) / max(1, sum(want for _, want in outcomes))
    # one early miss loses the rest of its text, so that cases are the trials, not tokens
    low, high = stats.wilson(sum(hit / want for hit, want in outcomes), len(outcomes))
    details = {"rungs": {str(r): f"{hit}/{want}" for r, (hit, want) in zip(rungs, outcomes, strict=True)}}
    return judge(ctx, "copy", Measurement(share, "share", low, high, len(outcomes)), details=details)


GATE = Gate(
    "copy",
    "quality",
    "64 tokens repeated exactly, by context length",
    _run,
    ("blind-context", "duplicated-token"),
    asks,
)
