# SPDX-License-Identifier: Apache-2.0
"""Decode against prefill: the log probability a token had when it was decoded, and when the same text is read back.

Both are the same server's view of the same token after the same text, so any gap beyond rounding is a cache, window or
position fault. This gate catches duplicated tokens and windows that are off by one in minutes.
"""

from __future__ import annotations

import random
from dataclasses import replace

from gates.core import floor as floors
from gates.core import prompts, scoring, stats
from gates.core.gate import Context, Gate, judge
from gates.core.load import Asked
from gates.core.result import GateResult, Measurement


def gaps(ctx: Context, rung: int, seed: int) -> list[float]:
    """|difference| per decoded token for one prompt of `rung` tokens, in nats."""
    prompt = prompts.filler(ctx.client, ctx.wording, random.Random(seed), rung)
    made = scoring.continue_greedily(ctx.client, prompt, max_tokens=ctx.profile.greedy_tokens)
    read = scoring.score(ctx.client, [*prompt, *made.tokens], top=1)
    tail = read.logprobs[len(prompt) - 1 :]
    return [abs(a - b) for a, b in zip(made.logprobs, tail, strict=True)]


def _rungs(ctx: Context) -> list[int]:
    return ctx.lengths(ctx.profile.rungs, reserve=ctx.profile.greedy_tokens + 1)


def _each(ctx: Context, rungs: list[int]) -> int:
    """Continuations of each length."""
    return max(1, ctx.profile.samples // len(rungs))


def asks(ctx: Context) -> list[Asked]:
    """What is sent: each prompt to go on from, and to be read back with what was made."""
    rungs, made = _rungs(ctx), ctx.profile.greedy_tokens
    out = []
    for rung in rungs:
        alike = ctx.asked([rung] * _each(ctx, rungs), made)
        out += [*alike, *(replace(each, tokens=rung + made, answer=1) for each in alike)]
    return out


def _run(ctx: Context) -> GateResult:
    rungs = _rungs(ctx)
    by_rung: dict[str, dict[str, float]] = {}
    rows_of: dict[str, list[list[float]]] = {}
    seeds = tuple(ctx.seed(i) for i in range(_each(ctx, rungs)))
    for rung in rungs:
        ctx.progress(f"{rung} tokens")
        rows = ctx.ask(lambda s, r=rung: gaps(ctx, r, s), seeds, lambda s, r=rung: r)
        rows_of[str(rung)] = rows
        values = [gap for row in rows for gap in row]
        by_rung[str(rung)] = {
            "mean": stats.mean(values),
            "p50": stats.percentile(values, 0.5),
            "p99": stats.percentile(values, 0.99),
            "max": max(values),
        }
    floor = None
    if ctx.measure_floor:
        texts = [prompts.filler(ctx.client, ctx.wording, random.Random(seed), rungs[0]) for seed in seeds[:4]]
        floor = floors.measure(ctx, texts, top=1).mean_gap
    worst = max(by_rung, key=lambda r: by_rung[r]["mean"])
    # tokens of one continuation share their cache: it is the continuations of this rung that are sampled
    low, high = stats.not_below_zero(*stats.block_interval(rows_of[worst]))
    return judge(
        ctx,
        "decode-vs-prefill",
        Measurement(by_rung[worst]["mean"], "nats", low, high, sum(map(len, rows_of[worst]))),
        noise_floor=floor,
        seeds=seeds,
        details={"rungs": by_rung, "worst_rung": int(worst), "continuations": len(seeds)},
    )


GATE = Gate(
    "decode-vs-prefill",
    "quality",
    "mean absolute log-prob difference between decoding a token and reading it back, worst rung",
    _run,
    ("shifted-logits", "duplicated-token", "window-off-by-one", "neighbour-logprobs"),
    asks,
)
