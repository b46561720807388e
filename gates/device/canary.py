# SPDX-License-Identifier: Apache-2.0
"""A canary a running server can be asked at any time: fixed prompts whose log probabilities are known.

A kernel can go silently wrong while health stays green. The first run records the values for this model, build and
server arguments (SKIP); later runs, after a restart too, compare. `python -m gates run --only canary` is cheap enough
for a cron job.
"""

from __future__ import annotations

import math
from typing import Any

from gates.core import records, scoring
from gates.core.errors import Failed
from gates.core.gate import Context, Gate, judge
from gates.core.result import GateResult, Measurement, Verdict

TEXTS = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy",
    "def add(a, b):\n    return a + b\n\ndef mul(a, b):\n    return a",
    "1, 2, 3, 5, 8, 13, 21, 34, 55, 89",
)

Reading = list[dict[str, Any]]


def values(ctx: Context) -> Reading:
    """Ids of every canary text, and the log probability (nats) of each but the first."""
    out = []
    for text in TEXTS:
        tokens = ctx.client.tokenize(text)
        scores = scoring.score(ctx.client, tokens, top=1, cached=False)
        out.append({"tokens": tokens, "logprobs": [round(v, 6) for v in scores.logprobs]})
    return out


def _parse(value: Any) -> Reading:
    for row in value:
        if not row["logprobs"] or len(row["tokens"]) != len(row["logprobs"]) + 1:
            raise ValueError("lists whose lengths do not agree")
        if not all(math.isfinite(value) for value in row["logprobs"]):
            raise ValueError("not finite")
    if len(value) != len(TEXTS):
        raise ValueError(f"{len(value)} texts")
    return list(value)


def _gaps(known: Reading, seen: Reading) -> list[float]:
    for text, a, b in zip(TEXTS, known, seen, strict=True):
        if a["tokens"] != b["tokens"]:
            raise Failed(f"{text[:24]!r} has other tokens than it was recorded with: another tokenizer")
    pairs = [
        (a, b) for x, y in zip(known, seen, strict=True) for a, b in zip(x["logprobs"], y["logprobs"], strict=True)
    ]
    return [abs(a - b) for a, b in pairs]


def _card(ctx: Context) -> dict[str, Any]:
    """Which weights there are meant to be; not whether they are (`state_hash`), nor how a chat is rendered."""
    return {name: ctx.facts.model_card[name] for name in ("root", "quantization") if name in ctx.facts.model_card}


def _run(ctx: Context) -> GateResult:
    record = records.of(ctx, "canary", build=ctx.facts.version, card=_card(ctx), texts=TEXTS)
    known = record.read(_parse)
    seen = values(ctx)
    if known is not None:
        gaps = _gaps(known, seen)
        found = Measurement(max(gaps), "nats", samples=len(gaps))
        return judge(ctx, "canary", found, details={"recorded": str(record.path)})
    gaps = _gaps(seen, values(ctx))
    found = Measurement(max(gaps), "nats", samples=len(gaps))
    result = judge(ctx, "canary", found, own_floor=max(gaps))
    # What wavers by more than the limit is no record: it would spoil every later verdict.
    return record.first(seen, found) if result.verdict is Verdict.PASS else result


GATE = Gate("canary", "quality", "known prompts still have their known log probabilities", _run, ("shifted-logits",))
