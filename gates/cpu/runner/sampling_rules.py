# SPDX-License-Identifier: Apache-2.0
"""Sampling settings for fuzzed requests, each with what it must make of a row of logits, in plain numpy or torch.

Every rule is deterministic: either the best token is the only one left, or the request's own generator decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

HOT = 2.0  # at this temperature the toy model's answer has a probability of about a fifth


def stops(vocabulary: int) -> list[int]:
    """Stop tokens: one in 24, and never both of a pair of neighbours."""
    return list(range(24, vocabulary - 16, 24))


@dataclass(frozen=True)
class Rule:
    """Sampling settings of one request, and the token they must lead to.

    Attributes:
        sampling: fields of SamplingParams.
        reproducible: whether a preemption leaves the tokens the same: what a generator drew for a token that the
            scheduler discarded is gone.
        with_grammar: whether a grammar that leaves even tokens leaves one best token too. It does not with a bias
            against even tokens, nor where top-p must be below the probability of the neighbour.
    """

    name: str
    sampling: dict[str, Any] = field(default_factory=dict)
    reproducible: bool = True
    with_grammar: bool = True

    def run(self, vocabulary: int, prompt: list[int]) -> Chooser:
        return Chooser(self, vocabulary, prompt)


class Chooser:
    """The rule applied to one request, token by token."""

    def __init__(self, rule: Rule, vocabulary: int, prompt: list[int]):
        self._sampling = rule.sampling
        self._seen = np.zeros(vocabulary, dtype=bool)
        self._seen[prompt] = True
        self._given = 0
        self._generator = None
        if "seed" in rule.sampling:
            self._generator = torch.Generator(device="hpu").manual_seed(rule.sampling["seed"])

    def pick(self, logits: np.ndarray) -> int:
        """The next token, given a row of logits [vocabulary] fp32."""
        penalty = self._sampling.get("repetition_penalty", 1.0)
        row = np.where(self._seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)
        for token, bias in self._sampling.get("logit_bias", {}).items():
            row[token] += bias
        if allowed := self._sampling.get("allowed_token_ids"):
            row[np.setdiff1d(np.arange(len(row)), allowed)] = -np.inf
        if self._given < self._sampling.get("min_tokens", 0):
            row[self._sampling["stop_token_ids"]] = -np.inf
        token = int(row.argmax()) if self._generator is None else self._draw(row)
        self._seen[token] = True
        self._given += 1
        return token

    def _draw(self, row: np.ndarray) -> int:
        probabilities = torch.softmax(torch.tensor(row, dtype=torch.float32, device="hpu") / HOT, dim=-1)
        noise = torch.empty_like(probabilities).exponential_(generator=self._generator)
        return int((probabilities / noise).argmax())

    def ends(self, token: int) -> bool:
        """Whether `token` ends the request."""
        return token in self._sampling.get("stop_token_ids", ())


def rules(vocabulary: int) -> list[Rule]:
    """One rule of every kind for a toy model of `vocabulary` tokens."""
    no_even = {token: -100.0 for token in range(16, vocabulary - 16, 2)}
    return [
        Rule("greedy"),
        Rule("logit bias", {"logit_bias": no_even}, with_grammar=False),
        Rule("allowed tokens", {"allowed_token_ids": list(range(17, vocabulary - 16, 2))}, with_grammar=False),
        Rule("min-p", {"temperature": HOT, "min_p": 0.5}),
        Rule("min-p and logit bias", {"temperature": HOT, "min_p": 0.5, "logit_bias": no_even}, with_grammar=False),
        Rule("top-k", {"temperature": HOT, "top_k": 1}),
        Rule("top-p", {"temperature": HOT, "top_p": 0.1}, with_grammar=False),
        Rule("top-k of many and top-p", {"temperature": HOT, "top_k": 50, "top_p": 0.1}, with_grammar=False),
        Rule("repetition penalty", {"repetition_penalty": 5.0}),
        Rule("stop tokens", {"stop_token_ids": stops(vocabulary)}),
        Rule("stop tokens after a minimum", {"stop_token_ids": stops(vocabulary), "min_tokens": 12}),
        Rule("seed", {"temperature": HOT, "seed": 7}, reproducible=False),
    ]
