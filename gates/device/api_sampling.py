# SPDX-License-Identifier: Apache-2.0
"""API checks 101-114: sampling, seeds, n, stop."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from gates.core import scoring
from gates.core.errors import Skip
from gates.core.schemas import PING
from gates.core.suite import PATH, Api, Suite, expect, reasoning_of

NEAR = 0.3  # nats that rounding may move a near-tie by
SUITE = Suite("api-sampling", "seeds, n, stop strings and sampling parameters do what they say")


def _text(message: dict[str, Any]) -> str:
    return reasoning_of(message) + "|" + (message.get("content") or "")


def _sampled(api: Api, seed: int) -> str:
    return _text(api.message("Tell me something.", temperature=1, seed=seed, max_tokens=24))


@SUITE.check(101, "temperature 0 repeats")
def _greedy(api: Api) -> None:
    expect(_text(api.message(max_tokens=24)) == _text(api.message(max_tokens=24)), "two greedy answers differ")


@SUITE.check(102, "a seed repeats")
def _seed(api: Api) -> None:
    expect(_sampled(api, 7) == _sampled(api, 7), "one seed, two answers")


@SUITE.check(103, "seeds differ")
def _seeds(api: Api) -> None:
    expect(len({_sampled(api, s) for s in range(5)}) > 1, "five seeds, one answer")


@SUITE.check(104, "n=2 gives two choices with their indices, each drawn for itself")
def _two(api: Api) -> None:
    alike = []
    for seed in range(5):
        body = api.body("Tell me something.", n=2, temperature=1, seed=seed, max_tokens=24)
        choices = api.client.ok("POST", PATH, body)["choices"]
        expect([c["index"] for c in choices] == [0, 1], "indices")
        alike.append(len({_text(c["message"]) for c in choices}) == 1)
        if not alike[-1]:
            return
    expect(False, f"both answers are the same with each of {len(alike)} seeds")


@SUITE.check(105, "n=2 in a stream keeps its indices")
def _two_stream(api: Api) -> None:
    stream = api.stream(n=2, temperature=1, seed=3, max_tokens=8)
    expect(len(stream.finish_reasons(0)) == 1 and len(stream.finish_reasons(1)) == 1, "finish reasons per index")


@SUITE.check(106, "n=2 with tools")
def _two_tools(api: Api) -> None:
    body = api.body(n=2, temperature=1, seed=3, tools=[PING], tool_choice="required")
    choices = api.client.ok("POST", "/v1/chat/completions", body)["choices"]
    expect(len(choices) == 2 and all(c["message"].get("tool_calls") for c in choices), "calls in both choices")


def _stop_at(api: Api, **options: Any) -> tuple[str, str]:
    whole = str(api.client.complete("Hello", max_tokens=24, temperature=0, ignore_eos=True)["choices"][0]["text"])
    expect(len(whole) > 6, "too short to stop in")
    stop = whole[4:6]
    cut = str(
        api.client.complete("Hello", max_tokens=24, temperature=0, ignore_eos=True, stop=[stop, "\0never"], **options)[
            "choices"
        ][0]["text"]
    )
    return whole[: whole.index(stop)], cut.removesuffix(stop) if options else cut


@SUITE.check(107, "a stop string is cut off")
def _stop(api: Api) -> None:
    expected, got = _stop_at(api)
    expect(got == expected, f"{got!r}, expected {expected!r}")


@SUITE.check(108, "a list of stop strings is accepted in chat")
def _stop_list(api: Api) -> None:
    expect(api.post(api.body(stop=["\n\n\n", "@@"], max_tokens=8)).status == 200, "refused")


@SUITE.check(109, "include_stop_str_in_output keeps it")
def _stop_kept(api: Api) -> None:
    expected, got = _stop_at(api, include_stop_str_in_output=True)
    expect(got == expected, f"{got!r}, expected {expected!r}")


@SUITE.check(110, "a stop string met in the reasoning ends the turn there, or counts in the answer alone")
def _stop_reasoning(api: Api) -> None:
    reasoning = reasoning_of(api.message(max_tokens=24))
    if len(reasoning) < 4:
        return
    stop = reasoning[2:4]
    choice = api.choice(max_tokens=24, stop=[stop])
    seen, content = reasoning_of(choice["message"]), choice["message"].get("content") or ""
    expect(stop not in content, f"the answer holds {stop!r}")
    if seen != reasoning:
        expect(choice.get("finish_reason") == "stop", f"finish {choice.get('finish_reason')!r}")
        expect(seen == reasoning[: reasoning.index(stop)], f"reasoning {seen!r}")


@SUITE.check(111, "stop_token_ids are honoured")
def _stop_ids(api: Api) -> None:
    ids = api.client.complete(
        "Hello", max_tokens=6, temperature=0, ignore_eos=True, logprobs=0, return_tokens_as_token_ids=True
    )
    names = ids["choices"][0]["logprobs"]["tokens"]
    stop = int(names[2].removeprefix("token_id:"))
    first = [int(n.removeprefix("token_id:")) for n in names].index(stop)
    cut = api.client.complete("Hello", max_tokens=6, temperature=0, ignore_eos=True, stop_token_ids=[stop], logprobs=0)
    expect(cut["usage"]["completion_tokens"] == first + 1, f"usage {cut['usage']}")


@SUITE.check(112, "top_p, top_k and min_p are accepted, and each alone can leave the likeliest token only")
def _filters(api: Api) -> None:
    expect(api.post(api.body(temperature=1, top_p=0.9, top_k=20, min_p=0.05, max_tokens=4)).status == 200, "refused")
    prompt = api.client.tokenize("Hello")
    greedy = scoring.continue_greedily(api.client, prompt, max_tokens=24, top=2)
    places = open_places(greedy)[:3]
    if not places:
        raise Skip("no place where one token is ahead of the others")
    for only in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}):
        for place, seed in itertools.product(places, range(2)):
            drawn = scoring.one_token(api.client, [*prompt, *greedy.tokens[:place]], temperature=2, seed=seed, **only)
            told = f"{only}: token {drawn} is drawn, and {greedy.tokens[place]} is far ahead"
            expect(drawn == greedy.tokens[place], told)


def open_places(greedy: scoring.Continuation) -> list[int]:
    """Places where the likeliest token is ahead by more than rounding, those first where others are likely, too."""
    ahead = [
        place
        for place, row in enumerate(greedy.top)
        if greedy.logprobs[place] - max((v for t, v in row.items() if t != greedy.tokens[place]), default=0.0) > NEAR
    ]
    return sorted(ahead, key=lambda place: greedy.logprobs[place])


@SUITE.check(113, "logit_bias forces a token")
def _bias(api: Api) -> None:
    token = api.client.tokenize("a")[-1]
    answer = api.client.complete(
        "Hello",
        max_tokens=3,
        temperature=0,
        ignore_eos=True,
        logit_bias={str(token): 100.0},
        logprobs=0,
        return_tokens_as_token_ids=True,
    )
    names = answer["choices"][0]["logprobs"]["tokens"]
    expect(names == [f"token_id:{token}"] * 3, f"tokens {names}")


def turned(made: scoring.Continuation, penalty: float, *, by_count: bool) -> int | None:
    """The first place at which a penalty must choose another of the listed tokens; None where no other is near.

    Frequency and presence penalties are taken from the logits of tokens that the answer already holds (OpenAI's
    formula): per occurrence (`by_count`) or once.
    """
    for place, row in enumerate(made.top):
        held = Counter(made.tokens[:place])
        left = {t: v - penalty * (held[t] if by_count else min(held[t], 1)) for t, v in row.items()}
        best = max(left, key=left.__getitem__)
        if best != made.tokens[place] and left[best] > left[made.tokens[place]] + NEAR:
            return place
    return None


@SUITE.check(114, "each penalty alone turns the answer where another token is near")
def _penalties(api: Api) -> None:
    prompt = api.client.tokenize("ab ab ab ab")
    plain = scoring.continue_greedily(api.client, prompt, max_tokens=48, top=5)
    tried = False
    for name, by_count in (("frequency_penalty", True), ("presence_penalty", False)):
        bent = scoring.continue_greedily(api.client, prompt, max_tokens=48, **{name: 2.0})
        place = turned(plain, 2.0, by_count=by_count)
        if place is not None:
            tried = True
            same = bent.tokens[: place + 1] == plain.tokens[: place + 1]
            expect(not same, f"{name}: token {place} is the same, though another was nearer than the penalty")
    if not tried:
        raise Skip("no other token was near enough for a penalty to choose it")


GATE = SUITE.gate("ignored-filters", "ignored-presence", "early-stop")
