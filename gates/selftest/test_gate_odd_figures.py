# SPDX-License-Identifier: Apache-2.0
"""Figures that no model computes, JSON without end, texts without tokens: a verdict, or a sentence that names them."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from behind_fault import run_behind

from gates.controls import matrix, toy_model
from gates.core import gate, prompts, schemas, scoring, stats, wording
from gates.core.client import ServerTrouble, completion_tokens
from gates.core.errors import Failed
from gates.core.result import Verdict
from gates.core.suite import Api, Suite

GATES = gate.discover()


@pytest.fixture(scope="module")
def stand_in(good_server: str, tmp_path_factory: pytest.TempPathFactory) -> gate.Context:
    folder = tmp_path_factory.mktemp("figures")
    return matrix.context(good_server, folder, reference=toy_model.reference(folder))


def _prompt_logprobs(change: Callable[[float, bool], float]) -> Callable[[str, dict, dict], dict]:
    """Each prompt log probability by `change(value, whether it is the prompt's own token)`."""

    def reply(path: str, body: dict, answer: dict) -> dict:
        for choice in answer.get("choices") or []:
            for token, row in zip(body.get("prompt") or [], choice.get("prompt_logprobs") or [], strict=False):
                for key, entry in (row or {}).items():
                    entry["logprob"] = change(entry["logprob"], key == str(token))
        return answer

    return reply


@pytest.mark.parametrize(
    "value", [1e308, -1e308, 1000.0, 0.01, -20_000, True, "x", "-1.5", 10**400, [], None, math.nan]
)
def test_what_is_no_log_probability_fails(value: object) -> None:
    with pytest.raises(Failed, match="the log probability of it"):
        scoring.finite(value, "it")


@pytest.mark.parametrize("value", [0, 0.0, -0.5, 1e-6, -9999.0])
def test_what_is_one_does_not(value: float) -> None:
    assert scoring.finite(value, "it") == value


def test_candidates_are_no_more_than_certain_together() -> None:
    assert scoring.distribution({1: math.log(0.5), 2: math.log(0.5)}, "it")
    with pytest.raises(Failed, match="a mass of"):
        scoring.distribution({1: math.log(0.6), 2: math.log(0.6)}, "it")


@pytest.mark.parametrize("name", ["perplexity", "kl-divergence", "top1-agreement", "decode-vs-prefill"])
@pytest.mark.parametrize("scale", [1000, -1, 1e-9])
def test_log_probabilities_of_another_scale_are_the_servers_fault(
    stand_in: gate.Context, name: str, scale: float
) -> None:
    seen = run_behind(stand_in, name, reply=_prompt_logprobs(lambda value, own: value * scale))
    assert seen.verdict is Verdict.FAIL, seen
    assert "probability" in seen.reason or "no distribution" in seen.reason


@pytest.mark.parametrize("nats", [0.3, 1.0, 3.0])
def test_kl_divergence_grows_with_what_is_wrong(stand_in: gate.Context, nats: float) -> None:
    """Candidates too likely by 3 nats were nearer to the reference than by 0.3."""

    def change(value: float, own: bool) -> float:
        return value if own else min(-0.0, value + nats)

    assert run_behind(stand_in, "kl-divergence", reply=_prompt_logprobs(change)).verdict is Verdict.FAIL


def test_a_perplexity_beyond_any_float_is_a_figure(stand_in: gate.Context) -> None:
    seen = run_behind(stand_in, "perplexity", reply=_prompt_logprobs(lambda value, own: -9000.0 if own else -9999.0))
    assert seen.verdict is Verdict.FAIL, seen
    assert seen.measurement is not None


def test_kl_of_candidates_that_the_reference_does_not_know_is_large() -> None:
    """Twenty others hold all the mass: nothing is left for those that the reference lists."""
    even = math.log(0.05)
    assert stats.top_k_kl(dict.fromkeys(range(20), even), dict.fromkeys(range(20, 40), even)) > 10


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_json_without_end_is_a_wrong_answer(text: str) -> None:
    assert schemas.problem(text, schemas.FLAT).startswith("not JSON")


@pytest.mark.parametrize("error", [OverflowError, RecursionError, ZeroDivisionError, KeyError])
def test_a_check_that_trips_over_an_answer_leaves_the_others(stand_in: gate.Context, error: type[Exception]) -> None:
    suite = Suite("s", "two checks")

    @suite.check(1, "trips")
    def _first(api: Api) -> None:
        raise error("odd")

    suite.check(2, "holds")(lambda api: None)
    seen = suite.run(stand_in)
    assert seen.verdict is Verdict.FAIL
    assert seen.details["checks"]["002 holds"] == ""


def test_a_client_gate_survives_json_without_end(stand_in: gate.Context) -> None:
    def reply(path: str, body: dict, answer: dict) -> dict:
        for choice in answer.get("choices") or [] if "response_format" in body else []:
            choice["message"]["content"] = "[" * 100_000
        return answer

    assert run_behind(stand_in, "api-openai-client", reply=reply).verdict is Verdict.FAIL


@pytest.mark.parametrize("tokens", [[], [True], [-1], ["1"], None])
def test_a_text_without_tokens_is_trouble(stand_in: gate.Context, tokens: object) -> None:
    def reply(path: str, body: dict, answer: dict) -> dict:
        return {"tokens": tokens} if path == "/tokenize" else answer

    for name in ("copy", "isolation", "decode-vs-prefill"):
        seen = run_behind(stand_in, name, reply=reply)
        assert seen.verdict is Verdict.ERROR
        assert "no token ids" in seen.reason


def test_a_tokenizer_that_makes_one_token_of_all_ends() -> None:
    class One:
        asked = 0

        def tokenize(self, text: str) -> list[int]:
            self.asked += 1
            return [1]

    one = One()
    with pytest.raises(ServerTrouble, match="1 tokens for 32 sentences"):
        prompts.filler(one, wording.TOY, random.Random(1), 10_000)
    assert one.asked == 1


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": None}, {"completion_tokens": "3"}, [], "x"])
def test_usage_that_is_none_is_named(usage: object) -> None:
    with pytest.raises(ServerTrouble, match=r"`usage.completion_tokens` is .* at answer c-1"):
        completion_tokens({"id": "c-1", "usage": usage})
    assert completion_tokens({"usage": {"completion_tokens": 3}}) == 3


@pytest.mark.parametrize("name", ["one-token-only", "output-length-band"])
def test_no_usage_is_an_error_with_a_sentence(stand_in: gate.Context, tmp_path: Path, name: str) -> None:
    def reply(path: str, body: dict, answer: dict) -> dict:
        return {key: value for key, value in answer.items() if key != "usage"}

    seen = run_behind(dataclasses.replace(stand_in, records=tmp_path), name, reply=reply)
    assert seen.verdict is Verdict.ERROR
    assert "`usage.completion_tokens` is None" in seen.reason


def test_usage_that_tells_more_than_was_said_is_not_believed(stand_in: gate.Context) -> None:
    def reply(path: str, body: dict, answer: dict) -> dict:
        for choice in answer.get("choices") or []:
            choice["message"].update(content="T", reasoning=None)
        return answer

    assert run_behind(stand_in, "one-token-only", reply=reply).verdict is Verdict.FAIL
