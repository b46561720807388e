# SPDX-License-Identifier: Apache-2.0
"""GSM8K (grade-school word problems) through lm-evaluation-harness, asked as the published figure was: 10-shot."""

from __future__ import annotations

from gates.core import harness
from gates.core.gate import Context, Gate, Skip, judge
from gates.core.result import GateResult

NAME, ITEMS, SHOTS = "accuracy-gsm8k", 200, 10


def _run(ctx: Context) -> GateResult:
    if not ctx.wording.can("arithmetic"):
        raise Skip("needs a model that can do arithmetic")
    # Reasoning runs longer here than on the gates' own short questions.
    task = harness.Task("gsm8k", "exact_match,flexible-extract", ITEMS, 4 * ctx.profile.answer_tokens, SHOTS)
    score, details = harness.run(ctx, NAME, task)
    return judge(ctx, NAME, score.measurement(), details=details)


GATE = Gate(NAME, "quality", "GSM8K through lm-evaluation-harness, where it is installed", _run, ("early-stop",))
