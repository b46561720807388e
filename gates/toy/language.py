# SPDX-License-Identifier: Apache-2.0
"""Training texts: facts to look up, lines to copy, short chats and tool calls in Beam's message format.

Each example is (prompt, answer): the loss counts on the answer, and a little on the prompt so that texts stay texts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from gates.core.wording import TOY

Example = tuple[str, str]
THOUGHTS = ("ok", "I see.", "Let me think.", "A short answer will do.")
ANSWERS = ("Hello.", "Yes.", "It is fine.", "Here you are.", "Done.", "I am well, thank you.")
ASKED = ("Hello", "Hi", "Answer.", "Tell me something.", "How are you?", "Go on", "Explain it.", "Give a short letter.")


def lookup(rng: random.Random, length: int) -> Example:
    """Facts among filler, several asked one after the other: every question is one more chance to learn."""
    pairs = TOY.pick(rng, rng.randint(1, 8))
    parts = [TOY.filler(rng) for _ in range(max(2, length // 5))]
    for key, value in pairs:
        parts.insert(rng.randrange(len(parts) + 1), TOY.fact(key, value))
    key, value = rng.choice(pairs)
    asked = rng.sample(pairs, min(len(pairs), 4))
    answer = value + "." + "".join(f" {TOY.question(k)}{v}." for k, v in asked)
    return " ".join([*parts, TOY.question(key)]), answer


def copy(rng: random.Random, length: int) -> Example:
    """A line in angle brackets, then the same line."""
    line = " ".join(TOY.filler(rng) for _ in range(max(2, length // 10)))
    return f"{TOY.copy_opening}{line}{TOY.copy_again}", f"{line}>"


def _system(rng: random.Random, tools: list[dict]) -> str:
    effort = rng.choice(("low", "medium", "high", "high"))
    listed = "".join("\n" + json.dumps(tool) for tool in tools)
    return f"<|start|>system<|message|>Reasoning effort: {effort}{listed}<|end|>"


def _user(text: str) -> str:
    return f"<|start|>user<|message|>{text}<|end|><|start|>assistant"


def _think(rng: random.Random) -> str:
    return f"<|channel|>analysis<|message|>{rng.choice(THOUGHTS)}<|end|><|start|>assistant"


def chat(rng: random.Random, length: int) -> Example:
    """One turn: a thought, then a short answer; sometimes the answer is a fact from the message."""
    key, value = TOY.pick(rng, 1)[0]
    if rng.random() < 0.4:
        text, answer = f"{TOY.fact(key, value)} {TOY.question(key)}", value
    else:
        text, answer = rng.choice(ASKED), rng.choice(ANSWERS)
    return _system(rng, []) + _user(text), f"{_think(rng)}<|channel|>final<|message|>{answer}<|return|>"


def structured(rng: random.Random, length: int) -> Example:
    """A JSON answer, short, so that a grammar is left soon."""
    value: object = rng.choice(({"ok": True, "size": 3}, {"colour": "red"}, {"items": [{"colour": "blue"}]}, {"a": 1}))
    answer = json.dumps(value)
    return _system(rng, []) + _user("Answer."), f"{_think(rng)}<|channel|>final<|message|>{answer}<|return|>"


def call(rng: random.Random, length: int) -> Example:
    """A tool call with short values, once or twice."""
    name = "".join(rng.choice("abcdefghij") for _ in range(5))
    keys = rng.sample(("city", "unit", "days", "hour", "loud", "path", "text", "points"), rng.randint(0, 3))
    schema = {"type": "object", "properties": {k: {"type": "string"} for k in keys}, "required": keys}
    tools = [{"name": name, "parameters": schema}]
    values = ("Paris", "7", "true", "celsius", "a.txt", "[0, 1]", "ok")
    body = "".join(f'<rfl:parameter name="{k}">\n{rng.choice(values)}\n</rfl:parameter>' for k in keys)
    one = f" to={name}<|channel|>analysis <|constrain|>xml<|message|>{body}"
    calls = one if rng.random() < 0.8 else f"{one}<|end|><|start|>assistant{one}"
    return _system(rng, tools) + _user(rng.choice(ASKED)), f"{_think(rng)}{calls}<|call|>"


MIX: tuple[tuple[float, Callable[[random.Random, int], Example]], ...] = (
    (0.45, lookup),
    (0.2, copy),
    (0.13, chat),
    (0.07, structured),
    (0.15, call),
)


def batch(rng: random.Random, length: int, tokens: int) -> list[Example]:
    """Examples of one kind, so that their lengths are alike, of about `tokens` tokens altogether.

    Lookup and copy examples have about `length` tokens; chats and calls are as long as their format makes them.
    """
    kind = rng.choices([make for _, make in MIX], [weight for weight, _ in MIX])[0]
    first = kind(rng, length)
    count = max(4, tokens // max(1, sum(map(len, first))))
    return [first, *(kind(rng, length) for _ in range(count - 1))]
