# SPDX-License-Identifier: Apache-2.0
"""Small statistics, in plain Python so that a gate machine needs no numerics library."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between closest ranks; `share` in 0..1.

    Raises:
        ValueError: no values, or a share outside 0..1.
    """
    if not values:
        raise ValueError("percentile of nothing")
    if not 0 <= share <= 1:
        raise ValueError(f"share {share} is outside 0..1")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def bootstrap(
    values: Sequence[float], statistic: Callable[[Sequence[float]], float] = mean, *, rounds: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of a statistic by resampling with replacement (percentile method, Efron 1979)."""
    if len(values) < 2:
        only = statistic(values)
        return only, only
    rng = random.Random(seed)
    draws = [statistic(rng.choices(values, k=len(values))) for _ in range(rounds)]
    return percentile(draws, 0.025), percentile(draws, 0.975)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): sane at 0 and at 1, where the normal interval has no width."""
    if trials == 0:
        return 0.0, 1.0
    z = 1.959963984540054
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def top_k_kl(reference: dict[int, float], candidate: dict[int, float]) -> float:
    """KL(reference || candidate) over the reference's listed tokens plus one bin for all the rest, in nats.

    Args:
        reference: token id to log probability, the reference's top-k.
        candidate: the same from the server; a token it does not list is given the smallest listed probability, which
            makes the figure a lower bound of the true one when lists are short.
    """
    floor = min(candidate.values()) if candidate else -20.0
    total, p_rest, q_rest = 0.0, 1.0, 1.0
    for token, lp in reference.items():
        lq = candidate.get(token, floor)
        p, q = math.exp(lp), math.exp(lq)
        total += p * (lp - lq)
        p_rest -= p
        q_rest -= q
    if p_rest > 1e-9:
        total += p_rest * (math.log(p_rest) - math.log(max(q_rest, 1e-9)))
    return max(0.0, total)
