# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities as requests ask for them: none, of the token alone, of some, of all; again after a preemption."""

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
