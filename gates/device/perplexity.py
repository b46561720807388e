# SPDX-License-Identifier: Apache-2.0
"""Perplexity, top-1 agreement and KL divergence against the CPU reference on given passages.

After llama.cpp's `perplexity --kl-divergence`: the reference's distributions are stored, the candidate's compared per
position; ratio with error, mean, median, 99 % and maximum KL, top-1 agreement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from gates.core import floor as floors
from gates.core import reference as references
from gates.core import scoring, stats
from gates.core.gate import Context, Gate, Skip, judge
from gates.core.result import GateResult, Measurement

TOP = 20


@dataclass(frozen=True)
class Comparison:
    """Position by position over all passages: log-prob differences (server - reference), KL, same top-1 or not."""

    differences: tuple[float, ...]
    kl: tuple[float, ...]
    same_top: tuple[bool, ...]
    per_passage: dict[str, dict[str, float]]


def compare(ctx: Context) -> Comparison:
    """Score every passage of the reference file on the server.

    Raises:
        Skip: no reference file was given.
    """
    if ctx.reference is None:
        raise Skip("no reference scores given (--reference FILE, made by gates.oracle.passages)")
    return _compare(ctx.client, str(ctx.reference.resolve()))


@lru_cache(maxsize=2)
def _compare(client: object, path: str) -> Comparison:
    from pathlib import Path

    reference = references.load(Path(path))
    differences: list[float] = []
    kls: list[float] = []
    same: list[bool] = []
    per: dict[str, dict[str, float]] = {}
    for passage in reference.passages:
        scores = scoring.score(client, passage.tokens, top=TOP)  # type: ignore[arg-type]
        diff = [s - r for s, r in zip(scores.logprobs, passage.logprobs, strict=True)]
        kl = [stats.top_k_kl(r, s) for s, r in zip(scores.top, passage.top, strict=True)]
        top = [
            max(s, key=s.__getitem__) == max(r, key=r.__getitem__) for s, r in zip(scores.top, passage.top, strict=True)
        ]
        per[passage.name] = {"tokens": len(diff), "ppl_ratio": math.exp(-stats.mean(diff)), "top1": sum(top) / len(top)}
        differences += diff
        kls += kl
        same += top
    return Comparison(tuple(differences), tuple(kls), tuple(same), per)


def _floor(ctx: Context) -> floors.Floor | None:
    """The server's distance from itself on the same passages, where it was asked for."""
    if not ctx.measure_floor or ctx.reference is None:
        return None
    return floors.measure(ctx, [p.tokens for p in references.load(ctx.reference).passages], top=TOP)


def _perplexity(ctx: Context) -> GateResult:
    seen = compare(ctx)
    floor = _floor(ctx)
    worst = max(abs(entry["ppl_ratio"] - 1.0) for entry in seen.per_passage.values())
    low, high = stats.bootstrap(seen.differences)
    overall = math.exp(-stats.mean(seen.differences))
    measurement = Measurement(worst, "relative", samples=len(seen.differences))
    details = {
        "passages": seen.per_passage,
        "overall_ratio": overall,
        "overall_ratio_interval": [math.exp(-high), math.exp(-low)],
        "rms_difference": math.sqrt(stats.mean([d * d for d in seen.differences])),
    }
    return judge(ctx, "perplexity", measurement, noise_floor=floor and floor.ratio_gap, details=details)


def _top1(ctx: Context) -> GateResult:
    seen = compare(ctx)
    hits = sum(seen.same_top)
    low, high = stats.wilson(hits, len(seen.same_top))
    return judge(ctx, "top1-agreement", Measurement(hits / len(seen.same_top), "share", low, high, len(seen.same_top)))


def _kl(ctx: Context) -> GateResult:
    seen = compare(ctx)
    floor = _floor(ctx)
    low, high = stats.bootstrap(seen.kl)
    details = {
        "median": stats.percentile(seen.kl, 0.5),
        "p99": stats.percentile(seen.kl, 0.99),
        "max": max(seen.kl),
    }
    value = Measurement(
        stats.mean(seen.kl), "nats", min(low, stats.mean(seen.kl)), max(high, stats.mean(seen.kl)), len(seen.kl)
    )
    return judge(ctx, "kl-divergence", value, noise_floor=floor and floor.mean_kl, details=details)


GATES = (
    Gate(
        "perplexity",
        "quality",
        "perplexity ratio to the CPU reference, worst passage",
        _perplexity,
        ("shifted-logits",),
    ),
    Gate(
        "top1-agreement",
        "quality",
        "share of positions with the reference's most likely token",
        _top1,
        ("shifted-logits",),
    ),
    Gate("kl-divergence", "quality", "mean KL from the CPU reference, with percentiles", _kl, ("shifted-logits",)),
)
