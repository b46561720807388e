# SPDX-License-Identifier: Apache-2.0
"""Mean output length against the recorded mean of the same model (MLPerf's TEST09 allows plus or minus 10 %)."""

from __future__ import annotations

from typing import Any

from gates.core import records, stats
from gates.core.errors import GateError
from gates.core.gate import Context, Gate, beyond_chance, judge
from gates.core.result import GateResult, Measurement
from gates.device.output_shape import lengths


def _parse(value: Any) -> list[int]:
    counts = value["counts"]
    if (
        not isinstance(counts, list)
        or not all(type(count) is int and count >= 0 for count in counts)
        or not any(counts)
    ):
        raise ValueError(f"{counts!r} are no answer lengths")
    return list(counts)


def _card(ctx: Context) -> dict[str, Any]:
    """Which weights and chat template there are meant to be; not whether they are (`state_hash`)."""
    return {name: value for name, value in ctx.facts.model_card.items() if name != "state_hash"}


def _run(ctx: Context) -> GateResult:
    """FAIL where the interval lies outside the band: sampled answers vary, and a mean of few may stray beyond it.

    Answers are compared question by question, with the same seeds, so that only what changed counts as spread.
    """
    of = {"profile": ctx.profile.name, "samples": ctx.profile.samples, "card": _card(ctx)}
    record = records.of(ctx, "output-length-band", **of)
    known = record.read(_parse)
    counts = [count for count, _ in lengths(ctx)]
    mean = stats.mean(counts)
    details: dict[str, Any] = {"mean_tokens": mean}
    if known is None:
        if mean <= 0:
            return judge(ctx, "output-length-band", Measurement(1.0, "relative", samples=len(counts)), details=details)
        return record.first({"counts": counts}, **details)
    if len(known) != len(counts):
        told = f"{len(known)} answers recorded, {len(counts)} seen"
        raise GateError(told, where=str(record.path), action="delete it to record anew")
    change = sum(counts) / sum(known) - 1
    ends = stats.ratio_interval(list(zip(counts, known, strict=True)))
    interval = stats.magnitude(*(None if end is None else end - 1 for end in ends))
    details |= {"known_mean": stats.mean(known), "change": change, "recorded": str(record.path)}
    measurement = Measurement(abs(change), "relative", *interval, len(counts))
    result = judge(ctx, "output-length-band", measurement, details=details)
    return result if kept_length(known, counts, ctx.profile.answer_tokens) else beyond_chance(result)


def kept_length(known: list[int], counts: list[int], room: int) -> bool:
    """Whether chance is no reason for a change: it moves every sampled answer, and half of them are as they were.

    An answer that fills its `room` both times is as long as it was whatever chance does, and does not count.
    """
    free = [(a, b) for a, b in zip(known, counts, strict=True) if min(a, b) < room]
    return 2 * sum(a == b for a, b in free) >= max(1, len(free))


GATE = Gate(
    "output-length-band",
    "robustness",
    "mean answer length stays within a band of the recorded one",
    _run,
    ("early-stop",),
)
