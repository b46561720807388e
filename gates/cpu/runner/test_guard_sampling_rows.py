# SPDX-License-Identifier: Apache-2.0
"""Guard of the sampling-rows patch: settings of one request in calls whose rows are not batch rows."""

from __future__ import annotations

import pytest

from gates.cpu.runner.sampling_rules import rules
from gates.cpu.runner.toy_engine import allowed_neighbour, next_token

PROMPTS = [[30 + j for j in range(8)], [60 + j for j in range(11)], [90 + j for j in range(5)]]


def _run(engine, settings: list[dict], max_tokens: int = 10, apart: int = 4) -> list[list[int]]:
    """Requests arrive some steps apart, so that prefills and decodes share steps."""
    for i, values in enumerate(settings):
        engine.add(f"r{i}", PROMPTS[i], max_tokens, **values)
        for _ in range(apart):
            engine.step()
    engine.run()
    return [engine.tracks[f"r{i}"].got for i in range(len(settings))]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_settings_follow_their_request(make_engine, asynchronous: bool) -> None:
    engine = make_engine(asynchronous, 64)
    banned = next_token(PROMPTS[1], engine.vocabulary)
    # A bad word is tokenised by the engine's front end; the request carries ids.
    got = _run_with_bad_word(engine, banned)
    assert got[0] == engine.tracks["r0"].expected(engine.vocabulary, 10), "the first request bans nothing"
    assert got[1][0] == allowed_neighbour(banned)


def _run_with_bad_word(engine, banned: int) -> list[list[int]]:
    from vllm import SamplingParams

    engine.add("r0", PROMPTS[0], 10)
    for _ in range(4):
        engine.step()
    real = SamplingParams.bad_words_token_ids
    try:
        SamplingParams.bad_words_token_ids = property(lambda self: [[banned]] if self.max_tokens == 9 else None)
        engine.add("r1", PROMPTS[1], 9)
        engine.run()
    finally:
        SamplingParams.bad_words_token_ids = real
    return [engine.tracks[n].got for n in ("r0", "r1")]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_min_tokens_and_logit_bias(make_engine, asynchronous: bool) -> None:
    engine = make_engine(asynchronous, 64)
    ordinary = list(range(16, engine.vocabulary))
    got = _run(engine, [{}, {"min_tokens": 6, "stop_token_ids": ordinary}, {"logit_bias": {3: 100.0}}], max_tokens=12)
    assert got[0] == engine.tracks["r0"].expected(engine.vocabulary, 12)
    assert len(got[1]) == 7
    assert all(t < 16 for t in got[1][:6])
    assert got[1][6] >= 16
    assert got[2] == [3] * 12


@pytest.mark.parametrize("asynchronous", [False, True])
def test_allowed_tokens_follow_their_request(make_engine, asynchronous: bool) -> None:
    """A prompt in chunks stands behind what decodes, so their rows swap: neither may get the other's mask."""
    engine = make_engine(asynchronous, 64, max_num_batched_tokens=48, long_prefill_token_threshold=16)
    long = [40 + 3 * j % 120 for j in range(100)]
    engine.add("prompt", long, 12, allowed_token_ids=[5])
    engine.add("free", PROMPTS[0], 40)
    engine.add("masked", PROMPTS[2], 40, allowed_token_ids=[7])
    engine.run()
    assert engine.tracks["prompt"].got == [5] * 12
    assert engine.tracks["masked"].got == [7] * 40
    assert engine.tracks["free"].got == engine.tracks["free"].expected(engine.vocabulary, 40)


