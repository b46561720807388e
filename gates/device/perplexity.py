# SPDX-License-Identifier: Apache-2.0
"""Perplexity, top-1 agreement and KL divergence against the CPU reference on given passages.

After llama.cpp's `perplexity --kl-divergence`: the reference's distributions are stored, the candidate's compared per
position; ratio with error, mean, median, 99 % and maximum KL, top-1 agreement. Intervals are of the given texts: of
their stretches of neighbouring positions, and say nothing of other texts.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from gates.core import floor as floors
from gates.core import reference as references
from gates.core import scoring, stats
from gates.core.client import Client
from gates.core.errors import Skip
from gates.core.gate import Context, Gate, judge
from gates.core.result import GateResult, Measurement, Verdict

TOP = 20


@dataclass(frozen=True)
class Compared:
    """One passage, position by position: log-prob differences (server - reference), KL, and 1.0 for the same top-1."""

    name: str
    differences: tuple[float, ...]
    kl: tuple[float, ...]
    same_top: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The server's perplexity by the reference's."""
        return stats.exp(-stats.mean(self.differences))


@dataclass(frozen=True)
class Comparison:
    """All passages, and the reference they stand on."""

    passages: tuple[Compared, ...]
    reference: references.Reference

    def stretches(self, name: str) -> list[list[float]]:
        """One figure of all passages in stretches of neighbours, the units of the intervals."""
        return [block for passage in self.passages for block in stats.blocks(getattr(passage, name))]

    def every(self, name: str) -> list[float]:
        return [value for passage in self.passages for value in getattr(passage, name)]

    def judge(self, ctx: Context, gate: str, measurement: Measurement, **options: Any) -> GateResult:
        """Hold a figure to its limit; details and the reason of a FAIL tell whose scores it was compared with."""
        known = self.reference
        told = {"checkpoint": known.checkpoint, "mode": known.mode, "passages": [p.name for p in known.passages]}
        details = {**options.pop("details", {}), "reference": told}
        result = judge(ctx, gate, measurement, details=details, **options)
        if result.verdict is Verdict.PASS:
            return result
        stands_on = f"against the reference of checkpoint {known.checkpoint} ({known.mode})"
        return dataclasses.replace(result, reason=f"{result.reason}, {stands_on}")


def compare(ctx: Context) -> Comparison:
    """Score every passage of the reference file on the server, once a run.

    Raises:
        Skip: no reference file was given.
    """
    if ctx.reference is None:
        raise Skip("no reference scores given: --reference FILE, made in environment `hf` (see docs/gates.md)")
    of = (__name__, ctx.client.root, ctx.client.model, ctx.reference.resolve())
    if of not in ctx.kept:
        ctx.kept[of] = _compare(ctx.client, references.load(ctx.reference))
    seen: Comparison = ctx.kept[of]
    return seen


def _compare(client: Client, reference: references.Reference) -> Comparison:
    seen = []
    for passage in reference.passages:
        scores = scoring.score(client, passage.tokens, top=TOP)
        pairs = list(zip(scores.top, passage.top, strict=True))
        seen.append(
            Compared(
                passage.name,
                tuple(s - r for s, r in zip(scores.logprobs, passage.logprobs, strict=True)),
                tuple(stats.top_k_kl(r, s) for s, r in pairs),
                tuple(float(max(s, key=s.__getitem__) == max(r, key=r.__getitem__)) for s, r in pairs),
            )
        )
    return Comparison(tuple(seen), reference)


def _floor(ctx: Context) -> floors.Floor | None:
    """The server's distance from itself on the same passages, where it was asked for."""
    if not ctx.measure_floor or ctx.reference is None:
        return None
    return floors.measure(ctx, [p.tokens for p in references.load(ctx.reference).passages], top=TOP)


def _perplexity(ctx: Context) -> GateResult:
    seen = compare(ctx)
    floor = _floor(ctx)
    worst = max(seen.passages, key=lambda passage: abs(passage.ratio - 1))
    measurement = Measurement(
        abs(worst.ratio - 1),
        "relative",
        *stats.magnitude(*_ratio(stats.blocks(worst.differences), less=1)),
        len(worst.differences),
    )
    every = seen.every("differences")
    details = {
        "passages": {
            p.name: {"tokens": len(p.differences), "ppl_ratio": p.ratio, "top1": stats.mean(p.same_top)}
            for p in seen.passages
        },
        "worst_passage": worst.name,
        "overall_ratio": stats.exp(-stats.mean(every)),
        "overall_ratio_interval": list(_ratio(seen.stretches("differences"))),
        "rms_difference": math.sqrt(stats.mean([d * d for d in every])),
    }
    return seen.judge(ctx, "perplexity", measurement, noise_floor=floor and floor.ratio_gap, details=details)


def _ratio(stretches: list[list[float]], less: float = 0.0) -> tuple[float | None, float | None]:
    """95 % interval of the perplexity ratio, less a constant."""
    low, high = stats.block_interval(stretches)
    return (None, None) if low is None or high is None else (stats.exp(-high) - less, stats.exp(-low) - less)


def _top1(ctx: Context) -> GateResult:
    seen = compare(ctx)
    floor = _floor(ctx)
    hits = seen.every("same_top")
    low, high = stats.block_share(seen.stretches("same_top"))
    measurement = Measurement(stats.mean(hits), "share", low, high, len(hits))
    return seen.judge(ctx, "top1-agreement", measurement, noise_floor=floor and floor.same_top)


def _kl(ctx: Context) -> GateResult:
    seen = compare(ctx)
    floor = _floor(ctx)
    every = seen.every("kl")
    details = {
        "median": stats.percentile(every, 0.5),
        "p99": stats.percentile(every, 0.99),
        "max": max(every),
    }
    low, high = stats.not_below_zero(*stats.block_interval(seen.stretches("kl")))
    value = Measurement(stats.mean(every), "nats", low, high, len(every))
    return seen.judge(ctx, "kl-divergence", value, noise_floor=floor and floor.mean_kl, details=details)


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
