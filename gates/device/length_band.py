# SPDX-License-Identifier: Apache-2.0
"""Mean output length against the recorded mean of the same model (MLPerf's TEST09 allows plus or minus 10 %)."""

from __future__ import annotations

import math
from typing import Any

from gates.core import records, stats
from gates.core.gate import Context, Gate, judge
from gates.core.result import GateResult, Measurement
from gates.device.output_shape import lengths


def _parse(value: Any) -> tuple[float, int]:
    mean, samples = float(value["mean"]), int(value["samples"])
    if not 0 < mean < math.inf:
        raise ValueError(f"a mean of {mean} tokens")
    return mean, samples


def _card(ctx: Context) -> dict[str, Any]:
    """Which weights and chat template there are meant to be; not whether they are (`state_hash`)."""
    return {name: value for name, value in ctx.facts.model_card.items() if name != "state_hash"}


def _run(ctx: Context) -> GateResult:
    record = records.of(ctx, "output-length-band", profile=ctx.profile.name, card=_card(ctx))
    known = record.read(_parse)
    counts = [float(count) for count, _ in lengths(ctx)]
    mean = stats.mean(counts)
    low, high = stats.block_bootstrap([[count] for count in counts])
    details = {"mean_tokens": mean, "interval": [low, high]}
    if known is None:
        if mean <= 0:
            return judge(ctx, "output-length-band", Measurement(1.0, "relative", samples=len(counts)), details=details)
        return record.first({"mean": mean, "samples": len(counts)}, **details)
    mean_then, samples = known
    relative = [None if end is None else end / mean_then - 1 for end in (low, high)]
    measurement = Measurement(abs(mean / mean_then - 1), "relative", *stats.magnitude(*relative), len(counts))
    details |= {"known_mean": mean_then, "known_samples": samples, "recorded": str(record.path)}
    return judge(ctx, "output-length-band", measurement, details=details)


GATE = Gate(
    "output-length-band",
    "robustness",
    "mean answer length stays within a band of the recorded one",
    _run,
    ("early-stop",),
)