def test_mask_is_gone_from_the_row_its_request_left(make_engine) -> None:
    engine = make_engine(False, 64)
    engine.add("first", PROMPTS[0], 3)
    engine.add("moves", PROMPTS[1], 40, allowed_token_ids=[7])
    for _ in range(6):
        engine.step()
    assert "first" not in engine.scheduler.requests
    engine.add("later", PROMPTS[2], 10)
    engine.run()
    assert engine.tracks["moves"].got == [7] * 40
    assert engine.tracks["later"].got == engine.tracks["later"].expected(engine.vocabulary, 10)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_seed_does_not_depend_on_the_batch(make_engine, asynchronous: bool) -> None:
    """The same seeded request alone, behind others, and with its prompt cut into chunks."""
    sampled = {"temperature": 2.0, "seed": 5}
    alone = _run(make_engine(asynchronous, 64), [{}, sampled][1:])
    among = make_engine(asynchronous, 64)
    among.add("r0", PROMPTS[0], 10, **sampled)
    for i in (1, 2):
        among.add(f"r{i}", PROMPTS[i], 20)
    among.run()
    assert among.tracks["r0"].got == alone[0]
    chunked = make_engine(asynchronous, 64, max_num_batched_tokens=16)
    long = [40 + j % 50 for j in range(60)]
    chunked.add("r0", long, 10, **sampled)
    whole = make_engine(asynchronous, 64)
    whole.add("r0", long, 10, **sampled)
    chunked.run()
    whole.run()
    assert chunked.tracks["r0"].got == whole.tracks["r0"].got


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("rule", ["top-k", "top-p", "repetition penalty"])
def test_settings_of_a_prompt_in_chunks(make_engine, asynchronous: bool, rule: str) -> None:
    """Its first chunks sample nothing; the row's former owner must leave no setting behind."""
    engine = make_engine(asynchronous, 64, max_num_batched_tokens=32)
    (chosen,) = (r for r in rules(engine.vocabulary) if r.name == rule)
    long = [40 + 3 * j % 120 for j in range(100)]
    engine.add("former", PROMPTS[0], 5, temperature=1.5, top_k=40, top_p=0.9, repetition_penalty=1.2)
    engine.run()
    for name in ("first", "second"):
        engine.add(name, long, 12, rule=chosen)
        engine.run()
    del engine.tracks["former"]
    assert engine.wrong() == {}


def test_a_new_request_at_the_address_of_a_finished_one_gets_its_own_settings(make_engine) -> None:
    """Python gives a new object the address of a freed one; its settings must not come with it."""
    from types import SimpleNamespace

    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor

    from vllm_gaudi.runtime.sampling_rows import _Processors

    runner = make_engine(False, 64).runner
    processors = _Processors(runner, 4)
    (bias,) = (p for p in processors.processors.all if isinstance(p, LogitBiasLogitsProcessor))
    parameters = [SamplingParams(logit_bias={token: 100.0}) for token in (5, 6)]

    def request(which: int) -> SimpleNamespace:
        return SimpleNamespace(sampling_params=parameters[which], prompt_token_ids=[1], output_token_ids=[])

    for i in range(200):
        state = request(i % 2)
        processors.select([state], 1)
        assert bias.biases == {0: {5 + i % 2: 100.0}}
        del state
        between = request(0)  # one that needs no processor, so the next object gets the addresses of `state`
        del between


def test_reordered_batch_is_noticed(make_engine) -> None:
    from types import SimpleNamespace

    from vllm_gaudi.runtime import sampling_rows

    invalidated = []
    batch = SimpleNamespace(req_ids=["a", "b"], _invalidate_prompt_token_ids_cache=lambda: invalidated.append(1))
    runner = SimpleNamespace(input_batch=batch)
    assert sampling_rows.order_changed(runner, None, True)
    runner._frontier_not_copied.clear()
    assert not sampling_rows.order_changed(runner, None, False)
    batch.req_ids = ["b", "a"]
    assert sampling_rows.order_changed(runner, None, False)
    assert len(invalidated) == 2
    runner._frontier_not_copied.remove("a")  # was in a sampling call
    assert sampling_rows.order_changed(runner, None, False), "the other was in none"
    runner._frontier_not_copied.remove("b")
    assert not sampling_rows.order_changed(runner, None, False)
