# SPDX-License-Identifier: Apache-2.0
"""Prompts of a wanted length in the server's own tokens, with facts at wanted depths."""

from __future__ import annotations

import random
from typing import Any

from gates.core.client import Client, ServerTrouble
from gates.core.errors import GateError
from gates.core.wording import Wording

SENTENCES = 32  # asked for at once


def tokens_per_filler(client: Client, wording: Wording, rng: random.Random) -> float:
    """Mean length of a filler sentence in tokens, from one sample of 64."""
    sample = " ".join(wording.filler(rng) for _ in range(64))
    return max(1.0, len(client.tokenize(sample)) / 64)


def filler(client: Client, wording: Wording, rng: random.Random, tokens: int) -> list[int]:
    """Exactly `tokens` ids of filler text.

    Raises:
        ServerTrouble: the server's tokenizer makes less than a token of a sentence.
    """
    text: list[int] = []
    while len(text) < tokens:
        more = client.tokenize(" ".join(wording.filler(rng) for _ in range(SENTENCES)))
        if len(more) < SENTENCES:
            raise ServerTrouble(f"{len(more)} tokens for {SENTENCES} sentences", where="POST /tokenize")
        text += more
    return text[:tokens]


def with_facts(
    client: Client, wording: Wording, *, tokens: int, facts: list[tuple[float, str]], seed: int, tail: str
) -> str:
    """Filler of about `tokens` tokens (within 5 %, or one sentence), the facts inserted at their depths, then `tail`.

    Args:
        facts: (depth 0..1, sentence).
    Raises:
        GateError: the facts alone are longer than `tokens`.
    """
    rng = random.Random(seed)
    per = tokens_per_filler(client, wording, rng)
    fixed = len(client.tokenize(" ".join([*(text for _, text in facts), tail])))
    if fixed > tokens:
        raise GateError(f"the facts need {fixed} tokens, the rung has {tokens}", action="raise the rung")
    sentences = [wording.filler(rng) for _ in range(max(0, round((tokens - fixed) / per)))]
    for _ in range(4):
        text = _weave(sentences, facts, tail)
        length = len(client.tokenize(text))
        surplus = round((length - tokens) / per)
        if surplus > 0:
            sentences = sentences[: max(0, len(sentences) - surplus)]
        elif surplus < 0 and abs(length - tokens) > 0.05 * tokens:
            sentences += [wording.filler(rng) for _ in range(-surplus)]
        else:
            break
    return _weave(sentences, facts, tail)


def _weave(sentences: list[str], facts: list[tuple[float, str]], tail: str) -> str:
    out = list(sentences)
    for depth, text in sorted(facts, key=lambda fact: -fact[0]):
        out.insert(round(depth * len(sentences)), text)
    return " ".join([*out, tail])


def ask(client: Client, wording: Wording, prompt: str, *, max_tokens: int, **options: Any) -> str:
    """The greedy answer's text: of a chat turn (content only) or of a plain completion."""
    if wording.chat:
        answer = client.chat(prompt, max_tokens=max_tokens, temperature=0, **options)
        return str(answer["choices"][0].get("message", {}).get("content") or "")
    answer = client.complete(prompt, max_tokens=max_tokens, temperature=0, **options)
    return str(answer["choices"][0].get("text") or "")
