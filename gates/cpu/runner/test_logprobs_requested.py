# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities as requests ask for them: none, of the token alone, of some, of all; once, and complete.

Complete also for a prompt that sits out a step, is preempted, or is in flight when the prefix cache is reset.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gates.cpu.runner.toy_engine import next_token, toy_logits

PROMPT = [30 + 3 * j % 150 for j in range(40)]


def _recorded(engine: Any) -> dict[str, list[Any]]:
    """Engine-core outputs per request, as they come."""
    found: dict[str, list[Any]] = {}
    update = engine.scheduler.update_from_output

    def recording(*arguments: Any) -> Any:
        outputs = update(*arguments)
        for client in outputs.values():
            for one in client.outputs:
                found.setdefault(one.request_id, []).append(one)
        return outputs

    engine.scheduler.update_from_output = recording
    return found


def _row(known: list[int], vocabulary: int) -> np.ndarray:
    logits = toy_logits(next_token(known, vocabulary), vocabulary).astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def _check_prompt(outputs: list[Any], vocabulary: int, columns: int) -> None:
    (tensors,) = (o.new_prompt_logprobs_tensors for o in outputs if o.new_prompt_logprobs_tensors is not None)
    assert tensors.logprobs.shape == (len(PROMPT) - 1, columns)
    for i, (row, token) in enumerate(zip(tensors.logprobs.numpy(), PROMPT[1:], strict=True)):
        expected = _row(PROMPT[: i + 1], vocabulary)
        assert row[0] == pytest.approx(expected[token], abs=1e-3), i
        assert row[1] == pytest.approx(expected.max(), abs=1e-3), i


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_request_gets_what_it_asked_for(make_engine, asynchronous: bool) -> None:
    engine = make_engine(asynchronous, 64, max_num_batched_tokens=32, max_logprobs=-1)
    found = _recorded(engine)
    asked = [None, 0, 2, -1]
    for i, count in enumerate(asked):
        engine.add(f"r{i}", PROMPT[i:], 6, logprobs=count)
    engine.run()
    assert engine.wrong() == {}
    for i, count in enumerate(asked):
        known = list(PROMPT[i:])
        for one in found[f"r{i}"]:
            if count is None:
                assert one.new_logprobs is None
                continue
            ids, values = one.new_logprobs.logprob_token_ids[0], one.new_logprobs.logprobs[0]
            expected = _row(known, engine.vocabulary)
            known += one.new_token_ids
            assert ids[0] == known[-1]
            assert len(ids) > (engine.vocabulary if count == -1 else count)
            assert values == pytest.approx(expected[ids], abs=1e-3)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("count", [1, -1])
def test_prompt_is_scored_once(make_engine, asynchronous: bool, count: int) -> None:
    """It resumes in chunks, and the one that completes the prompt completes nothing else."""
    engine = make_engine(asynchronous, 64, max_num_batched_tokens=16, max_logprobs=-1)
    found = _recorded(engine)
    engine.add("r", PROMPT, 30, prompt_logprobs=count)
    for _ in range(20):
        engine.step()
    assert len(engine.tracks["r"].got) > 10
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    assert engine.wrong() == {}
    _check_prompt(found["r"], engine.vocabulary, (engine.vocabulary if count == -1 else count) + 1)


