# SPDX-License-Identifier: Apache-2.0
"""Needles by length and depth, with a no-needle control: a model that guesses the value is not reading it.

Another fact of the same form lies elsewhere: an answer that holds it, too, has not told them apart.
"""

from __future__ import annotations

import random
from dataclasses import replace

from gates.core import prompts, stats
from gates.core.gate import Context, Gate, judge
from gates.core.load import Asked
from gates.core.result import GateResult, Measurement, Verdict
from gates.device import _reading


def _case(ctx: Context, rung: int, depth: float, seed: int, *, planted: bool) -> bool:
    rng = random.Random(seed)
    (key, value), (other, decoy) = ctx.wording.pick(rng, 2)
    facts = [((depth + 0.4) % 1, ctx.wording.fact(other, decoy))]
    facts += [(depth, ctx.wording.fact(key, value))] if planted else []
    text = prompts.with_facts(
        ctx.client,
        ctx.wording,
        tokens=rung,
        facts=facts,
        seed=seed,
        tail=ctx.wording.question(key),
    )
    answer = prompts.ask(ctx.client, ctx.wording, text, max_tokens=ctx.profile.answer_tokens)
    return _reading.names(ctx.wording, answer, value, [decoy])


def _cases(ctx: Context) -> list[tuple[int, float, int]]:
    """(length, depth, seed) of each."""
    rungs = ctx.lengths(ctx.profile.rungs, reserve=ctx.profile.answer_tokens + 64)
    return [(r, d, ctx.seed(100 * i + j)) for i, r in enumerate(rungs) for j, d in enumerate(ctx.profile.depths)]


def _without(cases: list[tuple[int, float, int]]) -> list[tuple[int, float, int]]:
    """Those that are also asked with no needle planted."""
    return cases[:: max(1, len(cases) // 3)][:3]


def asks(ctx: Context) -> list[Asked]:
    """What is sent: each case, and some of them again."""
    cases = _cases(ctx)
    return [a for some in (cases, _without(cases)) for a in ctx.asked([c[0] for c in some], ctx.profile.answer_tokens)]


def _run(ctx: Context) -> GateResult:
    cases = _cases(ctx)
    ctx.progress(f"{len(cases)} needles up to {cases[-1][0]} tokens")
    found = ctx.ask(lambda c: _case(ctx, *c, planted=True), cases, lambda c: c[0])
    blind = ctx.ask(lambda c: _case(ctx, *c, planted=False), _without(cases), lambda c: c[0])
    table: dict[str, dict[str, bool]] = {}
    for (rung, depth, _), hit in zip(cases, found, strict=True):
        table.setdefault(str(rung), {})[f"{depth:g}"] = hit
    share = sum(found) / len(found)
    low, high = stats.wilson(sum(found), len(found))
    result = judge(
        ctx,
        "needles",
        Measurement(share, "share", low, high, len(found)),
        details={
            "rungs": table,
            "no_needle_hits": sum(blind),
            "no_needle_tried": len(blind),
            "wording": ctx.wording.name,
        },
    )
    if any(blind):
        return replace(
            result,
            verdict=Verdict.FAIL,
            reason=f"the no-needle control was answered {sum(blind)} of {len(blind)} times",
        )
    return result


GATE = Gate(
    "needles",
    "quality",
    "facts found by context length and depth, none where none was planted",
    _run,
    ("blind-context",),
    asks,
)
