# SPDX-License-Identifier: Apache-2.0
"""Guard of the async-history patch: sampling that depends on the tokens generated so far."""

from __future__ import annotations

import pytest

from gates.cpu.runner.toy_engine import allowed_neighbour, next_token

PENALTY = 5.0


def penalised(prompt: list[int], count: int, vocabulary: int) -> list[int]:
    """Greedy answers of the toy model (10 for its token, 5 for the neighbour, 0 at most else), penalised."""
    known, answers = list(prompt), []
    for _ in range(count):
        token = next_token(known, vocabulary)
        other = allowed_neighbour(token)
        first, second = (10 / PENALTY if token in known else 10), (5 / PENALTY if other in known else 5)
        answers.append(token if first > second else other)
        known.append(answers[-1])
    return answers


@pytest.mark.parametrize("asynchronous", [False, True])
def test_penalties_see_every_output_token(make_engine, asynchronous: bool) -> None:
    engine = make_engine(asynchronous, 64)
    prompts = [[20 + 7 * i + j for j in range(9 + i)] for i in range(4)]
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, 90, repetition_penalty=PENALTY)
    engine.run()
    expected = {f"r{i}": penalised(p, 90, engine.vocabulary) for i, p in enumerate(prompts)}
    assert any(v != engine.tracks[n].expected(engine.vocabulary, 90) for n, v in expected.items()), "penalty did act"
    assert {n: t.got for n, t in engine.tracks.items()} == expected


@pytest.mark.parametrize("asynchronous", [False, True])
def test_history_survives_preemption(make_engine, asynchronous: bool) -> None:
    engine = make_engine(asynchronous, 20)
    prompts = [[20 + 7 * i + j for j in range(30 + i)] for i in range(4)]
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, 60, repetition_penalty=PENALTY)
    preempted = 0
    for step in range(4000):
        if not engine.scheduler.has_requests():
            break
        if step == 25:
            engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        engine.step()
        preempted += sum(r.num_preemptions for r in engine.scheduler.waiting)
    engine.run()
    assert preempted
    assert {n: t.got for n, t in engine.tracks.items()} == {
        f"r{i}": penalised(p, 60, engine.vocabulary) for i, p in enumerate(prompts)
    }


def test_no_copy_without_a_reader(make_engine) -> None:
    engine = make_engine(True, 64)
    engine.add("r0", [20, 21, 22], 12)
    engine.run()
    assert not engine.runner.__dict__.get("_frontier_history")
