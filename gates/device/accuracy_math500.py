# SPDX-License-Identifier: Apache-2.0
"""MATH-500 (competition problems) through lm-evaluation-harness, against the score this server had when first asked.

No figure of these models on this task and prompt is published, so that the server's own first score is what a later one
is held to. Answers are compared as mathematics (math-verify), in whatever form the model writes them.
"""

from __future__ import annotations

from typing import Any

from gates.core import harness, records
from gates.core.gate import Context, Gate, Skip, judge
from gates.core.result import GateResult, Measurement

NAME, ITEMS = "accuracy-math500", 200


def _parse(value: Any) -> tuple[float, float]:
    score, error = float(value["score"]), float(value["stderr"])
    if not (0 <= score <= 1 and 0 <= error <= 1):
        raise ValueError(f"a score of {score} with a standard error of {error}")
    return score, error


def _run(ctx: Context) -> GateResult:
    if not ctx.wording.can("arithmetic"):
        raise Skip("needs a model that can do arithmetic")
    task = harness.Task("minerva_math500", "math_verify,none", ITEMS, 4 * ctx.profile.answer_tokens)
    record = records.of(ctx, NAME, items=ITEMS, room=task.room, metric=task.metric)
    known = record.read(_parse)
    score, details = harness.run(ctx, NAME, task)
    details |= {"score": score.value}
    if known is None:
        if not score.value:
            return judge(ctx, NAME, Measurement(1.0, "share lost", samples=score.samples), details=details)
        return record.first({"score": score.value, "stderr": score.error}, score.measurement(), **details)
    then, error_then = known
    lost, error = then - score.value, (score.error**2 + error_then**2) ** 0.5
    details |= {"known_score": then, "recorded": str(record.path)}
    measurement = Measurement(lost, "share lost", lost - 1.96 * error, lost + 1.96 * error, score.samples)
    return judge(ctx, NAME, measurement, details=details)


GATE = Gate(
    NAME,
    "quality",
    "MATH-500 through lm-evaluation-harness has not fallen below the recorded score",
    _run,
    ("early-stop",),
)
