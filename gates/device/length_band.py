# SPDX-License-Identifier: Apache-2.0
"""Mean output length against the recorded mean of the same model (MLPerf's TEST09 allows plus or minus 10 %)."""

from __future__ import annotations

import hashlib
import json

from gates.core import stats
from gates.core.gate import Context, Gate, judge
from gates.core.result import GateResult, Measurement
from gates.device.output_shape import lengths


def _run(ctx: Context) -> GateResult:
    key = json.dumps([ctx.facts.model, ctx.profile.name, ctx.facts.model_card], sort_keys=True)
    path = ctx.cache_dir / f"length-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    counts = [float(count) for count, _ in lengths(ctx)]
    mean = stats.mean(counts)
    if path.exists():
        known = float(json.loads(path.read_text())["mean"])
        source = str(path)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"mean": mean, "samples": len(counts)}))
        known, source = mean, f"recorded now in {path}"
    low, high = stats.bootstrap(counts)
    details = {"mean_tokens": mean, "interval": [low, high], "known_mean": known, "known_from": source}
    return judge(
        ctx, "output-length-band", Measurement(abs(mean / known - 1), "relative", samples=len(counts)), details=details
    )


GATE = Gate(
    "output-length-band",
    "robustness",
    "mean answer length stays within a band of the recorded one",
    _run,
    ("early-stop",),
)
