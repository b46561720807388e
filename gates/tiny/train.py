# SPDX-License-Identifier: Apache-2.0

"""Train a tiny model with Hugging Face's own model class.

    python -m gates.tiny.train OUT                 # about ten CPU minutes, in the environment of the references
    python -m gates.tiny.train OUT --model muse
    python -m gates.tiny.train OUT --steps 200     # to see it start

Progress is kept in OUT/training.pt; an interrupted run goes on from there.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from gates.tiny import chat, language
from gates.tiny.family import NAMES, Family, family
from gates.tiny.turns import Part, Turns

PHASES = (1200, 2600, 2800, 3500)  # the step at which each ends
TOKENS = 2048  # a step
RATE = 2e-3
PLAIN_WEIGHT = 0.05  # of tokens that are no lesson: keeps it a language model of its filler and prompts
Sample = tuple[list[int], list[float]]


def encode(tokenizer: Any, parts: list[Part], entry: float) -> Sample:
    """Token ids and the weight of each as a target; `entry` is the weight of a lesson's first token."""
    ids, weights = [], []
    for text, lesson in parts:
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        weights += [1.0 if lesson else PLAIN_WEIGHT] * len(piece)
        if lesson and piece:
            weights[-len(piece)] = entry
    return ids, weights


def sample(
    tokenizer: Any, turns: Turns, rng: random.Random, step: int, room: int, chat_share: float, entry: float
) -> Sample:
    """One text of at most `room` tokens."""
    while True:
        if rng.random() < chat_share:
            names = list(chat.TASKS)
            name = rng.choices(names, [chat.TASKS[n][min(phase(step), 2) + 1] for n in names])[0]
            parts = chat.parts(tokenizer, turns, chat.TASKS[name][0](rng))
        else:
            name = rng.choices(list(language.TASKS), (2, 1, 6, 1) if phase(step) == 3 else (4, 2, 2, 1))[0]
            parts = language.draw(tokenizer, name, rng, rng.randrange(room // 2, room))
        ids, weights = encode(tokenizer, parts, entry)
        if len(ids) <= room + 1:
            return ids, weights


def phase(step: int) -> int:
    """Index of the phase that a step belongs to."""
    return sum(step >= end for end in PHASES[:-1])


def plan(step: int, rng: random.Random) -> tuple[int, float, float]:
    """(longest text in tokens, share of chat, weight of a lesson's first token) of a step.

    The first phase teaches to copy and to follow the format, the second where to start copying: the first token of a
    name in a tool call has nothing before it that also stands before the name in the question. The third keeps apart
    what the second mixes up: a message that is said back may hold the words that end a name in a call. The fourth is
    for long copies, where one wrong letter in hundreds counts.
    """
    if step >= PHASES[2]:
        return rng.choice((160, 448, 832)), 0.55, 2.0
    if step >= PHASES[1]:
        return rng.choice((160, 160, 448, 832)), 0.75, 2.0
    if step >= PHASES[0]:
        return rng.choice((160, 160, 448, 832)), 0.7, 4.0
    if step < 0.1 * PHASES[0]:
        return 128, 0.3, 1.0
    if step < 0.75 * PHASES[0]:
        return rng.choice((160, 448)), 0.55, 1.0
    return rng.choice((160, 448, 448, 1024)), 0.55, 1.0


def rate(step: int) -> float:
    """Learning rate: each phase warms up over 50 steps and falls to 2 % over its last 40 %."""
    begin, end = next((a, b) for a, b in pairwise((0, *PHASES)) if step < b)
    return RATE * min(1.0, (step - begin + 1) / 50, max(0.02, (end - step) / (0.4 * (end - begin))))


def batch(tokenizer: Any, turns: Turns, rng: random.Random, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [B, T] (int64, padded with zeros) and target weights [B, T] (fp32)."""
    room, chat_share, entry = plan(step, rng)
    texts = [sample(tokenizer, turns, rng, step, room, chat_share, entry) for _ in range(max(2, TOKENS // room))]
    longest = max(len(ids) for ids, _ in texts)
    ids, weights = torch.zeros(len(texts), longest, dtype=torch.long), torch.zeros(len(texts), longest)
    for row, (tokens, values) in enumerate(texts):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(tokens)] = torch.tensor(values)
    return ids, weights


def loss_of(model: Any, ids: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Weighted cross entropy, and the share of lesson tokens that are the most likely ones."""
    logits = model(ids[:, :-1], use_cache=False).logits
    target, weight = ids[:, 1:], weights[:, 1:]
    losses = functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    lesson = weight >= 1
    right = float((logits.argmax(-1) == target)[lesson].float().mean())
    return (losses * weight).sum() / weight.sum(), right


def tokenizer_in(folder: Path, model: Family) -> Any:
    """Write the test checkpoints' tokenizer into `folder` and load it."""
    from transformers import PreTrainedTokenizerFast

    model.write_tokenizer(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def train(folder: Path, which: Family, steps: int, seed: int) -> Any:
    """Train in `folder`, resuming what is there; returns the model."""
    torch.manual_seed(seed)
    tokenizer, model = tokenizer_in(folder, which), which.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    keep, first, spent = folder / "training.pt", 0, 0.0
    if keep.exists():
        state = torch.load(keep, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, spent = state["step"], state["spent"]
        print(f"going on from step {first}", file=sys.stderr, flush=True)
    began, shown = time.process_time() - spent, [0.0, 0.0]
    for step in range(first, steps):
        rng = random.Random(f"{seed}:{step}")
        ids, weights = batch(tokenizer, which.turns, rng, step)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        loss, right = loss_of(model, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown = [shown[0] + loss.item() / 50, shown[1] + right / 50]
        if (step + 1) % 50 == 0:
            spent = time.process_time() - began
            print(f"step {step + 1} of {steps}: loss {shown[0]:.3f}, right {shown[1]:.3f}, {spent:.0f} s of CPU",
                  file=sys.stderr, flush=True)  # fmt: skip
            shown = [0.0, 0.0]
        if (step + 1) % 50 == 0 or step + 1 == steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1, "spent": spent}
            torch.save(state, keep.with_suffix(".part"))
            keep.with_suffix(".part").rename(keep)
    return model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.tiny.train", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=NAMES, default="beam")
    parser.add_argument("--steps", type=int, default=PHASES[-1], help="stop after so many")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    train(args.folder, family(args.model), args.steps, args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
