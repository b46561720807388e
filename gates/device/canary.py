# SPDX-License-Identifier: Apache-2.0
"""A canary a running server can be asked at any time: fixed prompts whose log probabilities are known.

A kernel can go silently wrong while health stays green. The first run records the values for this model, build and
server arguments (SKIP); later runs, after a restart too, compare. `python -m gates run --only canary` is cheap enough
for a cron job. Where others use the server and the answers differ it is asked again a few times, and not judged by what
it answers in their batch (SKIP).
"""

from __future__ import annotations

import math
import time
from typing import Any

from gates.core import records, scoring, server_facts
from gates.core.client import ServerTrouble
from gates.core.errors import Failed, Skip
from gates.core.gate import Context, Gate, judge
from gates.core.result import GateResult, Measurement, Verdict

TEXTS = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy",
    "def add(a, b):\n    return a + b\n\ndef mul(a, b):\n    return a",
    "1, 2, 3, 5, 8, 13, 21, 34, 55, 89",
)

ATTEMPTS, PAUSE_S = 3, 2.0  # until no other request runs

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
    if known is not None:
        ctx.client.offered |= {"prompt_logprobs", "/tokenize"}
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S)
        others = _others(ctx)
        result = _compared(ctx, record, known) if known is not None else _first(ctx, record, lone=not others)
        others = max(others, _others(ctx))
        if result is not None and (not others or result.verdict is not Verdict.FAIL or _beyond_company(ctx, result)):
            return result
    raise Skip(f"{others:.0f} other requests ran on the server each time: in their batch a good one differs, too")


def _beyond_company(ctx: Context, result: GateResult) -> bool:
    """Whether it is off by more than the company of other requests in a batch does to a good server."""
    seen = result.measurement
    return seen is not None and judge(ctx, "canary-in-company", seen).verdict is Verdict.FAIL


def _others(ctx: Context) -> float:
    """Other requests that the server says it runs now; 0 where it does not say."""
    try:
        return (server_facts.metrics(ctx.client) or {}).get(server_facts.RUNNING, 0.0)
    except ServerTrouble:  # its answers are what is judged
        return 0.0


def _compared(ctx: Context, record: records.Record, known: Reading) -> GateResult:
    gaps = _gaps(known, values(ctx))
    found = Measurement(max(gaps), "nats", samples=len(gaps))
    return judge(ctx, "canary", found, details={"recorded": str(record.path)})


def _first(ctx: Context, record: records.Record, *, lone: bool) -> GateResult | None:
    """Two readings that agree become the record; None where others run, with whom no record is made."""
    seen = values(ctx)
    gaps = _gaps(seen, values(ctx))
    found = Measurement(max(gaps), "nats", samples=len(gaps))
    result = judge(ctx, "canary", found, own_floor=max(gaps))
    # What wavers by more than the limit is no record: it would spoil every later verdict.
    if result.verdict is not Verdict.PASS:
        return result
    return record.first(seen, found) if lone and not _others(ctx) else None


GATE = Gate("canary", "quality", "known prompts still have their known log probabilities", _run, ("shifted-logits",))
