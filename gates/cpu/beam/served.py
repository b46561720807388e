# SPDX-License-Identifier: Apache-2.0
"""Score what a server generated against a CPU reference, token by token on the server's own text.

The floor is the distance between two references that differ only in where
attention rounds, which a fused kernel is free to choose. Served output may be
further away than that by a factor, and may choose another token only where the
reference's own gap is of the floor's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from gates.oracle.beam.model import BeamReference

PATIENCE = 900  # seconds to come up; a busy machine must not decide a test
# Times the floor, which the same run measures: served output rounds in the experts' kernel too.
FACTOR = 1.5
GAP_FACTOR = 2.0
# Without a prefix cache upstream pages contiguously, which window lists exclude; the start says to set this.
UNCACHED = {"VLLM_CONTIGUOUS_PA": "false"}
# Room for one request of 640 tokens (five blocks in full, six in each of three groups of window layers), not for the
# 32 blocks that four requests of two blocks a group grow to: some must wait and start over.
FEW_BLOCKS = 25


def prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    """Random ids of plain tokens, the same for every server."""
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(340, (length,), generator=generator).tolist() for length in lengths]


@dataclass
class Answer:
    """Generated ids of one prompt with the log-probabilities of the best tokens at each place."""

    prompt: list[int]
    ids: list[int]
    top: list[dict[int, float]]


@dataclass
class Score:
    """Distances of served output and of the floor; log-probabilities in nats, gaps in logits."""

    served: float
    floor: float
    worst_gap: float
    floor_gap: float
    disagreements: list[tuple[int, int, float]]
    tokens: int

    def line(self) -> str:
        gaps = ", ".join(f"{prompt}+{place}: {gap:.3f}" for prompt, place, gap in self.disagreements) or "none"
        return (
            f"mean |dlogprob| {self.served:.4f} (floor {self.floor:.4f}); {len(self.disagreements)} of {self.tokens} "
            f"tokens differ, largest gap {self.worst_gap:.3f} (floor {self.floor_gap:.3f}); gaps {gaps}"
        )


def ask(server, prompts: list[list[int]], count: int) -> list[Answer]:
    """Greedy completions of token prompts over HTTP, one after the other."""
    return [_ask_one(server, prompt, count) for prompt in prompts]


def _ask_one(server, prompt: list[int], count: int) -> Answer:
    choice = (
        server.client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=count,
            temperature=0,
            logprobs=5,
            extra_body={"ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True},
        )
    ).choices[0]
    top = [{int(k.split(":")[1]): v for k, v in place.items()} for place in choice.logprobs.top_logprobs]
    return Answer(prompt, list(choice.token_ids), top)


def ask_at_once(server, prompts: list[list[int]], count: int) -> list[Answer]:
    """The same, all requests in flight together."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: _ask_one(server, prompt, count), prompts))


def metric(server, name: str) -> float:
    """Sum of a metric of the server over its labels."""
    lines = [line for line in server.get("/metrics").splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def accept(result: Score, what: str) -> None:
    """Assert that a score is within the limits, and print it."""
    print(f"{what}: {result.line()}")
    assert result.served <= FACTOR * result.floor, result.line()
    assert result.worst_gap <= GAP_FACTOR * result.floor_gap, result.line()


def _gap(logits: torch.Tensor, token: int) -> float:
    return float(logits.max() - logits[token])


def score(checkpoint: Path, answers: list[Answer], mode: str, **slices: int) -> Score:
    """Compare `answers` with the reference of `mode` (slices: row_slices, expert_slices)."""
    reference = BeamReference(checkpoint, mode, **slices)
    other = BeamReference(checkpoint, mode, wide_scores=True, **slices)
    served, floor, floor_gap, wrong = [], [], 0.0, []
    for answer in answers:
        ids = torch.tensor(answer.prompt + answer.ids)
        at = slice(len(answer.prompt) - 1, -1)
        logits, wide = reference(ids)[at], other(ids)[at]
        logprobs, wide_logprobs = logits.log_softmax(-1), wide.log_softmax(-1)
        for place, (token, top) in enumerate(zip(answer.ids, answer.top, strict=True)):
            served += [abs(value - float(logprobs[place, t])) for t, value in top.items()]
            floor += [abs(float(wide_logprobs[place, t] - logprobs[place, t])) for t in top]
            floor_gap = max(floor_gap, _gap(logits[place], int(wide[place].argmax())))
            gap = _gap(logits[place], token)
            if gap > 0:
                wrong.append((len(answer.prompt), place, gap))
    worst = max((gap for *_, gap in wrong), default=0.0)
    tokens = sum(len(answer.ids) for answer in answers)
    return Score(_mean(served), _mean(floor), worst, floor_gap, wrong, tokens)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def mean_difference(a: list[Answer], b: list[Answer]) -> float:
    """Mean |dlogprob| over the places up to and including the first different token of each pair.

    Over the tokens that both list among their top; infinite where no list shares one.
    """
    values = []
    for one, two in zip(a, b, strict=True):
        for first, second, x, y in zip(one.top, two.top, one.ids, two.ids, strict=True):
            values += [abs(first[t] - second[t]) for t in first.keys() & second.keys()]
            if x != y:
                break
    return _mean(values) if values else math.inf
