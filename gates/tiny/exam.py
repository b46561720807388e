# SPDX-License-Identifier: Apache-2.0

"""Held-out greedy answers of a tiny model's BF16 checkpoint in Hugging Face: the share that is exactly right, by task.

python -m gates.tiny.exam CHECKPOINT
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gates.tiny import chat, language
from gates.tiny.family import of_checkpoint
from gates.tiny.turns import Turns

DICTATED = ("demanded", "shaped", "repeat")  # parts of these are the server's, not the model's


def questions(tokenizer: Any, turns: Turns, task: str, count: int, room: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, expected answer) token ids: the last question of texts that training never drew."""
    out = []
    for number in range(count):
        rng = random.Random(f"held-out:{task}:{number}")
        if task in chat.TASKS:
            parts = chat.parts(tokenizer, turns, chat.TASKS[task][0](rng))
            split = 1
        else:
            parts = language.draw(tokenizer, task, rng, room)
            split = max(i for i, (_, lesson) in enumerate(parts) if not lesson) + 1
        texts = ["".join(text for text, _ in half) for half in (parts[:split], parts[split:])]
        prompt, answer = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        out.append((prompt, answer))
    return out


@torch.no_grad()
def exact(model: Any, prompt: list[int], answer: list[int]) -> bool:
    """Whether greedy decoding gives `answer`: one forward pass, as each greedy token must be the expected one."""
    logits = model(torch.tensor([prompt + answer]), use_cache=False).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer


def after_thought(tokenizer: Any, marker: str, prompt: list[int], answer: list[int]) -> tuple[list[int], list[int]]:
    """Move the stock thought into the prompt: any of them is fine, what follows is judged."""
    end = tokenizer.convert_tokens_to_ids(marker)
    cut = answer.index(end) + 1 if end in answer else 0
    return prompt + answer[:cut], answer[cut:]


def examine(folder: Path, count: int, room: int, tasks: Sequence[str] = ()) -> dict[str, float]:
    """Share of exact answers by task, of all tasks unless some are named."""
    from transformers import PreTrainedTokenizerFast

    tokenizer, kind = PreTrainedTokenizerFast.from_pretrained(folder), of_checkpoint(folder)
    model = kind.load(folder)
    shares = {}
    for task in tasks or [name for name in (*language.TASKS, *chat.TASKS) if name not in DICTATED]:
        cases = questions(tokenizer, kind.turns, task, count, room)
        if task in chat.TASKS:
            cases = [after_thought(tokenizer, kind.turns.end_of_thought, *case) for case in cases]
        shares[task] = sum(exact(model, *case) for case in cases) / count
    return shares


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gates.tiny.exam", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--room", type=int, default=440)
    args = parser.parse_args(arguments)
    print(json.dumps(examine(args.folder, args.count, args.room)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
