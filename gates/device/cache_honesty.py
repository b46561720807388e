# SPDX-License-Identifier: Apache-2.0
"""Cache honesty: a warm prefix cache may change speed, never the answer.

The same prompt is scored cold, warm, warm after neighbours were aborted in mid-stream, with a tail that is in the cache
behind another head, and its prompt logprobs are asked for twice. Compared are log probabilities, not texts: batch shape
alone moves near-ties, so the limit is a difference in nats with the floor of two cold runs beside it.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from functools import partial

from gates.core import prompts, scoring, server_facts
from gates.core.client import BadStatus, ServerTrouble, said
from gates.core.errors import Skip
from gates.core.gate import Context, Gate, judge
from gates.core.load import Asked
from gates.core.result import GateResult, Measurement

TOP = 5  # candidates listed at a parting token
LONGEST, REST = 2, 32768  # prompts of the longest length; tokens that the others have at most
NEIGHBOURS, NEIGHBOURS_ANSWER = 4, 64
NOTICED_S, NOTICED_TRIES = 0.2, 50  # until a server has noticed that its clients hung up


def _gap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)


def _abort_neighbours(ctx: Context, prompt: list[int], salt: str) -> None:
    """Hang up on requests that share half of the prompt, and the blocks that hold it, after their second chunk.

    A server notices at its next write or step: what that does to the blocks comes after, so it is waited for.
    """

    def one(index: int) -> None:
        body = {
            "model": ctx.client.model,
            "prompt": [*prompt[: len(prompt) // 2], *prompt[: index + 1]],
            "max_tokens": NEIGHBOURS_ANSWER,
            "cache_salt": salt,
        }
        seen = ctx.client.stream("/v1/completions", {**body, "temperature": 1, "seed": index}, stop_after=2)
        if seen.status != 200:
            raise BadStatus(seen.status, seen.error, scoring.COMPLETIONS)
        if not said(seen):
            raise ServerTrouble("a stream without a choice: nothing to hang up on", where=scoring.COMPLETIONS)

    ctx.ask(one, range(NEIGHBOURS), lambda index: len(prompt) // 2 + index + 1)
    for _ in range(NOTICED_TRIES):
        time.sleep(NOTICED_S)
        if not (server_facts.metrics(ctx.client) or {}).get(server_facts.RUNNING):
            return


def _other_head(ctx: Context, rng: random.Random, tokens: int, length: int) -> float | None:
    """Gap between a prompt whose head and tail were both cached, but never together, and the same prompt cold.

    A cache that keys a block by its own tokens alone would take the tail from behind the other head. A fact lies across
    the border, its name in the head and its value in the tail, and is asked for at the end: behind the other head the
    same value belongs to another name. The head is a whole number of blocks, as only whole blocks are shared; None
    where `length` tokens hold no head and tail of a block each.
    """
    labels = server_facts.metric_labels(ctx.client, server_facts.CACHE)
    told = labels[0].get("block_size", "") if labels else ""
    block = int(told) if told.isdigit() else 128
    size = length // 2 // block * block
    if not size:
        return None
    (name, value), (other, _) = ctx.wording.pick(rng, 2)
    fact, foreign = (ctx.client.tokenize(ctx.wording.fact(key, value)) for key in (name, other))
    shared = _common_end(fact, foreign)
    question = ctx.client.tokenize(" " + ctx.wording.question(name))

    def filler(count: int) -> list[int]:
        return prompts.filler(ctx.client, ctx.wording, rng, count)

    tail = [*fact[len(fact) - shared :], *filler(length - size - shared - len(question)), *question]
    head, elsewhere = ([*filler(size - len(ids) + shared), *ids[: len(ids) - shared]] for ids in (fact, foreign))
    scoring.continue_greedily(ctx.client, [*elsewhere, *tail], max_tokens=1)
    scoring.continue_greedily(ctx.client, [*head, *tail[::-1]], max_tokens=1)
    warm = scoring.continue_greedily(ctx.client, [*head, *tail], max_tokens=tokens, top=TOP)
    salt = uuid.uuid4().hex
    cold = scoring.continue_greedily(ctx.client, [*head, *tail], max_tokens=tokens, top=TOP, cache_salt=salt)
    return _agreeing(cold, warm)


def _common_end(a: list[int], b: list[int]) -> int:
    """How many tokens two lists share at their end."""
    return next((i for i, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), min(len(a), len(b)))


def _rungs(ctx: Context) -> list[int]:
    """The length of each prompt, the longest first: each is read a dozen times where nothing is cached."""
    fitting = ctx.lengths(ctx.profile.rungs, reserve=2 * ctx.profile.greedy_tokens)
    rest = max((rung for rung in fitting if rung <= REST), default=fitting[0])
    return [fitting[-1]] * LONGEST + [rest] * (max(LONGEST, ctx.profile.samples // 4) - LONGEST)


def asks(ctx: Context) -> list[Asked]:
    """What is sent, and read in full where nothing is cached."""
    made = ctx.profile.greedy_tokens
    out = []
    for rung in _rungs(ctx):
        out += [Asked(rung, made, 6), Asked(rung, 1, 4)]
        out += ctx.asked([rung // 2 + 1 + index for index in range(NEIGHBOURS)], NEIGHBOURS_ANSWER)
    return out


def _run(ctx: Context) -> GateResult:
    if any(
        row.get("enable_prefix_caching") == "False"
        for row in server_facts.metric_labels(ctx.client, server_facts.CACHE)
    ):
        raise Skip("the server keeps no prefix cache: no prompt would be warm")
    rungs = _rungs(ctx)
    rng = random.Random(ctx.seed())
    worst: dict[str, float] = {"warm": 0.0, "after aborts": 0.0, "prompt logprobs": 0.0}
    floors: list[float] = []
    for number, rung in enumerate(rungs):
        prompt = ctx.client.tokenize(" ".join(ctx.wording.filler(rng) for _ in range(rung)))[:rung]
        n = ctx.profile.greedy_tokens
        salt, other_salt = (uuid.uuid4().hex for _ in range(2))

        read = partial(scoring.continue_greedily, ctx.client, prompt, max_tokens=n, top=TOP)
        cold, again, warm = (read(cache_salt=each) for each in (salt, other_salt, salt))
        _abort_neighbours(ctx, prompt, salt)
        later = read(cache_salt=salt)
        floors.append(_agreeing(cold, again))
        worst["warm"] = max(worst["warm"], _agreeing(cold, warm))
        worst["after aborts"] = max(worst["after aborts"], _agreeing(cold, later))
        if (other := _other_head(ctx, rng, n, rung)) is not None:
            worst["other head"] = max(worst.get("other head", 0.0), other)
        first, second = (scoring.score(ctx.client, prompt, top=1) for _ in range(2))
        worst["prompt logprobs"] = max(worst["prompt logprobs"], _gap(first.logprobs, second.logprobs))
        ctx.progress(f"prompt {number + 1}")
    value = max(worst.values())
    return judge(
        ctx,
        "cache-honesty",
        Measurement(value, "nats", samples=len(floors)),
        own_floor=max(floors),
        details={
            "worst": worst,
            "floor_runs": floors,
            "prompt_tokens": max(rungs),
            "prompts": dict(Counter(map(str, rungs))),
        },
    )


def _agreeing(a: scoring.Continuation, b: scoring.Continuation) -> float:
    """Largest log-prob difference up to and including the first token on which the two differ.

    At a near-tie the texts part and later tokens are not comparable; at the parting token the two are still after the
    same text, and each lists what it gave to the other's token: a true tie parts with a small difference, a stale
    block with a large one. A token that is not listed has at most the smallest listed probability.

    Raises:
        ServerTrouble: candidates are not listed where two answers part.
    """
    value = 0.0
    for place, (ta, tb) in enumerate(zip(a.tokens, b.tokens, strict=True)):
        value = max(value, abs(a.logprobs[place] - b.logprobs[place]))
        if ta != tb:
            if not all(len(seen.top) > place and seen.top[place] for seen in (a, b)):
                raise ServerTrouble("no candidates where two answers part", where=scoring.COMPLETIONS)
            value = max(value, a.logprobs[place] - _given(b, place, ta), b.logprobs[place] - _given(a, place, tb))
            break
    return value


def _given(seen: scoring.Continuation, place: int, token: int) -> float:
    row = seen.top[place]
    return row.get(token, min(row.values()))


GATE = Gate(
    "cache-honesty",
    "isolation",
    "cold, warm and interrupted prefix cache give the same log probabilities",
    _run,
    ("stale-prefix", "spoiled-by-abort"),
    asks,
)
