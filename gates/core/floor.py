# SPDX-License-Identifier: Apache-2.0
"""The noise floor: how far a server is from itself when only the batch shape and the cache differ.

The same text is scored alone and cold, then in the midst of other requests and warm. Per-token activation scales and
kernels chosen by shape make these differ on real hardware; a limit below that distance would fail a good server. What a
restart adds is the canary's to see: its record outlives the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gates.core import scoring, stats
from gates.core.gate import Context


@dataclass(frozen=True)
class Floor:
    """Distances of a server from itself.

    Attributes:
        mean_gap: mean |difference| of a token's log probability, nats.
        ratio_gap: largest |perplexity ratio - 1| of a text.
        mean_kl: mean KL between the two readings, nats.
        same_top: share of positions with the same most likely token in both.
    """

    mean_gap: float
    ratio_gap: float
    mean_kl: float
    same_top: float


def measure(ctx: Context, texts: Sequence[Sequence[int]], *, top: int = 20) -> Floor:
    """Score every text alone, then all at once with neighbours, and compare."""
    alone = [scoring.score(ctx.client, text, top=top, cached=False) for text in texts]
    crowd = [list(text) for text in texts] * max(2, ctx.profile.concurrency // max(1, len(texts)))
    busy = ctx.ask(lambda text: scoring.score(ctx.client, text, top=top), crowd, len)[: len(texts)]
    gaps, ratios, kls, same = [], [], [], []
    for a, b in zip(alone, busy, strict=True):
        differences = [y - x for x, y in zip(a.logprobs, b.logprobs, strict=True)]
        gaps += [abs(d) for d in differences]
        ratios.append(abs(stats.exp(-stats.mean(differences)) - 1))
        kls += [stats.top_k_kl(x, y) for x, y in zip(a.top, b.top, strict=True)]
        same += [max(x, key=x.__getitem__) == max(y, key=y.__getitem__) for x, y in zip(a.top, b.top, strict=True)]
    return Floor(stats.mean(gaps), max(ratios), stats.mean(kls), stats.mean(same))
