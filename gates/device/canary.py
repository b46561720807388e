# SPDX-License-Identifier: Apache-2.0
"""A canary a running server can be asked at any time: fixed prompts whose log probabilities are known.

A kernel can go silently wrong while health stays green. The first run records the values for this checkpoint, lock and
server arguments in the cache; later runs compare. `python -m gates run --only canary` is cheap enough for a cron job.
"""

from __future__ import annotations

import hashlib
import json
import math

from gates.core import scoring
from gates.core.errors import GateError
from gates.core.gate import Context, Gate, judge
from gates.core.result import GateResult, Measurement

TEXTS = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy",
    "def add(a, b):\n    return a + b\n\ndef mul(a, b):\n    return a",
    "1, 2, 3, 5, 8, 13, 21, 34, 55, 89",
)


def values(ctx: Context) -> list[list[float]]:
    """Log probabilities of every token of every canary text, in nats."""
    out = []
    for text in TEXTS:
        tokens = ctx.client.tokenize(text)
        out.append([round(v, 6) for v in scoring.score(ctx.client, tokens, top=1, cached=False).logprobs])
    return out


def _run(ctx: Context) -> GateResult:
    key = json.dumps([ctx.facts.model, ctx.facts.version, ctx.facts.model_card], sort_keys=True)
    path = ctx.cache_dir / f"canary-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    seen = values(ctx)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(seen))
        again = values(ctx)
        floor = max(abs(a - b) for x, y in zip(seen, again, strict=True) for a, b in zip(x, y, strict=True))
        measurement = Measurement(floor, "nats", samples=sum(map(len, seen)))
        return judge(ctx, "canary", measurement, noise_floor=floor, details={"recorded": str(path)})
    try:
        known = json.loads(path.read_text())
        if not all(math.isfinite(value) for row in known for value in row):
            raise ValueError("not finite")
        gaps = [abs(a - b) for x, y in zip(known, seen, strict=True) for a, b in zip(x, y, strict=True)]
    except (ValueError, TypeError) as error:
        raise GateError(
            f"the recorded canary is damaged ({error})", where=str(path), action="delete it to record anew"
        ) from error
    return judge(ctx, "canary", Measurement(max(gaps), "nats", samples=len(gaps)), details={"recorded": str(path)})


GATE = Gate("canary", "quality", "known prompts still have their known log probabilities", _run, ("shifted-logits",))
