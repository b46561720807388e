# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 (word lists read better as text)
"""The texts gates send. Wording changes verdicts (a model may refuse a "secret code"), so it is a named parameter.

`plain` is for models that follow instructions. `toy` is a small artificial language (facts as `AB=1234;`, asked as
`?AB=`) for the stand-in server. `tiny` is the same language for the trained tiny Beam (gates/tiny), which was also
taught some of what the API checks ask in chat.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

_NAMES = (
    "Amina Boris Chen Dalia Emeka Farah Goran Hana Ivo Jun Kofi Lena Mateo Nadia Omar Petra Quinn Rosa Sami Tove"
).split(" ")
_PLACES = "harbour,library,orchard,station,bakery,workshop,museum,garden,market,observatory".split(",")
_THINGS = ["lantern", "violin", "ledger", "compass", "kettle", "bicycle", "telescope", "umbrella", "painting", "map"]
_VERBS = "repaired,moved,painted,described,borrowed,cleaned,sold,measured,photographed,returned".split(",")
_WHEN = ["in the morning", "before noon", "after lunch", "late in the evening", "on the same day", "a week later"]


def _sentence(rng: random.Random) -> str:
    return (
        f"{rng.choice(_NAMES)} {rng.choice(_VERBS)} the {rng.choice(_THINGS)} near the {rng.choice(_PLACES)} "
        f"{rng.choice(_WHEN)}."
    )


@dataclass(frozen=True)
class Wording:
    """How filler, facts and questions read.

    Attributes:
        filler: one sentence of text that means nothing to the question.
        fact: (key, value) to the sentence that holds it.
        question: key to the prompt's end, so that a greedy continuation names the value.
        copy_opening, copy_closing, copy_again: what stands around the text to copy and before the place to repeat it.
        chain: (names, number) to the sentences that hand the number from name to name, and the question for the last.
        keys, values: what names and values may be.
        chat: send as a chat message (True) or as a plain completion (False).
        skills: what a model that is asked so can do in chat; None is everything.
    """

    name: str
    filler: Callable[[random.Random], str]
    fact: Callable[[str, str], str]
    question: Callable[[str], str]
    copy_opening: str
    copy_closing: str
    copy_again: str
    keys: tuple[str, ...]
    values: Callable[[random.Random], str]
    chat: bool
    chain: Callable[[list[str], str], tuple[list[str], str]] | None = None
    skills: frozenset[str] | None = None

    def can(self, skill: str) -> bool:
        """Whether a model that is asked in this wording is expected to have a skill."""
        return self.skills is None or skill in self.skills

    def pick(self, rng: random.Random, count: int) -> list[tuple[str, str]]:
        """`count` distinct (key, value) pairs."""
        keys = rng.sample(self.keys, count)
        values: list[str] = []
        while len(values) < count:
            value = self.values(rng)
            if value not in values:
                values.append(value)
        return list(zip(keys, values, strict=True))


def _chain_plain(names: list[str], number: str) -> tuple[list[str], str]:
    names = [f"VAR {name}" for name in names]
    facts = [f"{names[0]} is set to {number}."]
    facts += [f"{b} is set to the value of {a}." for a, b in pairwise(names)]
    return facts, f"What number does {names[-1]} hold? Answer with the number only."


def _chain_toy(names: list[str], number: str) -> tuple[list[str], str]:
    return [TOY.fact(b, a) for a, b in pairwise([number, *names])], TOY.question(names[-1])


PLAIN = Wording(
    name="plain",
    filler=_sentence,
    fact=lambda key, value: f"The number of the {key} locker is {value}.",
    question=lambda key: f"What is the number of the {key} locker? Answer with the number only.",
    copy_opening="Here is line A, which you will be asked for:\n",
    copy_closing="\nEnd of line A. Other lines follow.\n",
    copy_again="\nThere the other lines end. Repeat line A exactly, from its first word to its last, and nothing else.",
    keys=tuple(f"{colour} {thing}" for colour in ("red", "blue", "green", "amber", "white") for thing in _THINGS),
    values=lambda rng: str(rng.randrange(100000, 999999)),
    chat=True,
    chain=_chain_plain,
)

_TOY_WORDS = tuple(chr(c) for c in range(ord("a"), ord("z") + 1))

TOY = Wording(
    name="toy",
    filler=lambda rng: "".join(rng.choice(_TOY_WORDS) for _ in range(3)),
    fact=lambda key, value: f"{key}={value};",
    question=lambda key: f"?{key}=",
    copy_opening="<",
    copy_closing="> ",
    copy_again=" <",
    keys=tuple(a + b for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for b in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    values=lambda rng: f"{rng.randrange(10000):04d}",
    chat=False,
    skills=frozenset({"answer instead of a call", "call"}),
)

TINY = dataclasses.replace(
    TOY,
    name="tiny",
    chain=_chain_toy,
    skills=frozenset(
        {
            "answer instead of a call",
            "call",
            "call twice",
            "obey",
            "remember",
            "repeat",
            "repeat emoji",
            "say result",
            "unusual argument",
        }
    ),
)

# What the tiny Muse did not learn of the tiny Beam's lessons: texts of rare bytes, a second call in a turn, no trace of
# a call where none is allowed.
TINY_MUSE = dataclasses.replace(
    TINY,
    name="tiny-muse",
    skills=(TINY.skills or frozenset())
    - {"repeat emoji", "unusual argument", "call twice", "answer instead of a call"},
)

WORDINGS = {wording.name: wording for wording in (PLAIN, TOY, TINY, TINY_MUSE)}
