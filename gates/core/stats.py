# SPDX-License-Identifier: Apache-2.0
"""Small statistics, in plain Python so that a gate machine needs no numerics library."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist, variance

LARGEST = math.log(1e300)  # of an exponent: a server may be wrong by more than a float can hold


def exp(value: float) -> float:
    """e to a power, 1e300 at most."""
    return math.exp(min(value, LARGEST))


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


def blocks(values: Sequence[float], *, longest: int = 64, fewest: int = 8) -> list[list[float]]:
    """A series cut into stretches of neighbours: at most `longest` values each, and `fewest` of them where it can be.

    Neighbouring positions of a text share their context, so that single positions are no independent samples.
    """
    size = max(1, min(longest, len(values) // fewest))
    return [list(values[i : i + size]) for i in range(0, len(values), size)]


def block_interval(groups: Sequence[Sequence[float]]) -> tuple[float | None, float | None]:
    """95 % interval of the mean of all values, where whole groups are what was sampled.

    Values within a group may depend on each other: tokens of one continuation, neighbours in a passage. Their mean is a
    ratio of sums to lengths. Resampling would not reach beyond the extremes of few groups: of two it draws three means.

    Returns:
        (low, high), both None for a single group, which says nothing of how far the next would be.
    """
    return ratio_interval([(math.fsum(group), float(len(group))) for group in groups])


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """95 % interval of sum(a) / sum(b) for pairs that were sampled together (Cochran, Sampling Techniques, chapter 6).

    The ratio with Student's t on the spread of the pairs around it.

    Returns:
        (low, high), both None for a single pair.
    """
    count = len(pairs)
    if count < 2:
        return None, None
    below = math.fsum(b for _, b in pairs)
    ratio = math.fsum(a for a, _ in pairs) / below
    spread = math.sqrt(math.fsum((a - ratio * b) ** 2 for a, b in pairs) * count / (count - 1)) / below
    half = _student(count - 1) * spread
    return ratio - half, ratio + half


def magnitude(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The interval of |x| where x lies in [low, high]."""
    if low is None or high is None:
        return None, None
    far = max(abs(low), abs(high))
    return (0.0, far) if low <= 0 <= high else (min(abs(low), abs(high)), far)


def _student(freedom: int) -> float:
    """97.5 % point of Student's t: exact for 1 and 2, else the Cornish-Fisher expansion (Abramowitz, Stegun 26.7.5)."""
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def not_below_zero(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The interval of a figure that cannot be negative."""
    return (None, None) if low is None or high is None else (max(0.0, low), max(0.0, high))


def block_share(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """95 % interval of the share of ones where those of a group come together.

    Wilson's, for as many independent trials as the groups are worth: the design effect (Kish 1965) is the variance of
    the groups' means against that of single trials.
    """
    every = [value for group in groups for value in group]
    share, spread = mean(every), 1.0
    if len(groups) > 1 and 0 < share < 1:
        size = len(every) / len(groups)
        spread = max(1.0, variance([mean(group) for group in groups]) * size / (share * (1 - share)))
    return wilson(math.fsum(every) / spread, len(every) / spread)


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): sane at 0 and at 1, where the normal interval has no width.

    For trials that succeed in part (shares of a copied text) it is too wide rather than too narrow, as no distribution
    on 0..1 spreads further than that of all or nothing.
    """
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
        candidate: the same from the server, a distribution (`scoring.distribution`); a token it does not list is given
            the smallest listed probability, or what is left where that is less, which makes the figure a lower bound
            of the true one.
    """
    left = max(1.0 - math.fsum(map(math.exp, candidate.values())), 1e-9)
    floor = min([*candidate.values(), math.log(left)])
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
