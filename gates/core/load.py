# SPDX-License-Identifier: Apache-2.0
"""Long prompts: how many may be under way at once, and how long they take on a server as slow as the port pages'.

A server reads prompts first come, first served, so a request waits for all that its own gate has under way: what is
bounded is their tokens, not their number. The rates are the pages' figures, not measured by this project on a node.
"""

from __future__ import annotations

from dataclasses import dataclass

# Muse page: a needle prompt of 256K tokens takes 346 to 461 s; Beam page: one of 2K at best 0.52 s. Through both:
LINEAR_S, SQUARE_S = 1 / 4000, 4.3e-9  # a token, a token squared
STREAM_TOKENS_S, STREAMS = 16.7, 4  # Muse page: decode of one stream at 262K; most streams at once


def at_once(tokens: int, most: int, budget: int | None) -> int:
    """How many prompts of `tokens` may be under way: at most `most`, `budget` tokens together, and at least one."""
    return max(1, most if budget is None else min(most, budget // tokens))


def prefill_s(tokens: int) -> float:
    """Seconds to read one prompt at the pages' rate, alone and without a prefix cache."""
    return tokens * LINEAR_S + tokens * tokens * SQUARE_S


@dataclass(frozen=True)
class Asked:
    """Prompts of one length that a gate sends.

    Attributes:
        tokens: of each prompt.
        answer: most tokens of each answer.
        count: how many prompts.
        at_once: how many are under way together.
        reads: how often each is read in full: more than once where it is preempted.
    """

    tokens: int
    answer: int
    count: int = 1
    at_once: int = 1
    reads: int = 1

    @property
    def each_s(self) -> float:
        """Seconds of the server's time for one, at most: whole answers, nothing cached."""
        return self.reads * prefill_s(self.tokens) + self.answer / (STREAM_TOKENS_S * min(self.at_once, STREAMS))

    @property
    def seconds(self) -> float:
        """For all of them."""
        return self.count * self.each_s
