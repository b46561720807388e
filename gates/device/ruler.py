# SPDX-License-Identifier: Apache-2.0
"""Harder than needles (after RULER's categories): many keys at once, chains of variables, and counting.

A needle is found by matching one phrase; these need several facts held apart (multi-key), followed (tracking) or
counted (aggregation), which fail first when a window, a cache block or a position is wrong. An answer must name the
value asked for and none of the others. The limit holds for all rungs together, and none may be short of it by itself.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable

from gates.core import prompts, stats
from gates.core.errors import Skip
from gates.core.gate import Context, Gate, judge
from gates.core.load import Asked
from gates.core.result import GateResult, Measurement, Verdict
from gates.core.wording import TOY
from gates.device import _reading

Task = tuple[list[tuple[float, str]], str, str, list[str]]  # facts at depths, question, answer, wrong answers


def multi_key(ctx: Context, rng: random.Random) -> Task:
    """Eight facts of one form, one asked for."""
    pairs = ctx.wording.pick(rng, 8)
    key, value = rng.choice(pairs)
    facts = [((i + 0.5) / len(pairs), ctx.wording.fact(k, v)) for i, (k, v) in enumerate(pairs)]
    return facts, ctx.wording.question(key), value, [other for _, other in pairs if other != value]


def tracking(ctx: Context, rng: random.Random) -> Task:
    """Two chains X1 = number, X2 = X1, X3 = X2, X4 = X3 among each other: which number does the last of one hold?"""
    if ctx.wording.chain is None:
        raise Skip(f"the {ctx.wording.name} wording has no chains")
    names = rng.sample(TOY.keys, 8)
    (_, number), (_, other) = ctx.wording.pick(rng, 2)
    facts, question = ctx.wording.chain(names[:4], number)
    beside, _ = ctx.wording.chain(names[4:], other)
    placed = [(0.1 + 0.22 * i, fact) for i, fact in enumerate(facts)]
    return [*placed, *((0.2 + 0.22 * i, fact) for i, fact in enumerate(beside))], question, number, [other]


def aggregation(ctx: Context, rng: random.Random) -> Task:
    """How often was one event reported?"""
    count = rng.randrange(3, 8)
    facts = [((i + 0.5) / count, f"Report {rng.randrange(100, 999)}: the silver bell rang once.") for i in range(count)]
    return facts, "How many reports of the silver bell are in the text? Answer with one digit only.", str(count), []


TASKS: dict[str, Callable[[Context, random.Random], Task]] = {
    "multi-key": multi_key,
    "tracking": tracking,
    "aggregation": aggregation,
}


def _case(ctx: Context, task: str, rung: int, seed: int) -> bool:
    facts, question, value, others = TASKS[task](ctx, random.Random(seed))
    text = prompts.with_facts(ctx.client, ctx.wording, tokens=rung, facts=facts, seed=seed, tail=question)
    answer = prompts.ask(ctx.client, ctx.wording, text, max_tokens=ctx.profile.answer_tokens)
    if task == "aggregation":
        return re.findall(r"\d+", answer) == [value]
    return _reading.names(ctx.wording, answer, value, others)


def _cases(ctx: Context) -> list[tuple[int, int]]:
    """(length, seed) of each."""
    rungs = [r for r in ctx.lengths(ctx.profile.rungs, reserve=ctx.profile.answer_tokens + 64) if r >= 96]
    return [(rung, ctx.seed(17 * i)) for rung in rungs for i in range(max(2, ctx.profile.samples // len(rungs)))]


def asks(ctx: Context) -> list[Asked]:
    """What one task sends."""
    return ctx.asked([rung for rung, _ in _cases(ctx)], ctx.profile.answer_tokens)


def _run_task(task: str) -> Callable[[Context], GateResult]:
    def run(ctx: Context) -> GateResult:
        if task == "aggregation" and not ctx.wording.can("count"):
            raise Skip(f"models of the {ctx.wording.name} wording cannot count")
        cases = _cases(ctx)
        ctx.progress(f"{len(cases)} cases up to {cases[-1][0]} tokens")
        hits = ctx.ask(lambda c: _case(ctx, task, *c), cases, lambda c: c[0])
        by_rung: dict[str, list[bool]] = {}
        for (rung, _), hit in zip(cases, hits, strict=True):
            by_rung.setdefault(str(rung), []).append(hit)
        low, high = stats.wilson(sum(hits), len(hits))
        details = {"rungs": {r: f"{sum(h)}/{len(h)}" for r, h in by_rung.items()}, "wording": ctx.wording.name}
        value = Measurement(sum(hits) / len(hits), "share", low, high, len(hits))
        result = judge(ctx, f"ruler-{task}", value, details=details)
        dead = _reading.short(by_rung, result.threshold or 0.0)
        if dead and result.verdict is Verdict.PASS:
            reason = f"by length: {dead} right, below {result.threshold:g} beyond chance"
            return dataclasses.replace(result, verdict=Verdict.FAIL, reason=reason)
        return result

    return run


GATES = tuple(
    Gate(f"ruler-{task}", "quality", f"long-context {task} by length", _run_task(task), ("blind-context",), asks)
    for task in TASKS
)
