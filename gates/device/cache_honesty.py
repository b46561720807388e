# SPDX-License-Identifier: Apache-2.0
"""Cache honesty: a warm prefix cache may change speed, never the answer.

The same prompt is scored cold, warm, warm after neighbours were aborted in mid-stream, with a tail that is in the cache
behind another head, and its prompt logprobs are asked for twice. Compared are log probabilities, not texts: batch shape
alone moves near-ties, so the limit is a difference in nats with the floor of two cold runs beside it.
"""

from __future__ import annotations

import random
import uuid

from gates.core import scoring, server_facts, stats
from gates.core.gate import Context, Gate, judge
from gates.core.result import GateResult, Measurement


def _gap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)


def _abort_neighbours(ctx: Context, prompt: list[int]) -> None:
    """Hang up on requests that share half of the prompt, after their second chunk."""

    def one(index: int) -> None:
        body = {
            "model": ctx.client.model,
            "prompt": [*prompt[: len(prompt) // 2], *prompt[: index + 1]],
            "max_tokens": 64,
        }
        ctx.client.stream("/v1/completions", {**body, "temperature": 1, "seed": index}, stop_after=2)

    ctx.client.map(one, range(4))


def _other_head(ctx: Context, prompt: list[int], rng: random.Random, tokens: int) -> float:
    """Gap between a prompt whose head and tail were both cached, but never together, and the same prompt cold.

    A cache that keys a block by its own tokens alone would take the tail from behind the other head. The head is a
    whole number of blocks, as only whole blocks are shared.
    """
    labels = server_facts.metric_labels(ctx.client, "vllm:cache_config_info")
    told = labels[0].get("block_size", "") if labels else ""
    block = int(told) if told.isdigit() else 128
    size = max(1, len(prompt) // 2 // block) * block
    tail = prompt[size:]
    head = [rng.choice(prompt) for _ in range(size)]
    scoring.continue_greedily(ctx.client, [*head, *tail], max_tokens=1)
    scoring.continue_greedily(ctx.client, [*prompt[:size], *tail[::-1]], max_tokens=1)
    warm = scoring.continue_greedily(ctx.client, prompt, max_tokens=tokens)
    cold = scoring.continue_greedily(ctx.client, prompt, max_tokens=tokens, cache_salt=uuid.uuid4().hex)
    return _agreeing(cold, warm)


def _run(ctx: Context) -> GateResult:
    rung = ctx.lengths(ctx.profile.rungs, reserve=2 * ctx.profile.greedy_tokens)[-1]
    rng = random.Random(ctx.seed())
    worst: dict[str, float] = {"warm": 0.0, "after aborts": 0.0, "other head": 0.0, "prompt logprobs": 0.0}
    floors: list[float] = []
    for number in range(max(2, ctx.profile.samples // 4)):
        text = " ".join(ctx.wording.filler(rng) for _ in range(rung))
        prompt = ctx.client.tokenize(text)[:rung]
        n = ctx.profile.greedy_tokens
        salts = [uuid.uuid4().hex for _ in range(3)]
        cold = scoring.continue_greedily(ctx.client, prompt, max_tokens=n, cache_salt=salts[0])
        again = scoring.continue_greedily(ctx.client, prompt, max_tokens=n, cache_salt=salts[1])
        warm = scoring.continue_greedily(ctx.client, prompt, max_tokens=n, cache_salt=salts[0])
        _abort_neighbours(ctx, prompt)
        later = scoring.continue_greedily(ctx.client, prompt, max_tokens=n, cache_salt=salts[0])
        floors.append(_agreeing(cold, again))
        worst["warm"] = max(worst["warm"], _agreeing(cold, warm))
        worst["after aborts"] = max(worst["after aborts"], _agreeing(cold, later))
        worst["other head"] = max(worst["other head"], _other_head(ctx, prompt, rng, n))
        first, second = (scoring.score(ctx.client, prompt, top=1) for _ in range(2))
        worst["prompt logprobs"] = max(worst["prompt logprobs"], _gap(first.logprobs, second.logprobs))
        ctx.progress(f"prompt {number + 1}")
    value = max(worst.values())
    floor = stats.mean(floors)
    return judge(
        ctx,
        "cache-honesty",
        Measurement(value, "nats", samples=len(floors)),
        noise_floor=floor,
        details={"worst": worst, "floor_runs": floors, "prompt_tokens": rung},
    )


def _agreeing(a: scoring.Continuation, b: scoring.Continuation) -> float:
    """Largest log-prob difference up to and including the first token on which the two differ.

    At a near-tie the texts part and later tokens are not comparable; at the parting token the two log probabilities
    still are: a true tie parts with a small difference, a stale block with a large one.
    """
    value = 0.0
    for ta, la, tb, lb in zip(a.tokens, a.logprobs, b.tokens, b.logprobs, strict=False):
        value = max(value, abs(la - lb))
        if ta != tb:
            break
    return value


GATE = Gate(
    "cache-honesty",
    "isolation",
    "cold, warm and interrupted prefix cache give the same log probabilities",
    _run,
    ("stale-prefix",),
)
