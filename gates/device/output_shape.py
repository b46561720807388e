# SPDX-License-Identifier: Apache-2.0
"""The shape of answers: length band, repetition, one token only, thinking that never ends.

Each catches a class of fault that accuracy misses: early stop and run-on (MLPerf's TEST09 idea), loops beyond a
context length, answers of one token, and reasoning that eats every budget.
"""

from __future__ import annotations

import random
from collections import Counter

from gates.core import prompts, stats
from gates.core.client import completion_tokens
from gates.core.errors import Failed
from gates.core.gate import Context, Gate, beyond_chance, judge
from gates.core.load import Asked
from gates.core.result import GateResult, Measurement
from gates.core.suite import reasoning_of

QUESTIONS = (
    "Explain how a bicycle stays upright.",
    "Write a short letter of thanks to a neighbour.",
    "Summarise the water cycle in three sentences.",
    "Give a recipe for bread.",
    "Compare two ways to sort a list.",
    "What should one see in Lisbon in a day?",
    "Describe the colour blue to someone who cannot see.",
    "How does a vaccine work?",
)


def lengths(ctx: Context) -> list[tuple[int, str]]:
    """(completion tokens, text with its reasoning) of one sampled chat answer per question."""

    def one(index: int) -> tuple[int, str]:
        answer = ctx.client.chat(
            QUESTIONS[index % len(QUESTIONS)],
            max_tokens=ctx.profile.answer_tokens,
            temperature=0.7,
            seed=ctx.seed(index),
        )
        message = answer["choices"][0]["message"]
        return completion_tokens(answer), f"{reasoning_of(message)}{message.get('content') or ''}"

    return ctx.client.map(one, range(ctx.profile.samples))


def _one_token(ctx: Context) -> GateResult:
    seen = lengths(ctx)
    # The count may be of tokens that never reached the client: no answer to these questions has two characters.
    short = sum(count <= 2 or len(text.strip()) <= 2 for count, text in seen)
    low, high = stats.wilson(short, len(seen))
    details = {"mean_tokens": stats.mean([c for c, _ in seen]), "p10": stats.percentile([c for c, _ in seen], 0.1)}
    found = Measurement(short / len(seen), "share", low, high, len(seen))
    return beyond_chance(judge(ctx, "one-token-only", found, details=details))


def _endless(ctx: Context) -> GateResult:
    def one(index: int) -> bool:
        answer = ctx.client.chat(
            QUESTIONS[index % len(QUESTIONS)],
            max_tokens=ctx.profile.answer_tokens,
            temperature=0.7,
            seed=ctx.seed(index),
        )
        return not answer["choices"][0]["message"].get("content")  # cut off, or ended without a word

    stuck = ctx.client.map(one, range(ctx.profile.samples))
    low, high = stats.wilson(sum(stuck), len(stuck))
    return judge(ctx, "endless-thinking", Measurement(sum(stuck) / len(stuck), "share", low, high, len(stuck)))


def repeated_share(tokens: list[int], size: int = 8) -> float:
    """Share of windows of `size` tokens that occurred before: 0 for fresh text, near 1 for a loop."""
    windows = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    if not windows:
        return 0.0
    return 1 - len(Counter(windows)) / len(windows)


def _rungs(ctx: Context) -> list[int]:
    return ctx.lengths(ctx.profile.rungs, reserve=ctx.profile.greedy_tokens + 8)


def _asks_repetition(ctx: Context) -> list[Asked]:
    return [Asked(rung, ctx.profile.greedy_tokens) for rung in _rungs(ctx)]


def _repetition(ctx: Context) -> GateResult:
    rungs = _rungs(ctx)
    table: dict[str, float] = {}
    for rung in rungs:
        rng = random.Random(ctx.seed(rung))
        text = prompts.with_facts(ctx.client, ctx.wording, tokens=rung, facts=[], seed=rng.randrange(10**6), tail="")
        answer = ctx.client.complete(
            text, max_tokens=ctx.profile.greedy_tokens, temperature=0.7, seed=ctx.seed(), ignore_eos=True
        )
        tokens = ctx.client.tokenize(str(answer["choices"][0]["text"]))
        if len(tokens) < ctx.profile.greedy_tokens // 4:
            raise Failed(f"{len(tokens)} tokens where {ctx.profile.greedy_tokens} were asked for, its end ignored")
        table[str(rung)] = repeated_share(tokens)
    return judge(
        ctx, "repetition", Measurement(max(table.values()), "share", samples=len(rungs)), details={"rungs": table}
    )


GATES = (
    Gate("one-token-only", "robustness", "share of chat answers of at most two tokens", _one_token, ("early-stop",)),
    Gate(
        "endless-thinking",
        "robustness",
        "share of chat answers that never leave the reasoning, or say nothing after it",
        _endless,
        ("endless-thinking",),
    ),
    Gate(
        "repetition",
        "robustness",
        "share of repeated 8-token windows by context length",
        _repetition,
        ("repeating",),
        _asks_repetition,
    ),
)
