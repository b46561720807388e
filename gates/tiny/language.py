# SPDX-License-Identifier: Apache-2.0

"""Plain-text tasks of the tiny model, in the gates' `toy` wording: a text with the parts that are to be learnt."""

from __future__ import annotations

import random
from typing import Any

from gates.core.wording import TOY
from gates.tiny.turns import Part

END = "<end>"  # stands for the family's own end token


def filler(rng: random.Random, count: int) -> list[str]:
    return [TOY.filler(rng) for _ in range(count)]


def weave(rng: random.Random, facts: list[str], words: list[str]) -> str:
    """Facts in their order at random places between the words."""
    out = list(words)
    for place, fact in zip(
        sorted((rng.randrange(len(words) + 1) for _ in facts), reverse=True), facts[::-1], strict=True
    ):
        out.insert(place, fact)
    return " ".join(out)


def lookup(rng: random.Random, room: int) -> list[Part]:
    """Facts among filler, then one question or many of them (every answer is a lesson)."""
    count = rng.choice((1, 2, 4, 8, max(1, room // 20)))
    pairs = TOY.pick(rng, min(count, max(1, room // 14)))
    asked = pairs if rng.random() < 0.7 else pairs[:1]
    asked = rng.sample(asked, len(asked))
    words = max(0, (room - 9 * len(pairs) - 11 * len(asked)) // 4)
    parts: list[Part] = [(weave(rng, [TOY.fact(*p) for p in pairs], filler(rng, words)), False)]
    for key, value in asked:
        parts += [(" " + TOY.question(key), False), (f"{value};", True)]
    return [*parts, (END, True)] if len(asked) == 1 else parts


def chain(rng: random.Random, room: int) -> list[Part]:
    """B=A; C=B; ...: the answer spells out the way, `?C=B=A=1234;`, so that each step is one lookup."""
    hops = rng.choice((1, 2, 3))
    names = rng.sample(TOY.keys, 2 * hops + 2)
    facts, asked = [], []
    for line in (names[: hops + 1], names[hops + 1 :]):
        values = [TOY.values(rng), *line]
        facts += [TOY.fact(key, value) for key, value in zip(line, values, strict=False)]
        asked.append((line[-1], "=".join(values[hops::-1]) + ";"))
    rng.shuffle(facts)
    words = max(0, (room - 9 * len(facts) - 50) // 4)
    parts: list[Part] = [(weave(rng, facts, filler(rng, words)), False)]
    for key, answer in asked:
        parts += [(" " + TOY.question(key), False), (answer, True)]
    return parts


def copy(rng: random.Random, room: int) -> list[Part]:
    """A line in brackets, filler, and the line again."""
    longest = max(4, room // 9)
    line = " ".join(filler(rng, rng.randrange(3, longest)))
    between = " ".join(filler(rng, max(0, room // 4 - 2 * len(line.split()) - 2)))
    ahead, behind = (f"{between} ", "") if rng.random() < 0.3 else ("", between)
    return [(f"{ahead}<{line}> {behind}{TOY.copy_again}", False), (f"{line}>", True), (END, True)]


def repeat(rng: random.Random, room: int) -> list[Part]:
    """A run of random bytes over and over: induction in its purest form."""
    letters = [chr(rng.randrange(33, 127)) for _ in range(rng.randrange(8, 32))]
    run = "".join(letters)
    return [(run, False), (run * max(1, room // len(run) - 1), True)]


TASKS = {"lookup": lookup, "chain": chain, "copy": copy, "repeat": repeat}


def draw(tokenizer: Any, task: str, rng: random.Random, room: int) -> list[Part]:
    """A text of a task, with the tokenizer's end token at its end where it has one."""
    return [(tokenizer.eos_token if text == END else text, lesson) for text, lesson in TASKS[task](rng, room)]