def test_model_that_is_fed_flat_ids(make_engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hidden states have no batch dimension (upstream's `flatten_input`: Qwen3-MoE, GLM-4-MoE and others)."""
    engine = make_engine(False, 64, max_num_batched_tokens=16)
    forward = engine.runner._execute_model_generic

    def flat(*args: Any, **kwargs: Any) -> tuple:
        hidden, *rest = forward(*args, **kwargs)
        return hidden.view(-1, hidden.size(-1)), *rest

    monkeypatch.setattr(engine.runner, "_execute_model_generic", flat)
    found = _recorded(engine)
    engine.add("r", PROMPT, 4, prompt_logprobs=2)
    engine.run()
    assert engine.wrong() == {}
    _check_prompt(found["r"], engine.vocabulary, 3)


def _half_read(make_engine, asynchronous: bool, **sampling: Any) -> tuple[Any, dict[str, list[Any]]]:
    """An engine in which request `r` has read 32 of its 40 prompt tokens, and what it returns."""
    engine = make_engine(asynchronous, 64, max_num_batched_tokens=16)
    found = _recorded(engine)
    engine.add("r", PROMPT, 4, prompt_logprobs=2, **sampling)
    engine.step()
    engine.step()
    request = engine.scheduler.requests["r"]
    assert request.is_prefill_chunk
    assert request.num_computed_tokens == 32
    return engine, found


@pytest.mark.parametrize("asynchronous", [False, True])
def test_prompt_that_sits_out_a_step(make_engine, asynchronous: bool) -> None:
    engine, found = _half_read(make_engine, asynchronous)
    scheduler = engine.scheduler
    scheduler.requests["r"].next_decode_eligible_step = scheduler.current_step + 2
    engine.add("other", PROMPT[:3], 1)
    engine.step()
    assert "r" not in engine.runner.input_batch.req_id_to_index
    engine.run()
    assert engine.wrong() == {}
    _check_prompt(found["r"], engine.vocabulary, 3)


def test_prompt_that_the_share_holds_back(make_engine, settings) -> None:
    settings(PREFILL_SHARE="0.5", PREFILL_SHARE_TOKENS="20")
    engine = make_engine(True, 64, max_num_batched_tokens=16)
    found = _recorded(engine)
    engine.add("decodes", PROMPT[:3], 40)
    for _ in range(5):
        engine.step()
    engine.add("r", PROMPT, 4, prompt_logprobs=2)
    held = 0
    while "r" not in found:
        engine.step()
        held += engine.scheduler.requests["r"].num_computed_tokens % 40 > 0 and (
            "r" not in engine.runner.input_batch.req_id_to_index
        )
    assert held, "never held back half-read"
    engine.run()
    assert engine.wrong() == {}
    _check_prompt(found["r"], engine.vocabulary, 3)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("on_a_hit", [False, True])
def test_prompt_that_is_preempted(make_engine, asynchronous: bool, on_a_hit: bool) -> None:
    """Rows before the cached blocks it resumes on are not computed again."""
    engine, found = _half_read(make_engine, asynchronous, skip_reading_prefix_cache=not on_a_hit)
    scheduler = engine.scheduler
    scheduler._preempt_request(scheduler.running.pop(), 0.0)
    scheduler.prev_step_scheduled_req_ids.clear()
    for _ in range(3):  # vLLM 0.28 resumes it once the step in flight is back
        if not scheduler.requests["r"].num_computed_tokens:
            engine.step()
    assert scheduler.requests["r"].num_computed_tokens == (40 if on_a_hit else 16)
    engine.run()
    assert engine.wrong() == {}
    _check_prompt(found["r"], engine.vocabulary, 3)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_prompt_is_scored_again_after_a_reset(make_engine, asynchronous: bool, steps: int) -> None:
    """In flight when the reset comes: a chunk, the last chunk (whose frame is discarded), the first decode."""
    engine = make_engine(asynchronous, 64, max_num_batched_tokens=16)
    found = _recorded(engine)
    engine.add("r", PROMPT, 6, prompt_logprobs=2)
    for _ in range(steps):
        engine.step()
    engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    assert engine.wrong() == {}
    _check_prompt(found["r"], engine.vocabulary, 3)


def test_a_row_nobody_scored_is_impossible(make_engine) -> None:
    """A request that insists on the prefix cache gets no score of what it took from there, and no old memory."""
    engine = make_engine(False, 64)
    found = _recorded(engine)
    engine.add("first", PROMPT, 2)
    engine.run()
    engine.add("r", PROMPT, 2, prompt_logprobs=2, skip_reading_prefix_cache=False)
    engine.run()
    (tensors,) = (o.new_prompt_logprobs_tensors for o in found["r"] if o.new_prompt_logprobs_tensors is not None)
    assert tensors.logprobs[:32].isneginf().all()
    assert not tensors.logprob_token_ids[:32].any()
    assert tensors.logprobs[32, 0] == pytest.approx(_row(PROMPT[:33], engine.vocabulary)[PROMPT[33]], abs=1e-3)
